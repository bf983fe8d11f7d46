#!/bin/busybox sh
# First process of a machine: from the drives to one root file system, then the agent.
#
#   /dev/vda  the image, read-only (ext4 or squashfs): the lower layer
#   /dev/vdb  the tools, read-only (ext4): /.agentenv inside
#   /dev/vdc  a writable scratch (ext4), if there is one: the upper layer, which is memory otherwise
#
# Any drive beyond is the agent's. Kernel parameters: agentenv.wait_s=30, agentenv.scratch=auto|none (none: /dev/vdc is
# the agent's too), agentenv.scratch_mb=N and agentenv.tmp_mb=N (sizes of what is memory; half of it where not given).

export PATH=/bin
busybox=/bin/busybox

fail() {
	# One line, which the host finds at the end of the console.
	$busybox echo "agentenv: init: $1: $($busybox printf %s "$2" | $busybox tr '\n' ' ')" >/dev/console
	# Not poweroff: a machine without ACPI would halt and stay. The host runs it so that a reboot ends it.
	$busybox reboot -f
	$busybox sleep 60
}

try() {
	# try WHAT COMMAND...: the error of the command is the detail.
	what=$1
	shift
	said=$("$@" 2>&1) || fail "$what" "${said:-no reason was given}"
}

$busybox mkdir -p /dev /proc /sys /lower /scratch /root /etc
$busybox --install -s /bin
try "mounting /proc" mount -t proc -o nosuid,nodev,noexec proc /proc
try "mounting /sys" mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
try "mounting /dev" mount -t devtmpfs -o nosuid,mode=0755 devtmpfs /dev

words=$(cat /proc/cmdline)
wait_s=30 scratch=auto scratch_mb= tmp_mb=
for word in $words; do
	case "$word" in
	agentenv.wait_s=*) wait_s=${word#*=} ;;
	agentenv.scratch=*) scratch=${word#*=} ;;
	agentenv.scratch_mb=*) scratch_mb=${word#*=} ;;
	agentenv.tmp_mb=*) tmp_mb=${word#*=} ;;
	esac
done

# Parameters of a module stand on the kernel's command line as NAME.PARAMETER; the kernel gives them only to what is
# built in. QEMU tells virtio_mmio in this way where the drives are.
for module in /modules/*.ko; do
	[ -e "$module" ] || continue
	name=${module##*/}
	name=$(echo "${name%.ko}" | tr - _)
	name=${name#*_}
	parameters=
	for word in $words; do
		case "$word" in
		"$name".*) parameters="$parameters ${word#*.}" ;;
		esac
	done
	if ! said=$(insmod "$module" $parameters 2>&1); then
		# A module for a processor or a device that this machine has not is no fault.
		case "$said" in
		*"No such device"* | *"File exists"*) ;;
		*) fail "loading the module $name" "$said" ;;
		esac
	fi
done

turns=$((wait_s * 20))
for drive in vda vdb; do
	while [ ! -b /dev/$drive ]; do
		[ $turns -gt 0 ] || fail "waiting for /dev/$drive" "it did not appear within $wait_s s"
		turns=$((turns - 1))
		usleep 50000
	done
done

if ! said=$(mount -t ext4 -o ro /dev/vda /lower 2>&1); then
	mount -t squashfs -o ro /dev/vda /lower 2>/dev/null || fail "mounting the image /dev/vda" "$said"
fi
if [ "$scratch" != none ] && [ -b /dev/vdc ] && [ "$(cat /sys/block/vdc/ro)" = 0 ]; then
	try "mounting the scratch /dev/vdc" mount -t ext4 -o rw,noatime /dev/vdc /scratch
else
	try "mounting the scratch in memory" mount -t tmpfs -o "mode=0755${scratch_mb:+,size=${scratch_mb}m}" scratch /scratch
fi
try "making the upper layer" mkdir -p /scratch/upper /scratch/work
layers=lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work
try "laying the scratch over the image" mount -t overlay -o "$layers" root /root

# What the image has there may be anything.
point() {
	if [ -L "/root$1" ] || [ ! -d "/root$1" ]; then
		try "making $1" rm -rf "/root$1"
		try "making $1" mkdir -p "/root$1"
	fi
}

for place in /.agentenv /dev /proc /sys /run /tmp; do
	point $place
done
try "mounting the tools /dev/vdb" mount -t ext4 -o ro,nodev /dev/vdb /root/.agentenv
memory="${tmp_mb:+,size=${tmp_mb}m}"
try "mounting /run" mount -t tmpfs -o nosuid,nodev,mode=0755 run /root/run
try "mounting /tmp" mount -t tmpfs -o "nosuid,nodev,mode=1777$memory" tmp /root/tmp
mkdir -p /dev/pts /dev/shm
try "mounting /dev/pts" mount -t devpts -o nosuid,noexec,gid=5,mode=0620,ptmxmode=0666 devpts /dev/pts
try "mounting /dev/shm" mount -t tmpfs -o "nosuid,nodev,mode=1777$memory" shm /dev/shm
for name in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
	ln -sf "${name#*:}" "/dev/${name%%:*}"
done
for place in /proc /sys /dev; do
	try "moving $place" mount --move $place /root$place
done

agent=/.agentenv/bin/agent
[ -x /root$agent ] || fail "starting the agent" "the tools have no $agent"
exec switch_root /root $agent </root/dev/console >/root/dev/console 2>&1
fail "starting the agent" "switch_root returned"
