#!/bin/busybox sh
# The first process of a machine, until the host's file system is in place; then guest.sh is. Reads /job/mounts, whose
# lines have three fields with a tab between them:
#   bind SOURCE TARGET  shows a directory of the host at a place where the machine has something of its own
#   write TAG TARGET    mounts a directory that the host shares writably

export PATH=/bin
busybox=/bin/busybox
tab=$(printf '\t')

die() {
  echo "kvmlab: expected $*" >/dev/console
  $busybox poweroff -f
}

$busybox mkdir -p /proc /sys /dev /lower /upper /old /new
$busybox mount -t devtmpfs dev /dev
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys

while read -r module; do
  $busybox insmod "/modules/$module" || die "the module $module to load"
done </modules/order

shared=trans=virtio,version=9p2000.L,msize=262144
$busybox mount -t 9p -o "$shared,cache=loose,ro" root /lower || die "the host's file system over 9p"
$busybox mount -t tmpfs -o size=75%,mode=755 upper /upper
$busybox mkdir /upper/data /upper/work
$busybox mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /new ||
  die "an overlay over the host's file system"
# Without what is mounted on /new below.
$busybox mount --bind /new /old

$busybox mkdir -p /new/proc /new/sys /new/dev /new/tmp /new/run
$busybox mount -t tmpfs -o mode=1777 tmp /new/tmp
$busybox mount -t tmpfs -o mode=755 run /new/run
$busybox mkdir /new/run/lock /new/run/kvmlab

$busybox mkdir -p /dev/pts /dev/shm /dev/mqueue
$busybox mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
$busybox mount -t tmpfs -o mode=1777 shm /dev/shm
$busybox mount -t mqueue mqueue /dev/mqueue
for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
  $busybox ln -s "${link#*:}" "/dev/${link%%:*}"
done
# As udev has them by default.
$busybox chmod 666 /dev/kvm /dev/net/tun /dev/vhost-vsock

$busybox mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
for controller in $($busybox cat /sys/fs/cgroup/cgroup.controllers); do
  echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
$busybox ip link set lo up

for kind in proc sys dev; do
  $busybox mount --move "/$kind" "/new/$kind"
done

while IFS=$tab read -r verb source target; do
  $busybox mkdir -p "/new$target"
  case $verb in
    bind) $busybox mount --bind "/old$source" "/new$target" ;;
    write) $busybox mount -t 9p -o "$shared,cache=mmap" "$source" "/new$target" ;;
  esac || die "$source of the host at $target"
done </job/mounts

$busybox cp /bin/busybox /guest.sh /job/* /new/run/kvmlab
cd /new || die "the new root"
$busybox mount --move . /
# The first process itself has to change its root: the kernel then runs modprobe in the new one, and processes may
# make user namespaces, which the kernel refuses to those in a chroot.
exec /bin/busybox chroot . /run/kvmlab/busybox sh /run/kvmlab/guest.sh
