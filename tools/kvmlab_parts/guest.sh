# The first process of a machine, once the host's file system is there: runs one command, and tells the host how it ended.
# /run/kvmlab has what init.sh put there: busybox, the command in "command", and settings in "settings":
#   token=  what ends each stream; tty= whether the command has a terminal; name= of the machine

lab=/run/kvmlab
busybox=$lab/busybox
. $lab/settings

cd $lab
port() {
  echo /dev/vport*p"$1"
}
# The host is known to be there once the last one has its name.
until [ -s "$(echo /sys/class/virtio-ports/vport*p4/name)" ]; do
  $busybox usleep 10000
done

echo "$name" >/proc/sys/kernel/hostname
exec 3<>"$(port 2)"
$busybox mkfifo in out err

pump() {
  $busybox cat <"$1" && printf '\004%s' "$token"
  : >"$1.done"
}

# As long as processes have their turn here, the host hears of it.
beat() {
  while :; do
    $busybox echo beat >&3
    $busybox sleep 2
  done
}

sweep() {
  for process in /proc/[0-9]*; do
    # What has no file is a part of the kernel, what is busybox a part of this.
    [ -e "$process/exe" ] && ! [ "$process/exe" -ef $busybox ] && kill -9 "${process#/proc/}"
  done 2>/dev/null
  return 0
}

listen() {
  until [ -s pid ]; do
    $busybox usleep 10000
  done
  read -r leader <pid
  [ "$tty" = yes ] && read -r terminal <terminal
  while read -r verb first second; do
    case $verb in
      signal) kill "-$first" "-$leader" ;;
      size) $busybox stty -F "$terminal" rows "$first" cols "$second" ;;
    esac
  done <&3
}

# A child that ends interrupts this shell wherever it waits, and what it waited for then fails, be it that a pipe is opened
# or that the host listens. So every wait but that for the command is left to a process without children.
listen &
$busybox echo up >&3
beat &
pump out >"$(port 3)" 3>&- &
pump err >"$(port 4)" 3>&- &
$busybox cat <"$(port 1)" >in 3>&- &
# In the foreground: a shell lets what it starts in the background ignore SIGINT.
if [ "$tty" = yes ]; then
  # script(1), as a console of the machine loses what it writes while the host is busy.
  set -- script --quiet --return --flush --echo always --command '/bin/sh command' /dev/null
else
  set -- /bin/sh command
fi
(exec $busybox setsid "$@" <in >out 2>err 3>&-)
code=$?

sweep
until [ -e out.done ] && [ -e err.done ]; do
  $busybox usleep 10000
  sweep
done
sync
$busybox echo "exit $code" >&3
# The host ends the machine.
while :; do $busybox sleep 1000; done
