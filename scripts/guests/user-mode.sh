#!/bin/bash
# The first process of a machine with Debian's user-mode kernel, of scripts/test-kernel.sh or of the
# jobs `fast-…` of scripts/test-guests.sh. Its root is that of the machine on which it runs, for
# reading only; a file system in memory lies over it, and there everything is written.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
word() { sed -n "s/.*\bguest\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

if [ "${1:-}" != inside ]; then
  mount -t proc proc /proc
  repository=$(word repository)
  insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/overlayfs/overlay.ko"
  mount -t tmpfs -o size=75% memory /mnt
  mkdir /mnt/{upper,work,root}
  mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root || halt -f -p
  umount /proc
  cd /mnt/root && exec switch_root /mnt/root /bin/bash "$repository/scripts/guests/user-mode.sh" inside </dev/console >/dev/console 2>&1
fi

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
ln -sfn /proc/self/fd /dev/fd
mkdir -p /lib/modules && ln -sfn "/usr/lib/uml/modules/$(uname -r)" /lib/modules/
modprobe ipv6
hostname guest
# systemd gives processes this limit; the kernel alone gives 4,096.
ulimit -Hn 524288
ip link set lo up
if [ -e /sys/class/net/vec0 ]; then # a tap (start_network of scripts/test-guests.sh)
  ip address add 10.77.0.2/24 dev vec0
  # systemd gives a card a queue of 10,240 packets, the kernel alone one of 1,000.
  ip link set vec0 txqueuelen 10240 up
else # the addresses of slirp
  ip address add 10.0.2.15/24 dev eth0
  ip link set eth0 up
  ip route add default via 10.0.2.2
  echo "nameserver 10.0.2.3" >/etc/resolv.conf
fi

kind=$(word kind) work=$(word work) repository=$(word repository) job=$(word job)
# Control groups as systemd makes them: the second version alone, with every controller of the kernel
# passed on to the groups below the root.
if [ "${kind%-*}" != none ]; then
  mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
  tr ' ' '\n' </sys/fs/cgroup/cgroup.controllers | while read -r controller; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
fi
if [ -n "$job" ]; then
  mkdir /guests
  ln -s "$repository" /guests/files
  ln -s "$(word programs)" /guests/programs
  : >/guests/settings
  bash "$repository/scripts/guests/jobs.sh" "$job"
  echo "end of job: $?"
  halt -f -p
fi
# shellcheck source=/dev/null # made by scripts/test-kernel.sh
. "$work/environment"
# shellcheck source=SCRIPTDIR/results.sh
. "$repository/scripts/guests/results.sh"

echo "start of job $kind"
figure "machine: $(uname -m), kernel $(uname -r), $(nproc) processor, $(awk '$1 == "MemTotal:" { print int($2 / 1024) }' /proc/meminfo) MiB for programs, control groups: $(stat -f -c %T /sys/fs/cgroup)"
"$MOTE_BIN" doctor | indent
prefix=()
case ${kind#*-} in
  user) prefix=("$repository/scripts/as-user.sh" /var/tmp/user) ;;
  delegated) prefix=("$repository/scripts/as-user.sh" --delegate /var/tmp/delegated) ;;
esac
while read -r name folder command <&3; do
  # shellcheck disable=SC2086 # words
  cd "$folder" && run_test "$kind: $name" "${prefix[@]}" $command </dev/null
done 3<"$work/tests"
echo "end of job $kind"
halt -f -p
