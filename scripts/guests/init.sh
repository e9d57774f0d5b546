#!/bin/sh
# The first process of a guest of scripts/test-guests.sh. It mounts what a system mounts, runs the job
# that the kernel command line names with its output on the virtual serial port `out`, and powers off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /guests
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
ln -sfn /proc/self/fd /dev/fd
hostname guest
# Packages that are only unpacked have not made this file.
[ -e /etc/hosts ] || echo '127.0.0.1 localhost' >/etc/hosts
# systemd gives processes this limit; the kernel alone gives 4,096.
# shellcheck disable=SC3045 # dash and the shell of busybox have -H
ulimit -Hn 524288
ip link set lo up

word() { sed -n "s/.*\bguest\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
job=$(word job)
# Control groups as systemd makes them: the second version alone, with every controller of the kernel
# passed on to the groups below the root.
if [ "$(word cgroups)" != none ]; then
  mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
  tr ' ' '\n' </sys/fs/cgroup/cgroup.controllers | while read -r controller; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
fi
mount -o ro "/dev/$(word data)" /guests
# Tests look for fixtures at the place where they were built.
repository=$(cat /guests/repository)
if [ -n "$repository" ]; then
  mkdir -p "$repository"
  mount --bind /guests/files "$repository"
fi
if [ -e /sys/class/net/eth0 ] || ip link set eth0 up 2>/dev/null; then
  ip address add 10.77.0.2/24 dev eth0
  ip link set eth0 up
fi
out=/dev/console
for port in /sys/class/virtio-ports/*; do
  [ "$(cat "$port/name" 2>/dev/null)" != out ] || out=/dev/${port##*/}
done
bash /guests/files/scripts/guests/jobs.sh "$job" </dev/null >"$out" 2>&1
echo "end of job: $?" >"$out"
sync
echo o >/proc/sysrq-trigger
sleep 60
