#!/bin/busybox sh
# shellcheck shell=dash
# The first process of the initial memory file system of a guest: it loads the modules in the order of
# the file /modules/order, and hands over to the root file system.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || echo "cannot load $module"; done </modules/order
tries=0
mkdir -p /system
until mount -t ext4 /dev/vda /system 2>/dev/null; do
  tries=$((tries + 1))
  [ $tries -lt 300 ] || { echo "no root file system"; poweroff -f; }
  usleep 100000
done
umount /proc /sys
mount --move /dev /system/dev
exec switch_root /system /bin/sh /guest-init
