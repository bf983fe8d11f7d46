#!/bin/busybox sh
# First process of the machines that tests boot.
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
# The kernel hands parameters on its command line to modules that are built in; insmod has to be given them.
read -r line < /proc/cmdline
devices=
for word in $line; do
    case $word in virtio_mmio.device=*) devices="$devices ${word#virtio_mmio.}" ;; esac
done
while read -r module; do
    case $module in
        virtio_mmio.ko) busybox insmod "/modules/$module" $devices ;;
        *) busybox insmod "/modules/$module" ;;
    esac
done < /modules/order
echo "the agent starts"
exec perl /agent.pl < /dev/null
