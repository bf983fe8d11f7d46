# The agent of the machines that tests boot: answers lines, on a virtio-serial port or on vsock port 1024.
# Perl, because every Debian has it and it knows address families it was never told of; without modules, as they are not there.

my %memory;
my $ballast = '';

sub answer {
    my ($line) = @_;
    my ($word, $rest) = split ' ', $line, 2;
    $rest //= '';
    if ($word eq 'echo') { return $rest }
    if ($word eq 'remember') { my ($key, $value) = split ' ', $rest, 2; $memory{$key} = $value; return 'ok' }
    if ($word eq 'recall') { return $memory{$rest} // 'nothing' }
    if ($word eq 'fill') { my ($mb, $byte) = split ' ', $rest; $ballast = chr($byte) x ($mb << 20); return 'ok' }
    if ($word eq 'ballast') { return length($ballast) . ' ' . unpack('%32C*', $ballast) }
    if ($word eq 'memory') { return (split ' ', slurp('/proc/meminfo'))[1] }
    if ($word eq 'processors') { my @found = slurp('/proc/cpuinfo') =~ /^processor/mg; return scalar @found }
    if ($word eq 'random') { return unpack 'H32', slurp('/dev/urandom', 16) }
    if ($word eq 'hardware_random') { return unpack 'H32', slurp('/dev/hwrng', 16) }
    if ($word eq 'command_line') { return slurp('/proc/cmdline') }
    if ($word eq 'uptime') { return (split ' ', slurp('/proc/uptime'))[0] }
    if ($word eq 'drives') {
        return join ' ', map { my ($size, $ro) = map { 0 + slurp($_) } "$_/size", "$_/ro"; (split '/')[-1] . ":$size:$ro" }
            names('/sys/block', 'vd');
    }
    if ($word eq 'interfaces') { return join ' ', map { chomp(my $mac = slurp("$_/address")); $mac } names('/sys/class/net', 'e') }
    if ($word eq 'read') { return slurp("/dev/$rest", 16) }
    if ($word eq 'write') {
        my ($drive, $text) = split ' ', $rest, 2;
        open my $device, '+<', "/dev/$drive" or return "refused: $!";
        syswrite $device, $text or return "refused: $!";
        close $device;
        system '/bin/busybox', 'sync';
        return 'ok';
    }
    if ($word eq 'overwrite') {
        return system('/bin/busybox', 'dd', 'if=/dev/urandom', "of=/dev/$rest", 'bs=64k', 'count=32', 'conv=fsync') >> 8;
    }
    if ($word eq 'pull') {
        my ($drive, $count) = split ' ', $rest;
        return system('/bin/busybox', 'dd', "if=/dev/$drive", 'of=/dev/null', 'bs=4k', "count=$count", 'iflag=direct') >> 8;
    }
    if ($word eq 'shout') {
        open my $console, '>', '/dev/console' or return "refused: $!";
        print $console "$rest\n" or return "refused: $!";
        close $console;
        return 'ok';
    }
    if ($word eq 'flood') {
        open my $console, '>', '/dev/console' or return "refused: $!";
        print $console 'x' x 63, "\n" for 1 .. $rest * 16;
        close $console;
        return 'ok';
    }
    if ($word eq 'end') { system '/bin/busybox', 'reboot', '-f' }
    return "unknown word '$word'";
}

sub slurp {
    my ($path, $count) = @_;
    open my $file, '<', $path or return "no $path";
    binmode $file;
    sysread $file, my $text, $count // 65536;
    return $text // '';
}

sub names {
    my ($directory, $start) = @_;
    opendir my $handle, $directory or return;
    return map { "$directory/$_" } sort grep { index($_, $start) == 0 } readdir $handle;
}

sub serve {
    my ($read, $write) = @_;
    my $held = '';
    while (1) {
        my $at = index $held, "\n";
        if ($at < 0) {
            my $count = sysread $read, $held, 65536, length $held;
            return unless $count;
            next;
        }
        my $line = substr $held, 0, $at + 1, '';
        chomp $line;
        my $text = answer($line);
        $text =~ s/\n/ /g;
        $text .= "\n";
        while (length $text) {    # a port takes at most 32 KiB at once
            my $count = syswrite $write, $text;
            return unless defined $count;
            substr $text, 0, $count, '';
        }
    }
}

$SIG{PIPE} = 'IGNORE';
# A port appears some time after its driver; where there is a vsock device instead, none will.
my $vsock = '/sys/bus/virtio/drivers/vmw_vsock_virtio_transport';
select undef, undef, undef, 0.02 until names('/dev', 'vport') or names($vsock, 'virtio');
if (my ($port) = names('/dev', 'vport')) {
    open my $stream, '+<:raw', $port or die "$port: $!";
    while (1) {
        serve($stream, $stream);
        select undef, undef, undef, 0.02;    # nobody at the other end: a read returns at once
    }
}
# AF_VSOCK, SOCK_STREAM; struct sockaddr_vm: family, reserved, port, any address.
socket my $listener, 40, 1, 0 or die "vsock: $!";
bind $listener, pack 'SSLLx4', 40, 0, 1024, 0xffffffff or die "bind: $!";
listen $listener, 8 or die "listen: $!";
while (1) {
    accept my $stream, $listener or next;
    serve($stream, $stream);    # one after the other: what is remembered is one process's
    close $stream;
}
