#!/usr/bin/env bash
# Runs mote in machines that QEMU emulates: small ones, and ones whose kernel lacks something.
#
# Usage: scripts/test-guests.sh [--programs DIR] [--programs-arm64 DIR] [--tests DIR] [--keep] [JOB]…
#   --programs DIR        the programs for x86-64 (default: target/release, built if they are missing)
#   --programs-arm64 DIR, --programs-armv7 DIR  static programs for ARM (default: target/static/TARGET/release)
#   --tests DIR           test programs for x86-64 (default: those of TESTS_SANDBOX and TESTS_NODE, built)
#   --keep                leave the folder with the output of the guests
#   x86-v2     2 processors, 1 GiB: the attack battery and a part of the tests, as root, as an ordinary
#              user, and as one with control groups of its own
#   x86-512    2 processors, 512 MiB: ten functions in three languages, and a year of temperatures
#   x86-256    1 processor, 256 MiB: 1,024 clients over HTTP and over CoAP
#   fast-512, fast-256  as x86-512 and x86-256, with a kernel that runs as a process of this one and is
#              not emulated (scripts/test-kernel.sh), 1 processor
#   host-512   as x86-512, on this machine with 512 MiB by a control group
#   host-256   as x86-256, on this machine with one of its processors and 256 MiB by a control group
#   no-userns  without user namespaces, on a full disk, with a folder that cannot be written
#   no-cgroup  without control groups, and with control groups without controllers
#   old-kernel the kernel of Debian 11, and a kernel without Landlock
#   arm64, armv7            2 processors, 1 GiB: functions, ten of them, and the tests of x86-v2, as far as the
#              programs are there
#   user-arm64, user-armv7  without another kernel: the programs and the tests of single crates, translated, with
#              pages of 4, 16 and 64 KiB (32-bit ARM has pages of 4 KiB alone)
# Without a job all are run. GUEST_TESTS, GUEST_MODES (root user delegated), SUITE (bookworm) and MIRROR
# can be set. The roots and kernels are kept in .cache/guests.
#
# Needs root for debootstrap, network namespaces and control groups. The processors are emulated, so
# each run prints how much slower they are than this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

SUITE=${SUITE:-bookworm}
# A guest is ended after this many seconds.
GUEST_SECONDS_MAX=${GUEST_SECONDS_MAX:-3600}
ALL=(x86-v2 x86-512 x86-256 fast-512 fast-256 host-512 host-256 no-userns no-cgroup old-kernel arm64 armv7 user-arm64 user-armv7)
PACKAGES=python3,nodejs,iproute2,procps,e2fsprogs,util-linux,busybox-static,kmod
# Modules of the guest's kernel; those that are part of the kernel are left out.
MODULES="pci-host-generic virtio_pci virtio_mmio virtio_blk virtio_console virtio_net virtio_rng ext4 loop overlay crc32c_generic"
# Tests of nodes that make sense on a small machine without the network.
TESTS_SANDBOX=(escape instances)
TESTS_NODE=(first_light deploys faults egress secrets management rollout scale_to_zero worker_death restart kv schedules websockets observe)

# The names of the processors in QEMU, Debian and Rust, and the model of a guest's processor.
declare -A TARGET_OF=([arm64]=aarch64-unknown-linux-musl [armv7]=armv7-unknown-linux-musleabihf)
declare -A DEBIAN_OF=([arm64]=arm64 [armv7]=armhf) QEMU_OF=([arm64]=aarch64 [armv7]=arm)
# The crates whose tests run translated: all but those that need tools of this machine's processor.
TRANSLATED=(mote-spec mote-core mote-pool mote-sandbox mote-engine mote-http mote-coap mote-journal mote-store mote-project mote-upgrade)

programs='' tests='' keep=no jobs=()
declare -A foreign=([arm64]=target/static/${TARGET_OF[arm64]}/release [armv7]=target/static/${TARGET_OF[armv7]}/release)
while [ $# -gt 0 ]; do
  case $1 in
    --programs) programs=$2; shift ;;
    --programs-arm64) foreign[arm64]=$2; shift ;;
    --programs-armv7) foreign[armv7]=$2; shift ;;
    --tests) tests=$2; shift ;;
    --keep) keep=yes ;;
    *) [[ " ${ALL[*]} " == *" $1 "* ]] || { sed -n '2,26s/^# \{0,1\}//p' "$0" >&2; exit 2; }; jobs+=("$1") ;;
  esac
  shift
done
[ ${#jobs[@]} -gt 0 ] || jobs=("${ALL[@]}")
[ "$(id -u)" = 0 ] || { echo "SKIPPED: test-guests needs root; nothing was tested" >&2; exit 1; }
export PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin"
scripts/setup.sh guests
target=${CARGO_TARGET_DIR:-$PWD/target}
if [ -z "$programs" ]; then
  programs=$target/release
  if ! [ -x "$programs/mote" ] && [[ " ${jobs[*]}" =~ \ (x86|host|no|old)- ]]; then make build; fi
fi

cache=$PWD/.cache/guests
work=$(mktemp -d "${TMPDIR:-/var/tmp}/mote-guests.XXXXXX")
guest='' holder='' tap='' capped='' kernel='' node='' folder=''
# shellcheck disable=SC2317 # called by the trap
clean() {
  [ -z "$guest" ] || kill "$guest" 2>/dev/null || true
  [ -z "$holder" ] || kill "$holder" 2>/dev/null || true
  [ -z "$node" ] || kill "$node" 2>/dev/null || true
  [ -z "$capped" ] || rmdir "$capped" 2>/dev/null || true
  if [ "$keep" = yes ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap clean EXIT

say() { printf '\n## %s\n' "$*"; }
all=$work/results
: >"$all"
tell() { printf '%s\n' "$*" | tee -a "$all"; }

MIRROR=${MIRROR:-$(scripts/debian-mirror.sh)}
MIRROR=${MIRROR:-http://deb.debian.org/debian}

# --- Roots and kernels --------------------------------------------------------------------------------

# The packages are unpacked and not configured, so no program of the other architecture has to run here.
# root_of ARCH [SUITE] [PACKAGES]: makes .cache/guests/SUITE-ARCH with root/, kernel, initrd and root.ext4.
root_of() {
  local arch=$1 suite=${2:-$SUITE} folder root deb version module
  # Debian has no cloud kernel for 32-bit ARM.
  local image=cloud-$arch packages
  [ "$arch" != armhf ] || image=armmp
  packages=linux-image-$image,${3:-$PACKAGES}
  folder=$cache/$suite-$arch
  root=$folder/root
  if [ "$(cat "$folder/packages" 2>/dev/null)" != "$packages" ]; then
    say "a Debian $suite for $arch, which is kept in $folder"
    rm -rf "$folder" && mkdir -p "$root"
    debootstrap --foreign --variant=minbase --arch="$arch" --include="$packages" "$suite" "$root" "$MIRROR" >"$folder/log" 2>&1 ||
      { tail -n 20 "$folder/log" >&2; return 1; }
    for deb in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$deb" "$root"; done
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root/debootstrap" "$root"/usr/share/{doc,man,locale}
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    ln -sf mawk "$root/usr/bin/awk"
    mv "$root"/boot/vmlinuz-* "$folder/kernel"
    version=$(basename "$root"/lib/modules/*)
    depmod -b "$root" "$version"
    echo "$packages" >"$folder/packages"
  fi
  version=$(basename "$root"/lib/modules/*)
  # These two are small. They are made again so that they contain the present scripts.
  rm -rf "${folder:?}/boot" && mkdir -p "$folder"/boot/{bin,proc,sys,dev,root,modules}
  cp "$root/bin/busybox" "$folder/boot/bin/"
  cp scripts/guests/boot.sh "$folder/boot/init"
  for module in $MODULES; do
    modprobe --dirname "$root" --set-version "$version" --show-depends "$module" 2>/dev/null || true
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    cp "$module" "$folder/boot/modules/"
    basename "$module"
  done >"$folder/boot/modules.order"
  mv "$folder/boot/modules.order" "$folder/boot/modules/order"
  (cd "$folder/boot" && find . | cpio --quiet -o -H newc | gzip -1) >"$folder/initrd"
  if ! cmp -s scripts/guests/init.sh "$root/guest-init" || ! [ -e "$folder/root.ext4" ]; then
    cp scripts/guests/init.sh "$root/guest-init"
    rm -f "$folder/root.ext4"
    truncate -s 3G "$folder/root.ext4"
    mkfs.ext4 -q -F -d "$root" "$folder/root.ext4"
  fi
}

# data_of NAME PROGRAMS [TESTS]: a disk with the programs, the files of the repository, and test programs.
data_of() {
  local folder=$work/$1.data name
  mkdir -p "$folder"/{programs,tests,files}
  cp "$2/mote" "$folder/programs/"
  strip "$folder"/programs/* 2>/dev/null || true # programs of another processor are stripped already
  [ -z "${3:-}" ] || cp -r "$3/." "$folder/tests/"
  cp "$work/dist-$1"/*.tar.gz "$folder/archive.tar.gz" 2>/dev/null || true
  git ls-files -z --cached --others --exclude-standard scripts examples shims tests docs demo Cargo.toml Makefile README.md deploy | grep -zv '\.svg$' | xargs -0 cp --parents -t "$folder/files"
  pwd >"$folder/repository"
  printf 'GUEST_TESTS=%q GUEST_MODES=%q\n' "${GUEST_TESTS:-}" "${GUEST_MODES:-}" >"$folder/settings"
  truncate -s "$(($(du -sm "$folder" | cut -f1) * 5 / 4 + 32))M" "$work/$1.ext4"
  mkfs.ext4 -q -F -d "$folder" "$work/$1.ext4"
  rm -rf "$folder"
}

# start_guest NAME ARCH PROCESSORS MIB [WORD OF THE KERNEL COMMAND LINE]…: the guest with the data
# disk NAME; its output goes to the file NAME.out, and its kernel's messages go to NAME.console.
start_guest() {
  local name=$1 arch=$2 folder=$cache/$SUITE-$2 processors=$3 mib=$4 machine
  shift 4
  : >"$work/$name.out"
  if [ "$arch" = fast ]; then
    start_fast "$name" "$mib" "$@"
    return
  fi
  case $arch in
    amd64) machine=(qemu-system-x86_64 -machine pc -cpu max) console=ttyS0 ;;
    arm64) machine=(qemu-system-aarch64 -machine virt -cpu cortex-a72) console=ttyAMA0 ;;
    armhf) machine=(qemu-system-arm -machine "virt,highmem=off" -cpu cortex-a15) console=ttyAMA0 ;;
  esac
  ${holder:+in_network} "${machine[@]}" -accel tcg,thread=multi -smp "$processors" -m "$mib" -nodefaults -no-user-config -display none -no-reboot \
    -serial "file:$work/$name.console" -kernel "${kernel:-$folder}/kernel" -initrd "${kernel:-$folder}/initrd" \
    -append "console=$console panic=-1 quiet no_timer_check guest.data=vdb $*" \
    -drive "file=$folder/root.ext4,format=raw,if=none,id=root,snapshot=on" -device virtio-blk-pci,drive=root \
    -drive "file=$work/$name.ext4,format=raw,if=none,id=data,readonly=on" -device virtio-blk-pci,drive=data \
    -device virtio-serial-pci -chardev "file,id=out,path=$work/$name.out" -device virtserialport,chardev=out,name=out \
    -device virtio-rng-pci ${tap:+-netdev tap,id=net,ifname="$tap",script=no,downscript=no -device virtio-net-pci,netdev=net,romfile=} \
    >"$work/$name.qemu" 2>&1 &
  guest=$!
}
# start_fast NAME MIB [WORD]…: the same with Debian's user-mode kernel. Its root is that of this
# machine, so the data disk is not used: it runs the programs in $programs.
start_fast() {
  local name=$1 mib=$2
  shift 2
  mkdir -p "$work/$name.home"
  # The guest runs on one processor, because a system call between two processors takes several
  # times as long.
  ${holder:+in_network} env -u TMPDIR HOME="$work/$name.home" taskset --cpu-list "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*\([0-9]*\).*/\1/p' /proc/self/status)" linux.uml mem="${mib}M" rootfstype=hostfs rootflags=/ ro loglevel=1 con=null con0=null,fd:1 \
    ${tap:+vec0:transport=tap,ifname="$tap",depth=128} init="$PWD/scripts/guests/user-mode.sh" guest.repository="$PWD" \
    guest.programs="$(realpath "$programs")" "$@" </dev/null >"$work/$name.out" 2>"$work/$name.console" &
  guest=$!
}
# Waits until the guest's output has a line that begins with this text.
wait_for_line() { # NAME, beginning
  local waited
  for waited in $(seq $((GUEST_SECONDS_MAX * 2))); do
    if grep -q "^$2" "$work/$1.out"; then return 0; fi
    kill -0 "$guest" 2>/dev/null || break
    sleep 0.5
  done
  tell "FAILED  $1: after $((waited / 2)) s there is no line $2"
  return 1
}
end_guest() { # NAME: waits for its end and takes over its results
  if ! wait_for_line "$1" "end of job: "; then tail -n 20 "$work/$1.console" "$work/$1.qemu" || true; fi
  local tries
  for tries in $(seq 20); do
    kill -0 "$guest" 2>/dev/null && sleep 0.5
  done
  [ "$tries" = 0 ] || kill "$guest" 2>/dev/null || true
  wait "$guest" 2>/dev/null || true
  guest=''
  tee -a "$all" <"$work/$1.out"
}
run_guest() {
  start_guest "$@"
  end_guest "$1"
}

# --- Test programs --------------------------------------------------------------------------------------

# test_programs FOLDER COMMAND…: the test programs of cargo's messages that the command prints.
test_programs() {
  local folder=$1 kind name file
  shift
  mkdir -p "$folder/.programs"
  local arguments=(-p mote-sandbox -p mote-tests --test e2e)
  for kind in "${TESTS_SANDBOX[@]}"; do arguments+=(--test "$kind"); done
  "$@" "${arguments[@]}" 2>"$work/cargo" | built test >"$work/built" || { tail -n 20 "$work/cargo" >&2; return 1; }
  while read -r name file; do cp "$file" "$folder/.programs/$name"; done <"$work/built"
  strip "$folder"/.programs/* 2>/dev/null || true # those of another processor stay as they are
  # A guest runs the files in the folder. There is one for each subject.
  for kind in "${TESTS_SANDBOX[@]}"; do mv "$folder/.programs/$kind" "$folder/$kind"; done
  for kind in "${TESTS_NODE[@]}"; do
    # shellcheck disable=SC2016 # the guest's shell expands this
    printf '#!/bin/sh\nexec "${0%%/*}/.programs/e2e" %s:: "$@"\n' "$kind" >"$folder/$kind"
    chmod 755 "$folder/$kind"
  done
}
# built KIND: the names and the files of the test programs of this kind (test, lib) in cargo's messages.
built() {
  python3 -B -c '
import json, sys
for built in map(json.loads, filter(lambda line: line.startswith("{"), sys.stdin)):
    if built.get("executable") and sys.argv[1] in built["target"]["kind"]:
        print(built["target"]["name"], built["executable"])' "$1"
}

# --- Networks between this machine and a guest --------------------------------------------------------

GUEST=10.77.0.2
# A network namespace with a tap, in which the guest's network and its clients are alone.
start_network() {
  unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
  holder=$!
  until [ "$(readlink "/proc/$holder/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
  in_network ip link set lo up
  in_network ip tuntap add tap0 mode tap
  in_network ip address add 10.77.0.1/24 dev tap0
  # A real network card does not lose packets that a slow machine has not read yet. As many packets
  # as there are clients may wait.
  in_network ip link set tap0 txqueuelen 10000 up
  tap=tap0
}
in_network() { nsenter --net="/proc/$holder/ns/net" -- "$@"; }
stop_network() {
  kill "$holder"
  wait "$holder" 2>/dev/null || true
  holder='' tap=''
}
order() { # NAME, word…: an order to the guest's job; waits until it is done
  local name=$1 before
  shift
  before=$(grep -c '^done ' "$work/$name.out" || true)
  # shellcheck disable=SC2016 # expanded by the inner shell
  until in_network bash -c 'echo "$0" >/dev/tcp/$1/9999' "$*" "$GUEST" 2>/dev/null; do
    kill -0 "$guest" 2>/dev/null || return 1
    sleep 0.2
  done
  until [ "$(grep -c '^done ' "$work/$name.out" || true)" -gt "$before" ]; do
    [ "$1" != end ] || return 0
    kill -0 "$guest" 2>/dev/null || return 1
    sleep 0.2
  done
}
# Prints how many times slower than this machine a guest is, measured with the same interpreter.
calibrate() { # NAME of the guest, ARCH
  local here there
  # The program is the one in jobs.sh. This machine's figure is from the same interpreter, without a
  # guest.
  there=$(sed -n 's/^calibration //p' "$work/$1.out" | head -n 1)
  here=$(chroot "$cache/$SUITE-amd64/root" python3 -c "$(sed -n "/^CALIBRATION='/,/'$/p" scripts/guests/jobs.sh | sed "1d;s/'\$//")" | tail -n 1)
  [ -n "$there" ] || return 0
  tell "figure  $1: calibration (interpreter, system calls, switches between two processes): guest $there ms, this machine $here ms; slower by $(
    paste -d' ' <(tr ' ' '\n' <<<"$there") <(tr ' ' '\n' <<<"$here") | awk '{ printf "%s%.0f", (NR > 1 ? ", " : ""), $1 / $2 }')"
}
# Other projects' client and data, unpacked: both are pure Python.
temperatures() {
  local folder=$cache/python
  if ! cmp -s demo/requirements.txt "$folder/installed.txt"; then
    rm -rf "$folder" && mkdir -p "$folder"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" -r demo/requirements.txt
    cp demo/requirements.txt "$folder/installed.txt"
  fi
}

# --- Jobs -----------------------------------------------------------------------------------------------

job_x86_v2() {
  if [ -n "$tests" ]; then cp -r "$tests" "$work/tests"; else
    test_programs "$work/tests" cargo test --no-run --message-format=json
  fi
  data_of x86-v2 "$programs" "$work/tests"
  run_guest x86-v2 amd64 2 1024 guest.job=tests
}

# year NAME COMMAND OPTION…: a year of temperatures, sent by a client that COMMAND starts.
year() {
  local name=$1 command=$2 data=$cache/python/vega_datasets/_data/seattle-temps.csv
  shift 2
  if $command env PYTHONPATH="$cache/python" python3 -B demo/drive.py --temperatures "$data" --seconds 1800 "$@" >"$work/temperatures" 2>&1; then
    tell "ok      $name: a year of temperatures: every reading is answered and every fault is found"
  else
    tell "FAILED  $name: a year of temperatures"
  fi
  sed 's/^/        /' "$work/temperatures" | tee -a "$all"
}
# ten NAME ARCH PROCESSORS: ten functions in 512 MiB.
ten() {
  temperatures
  start_network
  start_guest "$1" "$2" "$3" 512 guest.job=ten
  if wait_for_line "$1" serving; then
    year "$1" in_network --host $GUEST
    order "$1" memory "ten functions after the year of temperatures" || true
    order "$1" end || true
  fi
  end_guest "$1"
  stop_network
}
job_x86_512() {
  data_of x86-512 "$programs"
  ten x86-512 amd64 2
}
job_fast_512() { ten fast-512 fast 1; }

# sweep NAME, HTTP address, CoAP address: 1 to 1,024 clients over each; every answer within 1 s.
SWEEP_OPERATIONS=${SWEEP_OPERATIONS:-20}
sweep() {
  local name=$1 target worst
  shift
  for target in "$@"; do
    if ${holder:+in_network} "$programs/mote" bench "$target" --experiment closed-sweep -n "$SWEEP_OPERATIONS" >"$work/sweep" 2>"$work/sweep.err"; then
      worst=$(awk '$3 ~ /%|^[0-9.]+$/ && $2 == 1024 { print $3 }' "$work/sweep")
      if [ "$worst" = 100.000 ]; then
        tell "ok      $name: 1,024 clients of ${target%%:*}, all answered within 1 s"
      else
        tell "FAILED  $name: 1,024 clients of ${target%%:*}: $worst % answered within 1 s"
      fi
    else
      tell "FAILED  $name: ${target%%:*}"
      sed 's/^/        /' "$work/sweep.err" | tail -n 5 | tee -a "$all"
    fi
    sed 's/^/figure  /' "$work/sweep" | tee -a "$all"
  done
}

# clients NAME ARCH: 1,024 clients of one processor and 256 MiB.
clients() {
  start_network
  start_guest "$1" "$2" 1 256 guest.job=clients
  if wait_for_line "$1" serving; then
    calibrate "$1"
    sweep "$1" "http://$GUEST:6683/echo-node" "coap://$GUEST:5683/echo-node"
    order "$1" memory "after the clients" || true
    tell "figure  $1: of the clients: $(in_network cat /proc/net/netstat | awk '$1 == "TcpExt:" && !names { names = split($0, name); next }
      $1 == "TcpExt:" { for (at in name) if (name[at] ~ /^(TCPTimeouts|TCPSynRetrans|TCPLostRetransmit|TCPBacklogDrop)$/) printf "%s %s; ", name[at], $at }')"
    tell "figure  $1: packets to the machine that were lost on the way: $(in_network ip -s link show tap0 | awk '/TX:/ { getline; print $4 }')"
    order "$1" end || true
  fi
  end_guest "$1"
  stop_network
}
job_x86_256() {
  data_of x86-256 "$programs"
  clients x86-256 amd64
}
job_fast_256() { clients fast-256 fast; }

# start_capped NAME MIB PROCESSORS: a node of this machine, with its instances on these processors and
# within this memory by a control group, which also counts the pages of its files.
start_capped() {
  local name=$1 group file
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup) file=memory.max
  else
    group=$(awk '$3 == "cgroup" && $4 ~ "(^|,)memory(,|$)" { print $2 }' /proc/mounts)
    group=$group$(awk -F: '$2 ~ "(^|,)memory(,|$)" { print $3 }' /proc/self/cgroup) file=memory.limit_in_bytes
  fi
  group=${group%/}/mote-guests-$$
  if ! mkdir "$group" 2>/dev/null || ! echo $(($2 << 20)) >"$group/$file"; then
    tell "SKIPPED $name: no memory controller at $group"
    return 1
  fi
  capped=$group
  folder=$work/$name
  mkdir "$folder"
  # shellcheck disable=SC2016 # expanded by the inner shell
  bash -c 'echo $$ >"$0/cgroup.procs" && exec taskset -c "$@"' "$group" "$3" "$programs/mote" up --data "$folder/data" --socket "$folder/socket" \
    --http 127.0.0.1:16683 --coap 127.0.0.1:15683 >"$folder/log" 2>&1 &
  node=$!
  until grep -q '  reach ' "$folder/log"; do
    kill -0 $node 2>/dev/null || { tell "FAILED  $name: the node starts"; cat "$folder/log"; return 1; }
    sleep 0.1
  done
}
end_capped() { # NAME
  tell "figure  $1: $(cat "$capped"/memory.max_usage_in_bytes "$capped"/memory.peak 2>/dev/null | awk '{ printf "%.1f MiB", $1 / 1048576 }') at most, with the pages of files"
  kill $node
  wait $node || true
  node=''
  rmdir "$capped" && capped=''
}

# The same loads on this machine, without emulation. The clients have the other processors.
job_host_256() {
  local processors
  processors=$(nproc)
  if [ "$processors" -lt 2 ]; then tell "SKIPPED host-256: this machine has one processor, which the clients need"; return; fi
  start_capped host-256 256 0 || return 0
  MOTE_SOCKET=$folder/socket "$programs/mote" deploy --quiet examples/echo-node
  # The processors of this shell, which the generator inherits.
  taskset -cp "1-$((processors - 1))" $$ >/dev/null
  sweep host-256 http://127.0.0.1:16683/echo-node coap://127.0.0.1:15683/echo-node
  taskset -cp "0-$((processors - 1))" $$ >/dev/null
  end_capped host-256
}
job_host_512() {
  local name answer
  temperatures
  start_capped host-512 512 "0-$(($(nproc) - 1))" || return 0
  local ten
  read -ra ten < <(sed -n 's/^TEN="\(.*\)"$/\1/p' scripts/guests/jobs.sh)
  for name in "${ten[@]}"; do
    MOTE_SOCKET=$folder/socket "$programs/mote" deploy --quiet "examples/$name"
    [ "$name" != thermo-python ] || continue
    answer=$(python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], data=b"edge", timeout=20).read().decode())' "http://127.0.0.1:16683/$name") || true
    case $name:$answer in
      hello-*:*mote* | echo-*:*edge* | sieve-*:*168*) tell "ok      host-512: $name answers" ;;
      *) tell "FAILED  host-512: $name answers: $answer" ;;
    esac
  done
  year host-512 env --host 127.0.0.1 --http-port 16683 --coap-port 15683
  end_capped host-512
}

job_no_userns() {
  data_of no-userns "$programs"
  run_guest no-userns amd64 2 512 guest.job=no-userns
}

job_no_cgroup() {
  data_of no-cgroup "$programs"
  run_guest no-cgroup amd64 2 512 guest.job=no-cgroup guest.cgroups=none
  data_of no-controllers "$programs"
  run_guest no-controllers amd64 2 512 guest.job=no-controllers cgroup_disable=memory,pids,cpu,cpuset,io cgroup_no_v1=all
}

job_old_kernel() {
  # The kernel of Debian 11 with the programs of Debian 12.
  data_of old-kernel "$programs"
  if root_of amd64 bullseye busybox-static,kmod; then
    kernel=$cache/bullseye-amd64
    run_guest old-kernel amd64 2 512 guest.job=old-kernel
    kernel=''
  else
    tell "SKIPPED old-kernel: there is no Debian 11 at $MIRROR"
  fi
  data_of no-landlock "$programs"
  run_guest no-landlock amd64 2 512 guest.job=no-landlock lsm=yama
}

# emulated NAME: a machine with another processor.
emulated() {
  local name=$1 arch=${DEBIAN_OF[$1]}
  if [ ! -x "${foreign[$name]}/mote" ]; then
    tell "SKIPPED $name: there is no mote in ${foreign[$name]}; only the boot is tested"
    mkdir -p "$work/nothing"
    data_of "$name" "$work/nothing"
    run_guest "$name" "$arch" 2 1024 guest.job=boots
    return
  fi
  # An emulated processor is 10 to 50 times slower.
  MOTE_TEST_PATIENCE_SECONDS=600 test_programs "$work/tests-$name" scripts/static.sh --test-programs "${TARGET_OF[$name]}"
  DIST=$work/dist-$name scripts/dist.sh --programs "${foreign[$name]}" --archive-only "${TARGET_OF[$name]}" >"$work/dist" 2>&1 ||
    { tail -n 5 "$work/dist" >&2; tell "FAILED  $name: the archive is made"; }
  data_of "$name" "${foreign[$name]}" "$work/tests-$name"
  run_guest "$name" "$arch" 2 1024 guest.job=foreign
}
job_arm64() { emulated arm64; }
job_armv7() { emulated armv7; }

# translated NAME: programs of another processor on this machine's kernel. The translator has neither
# sandboxes nor threads in namespaces, so what needs a sandbox is left to the emulated machines.
translated() {
  local name=$1 translator=qemu-${QEMU_OF[$1]}-static word page crate file try arguments=() pages="4096 16384 65536"
  # 32-bit ARM has pages of 4 KiB alone.
  [ "$name" != armv7 ] || pages=4096
  if [ -x "${foreign[$name]}/mote" ]; then
    for word in "mote version" "mote doctor" "mote explain M0703" "mote simulate --list"; do
      for page in $pages; do
        # shellcheck disable=SC2086 # words
        if "$translator" -p $page "${foreign[$name]}"/$word >"$work/user" 2>&1 ||
          # What a sandbox needs is missing there, which ends with an error, after all was looked at.
          { [ "$word" = "mote doctor" ] && grep -q "this is what the machine supports" "$work/user"; }; then
          tell "ok      $name, translated, pages of $((page / 1024)) KiB: $word: $(head -n 1 "$work/user")"
        else
          tell "FAILED  $name, translated, pages of $((page / 1024)) KiB: $word"
          sed 's/^/        /' "$work/user" | tail -n 5 | tee -a "$all"
        fi
      done
    done
  else
    tell "SKIPPED $name, translated: there is no mote in ${foreign[$name]}"
  fi
  for crate in "${TRANSLATED[@]}"; do arguments+=(-p "$crate"); done
  scripts/static.sh --test-programs "${TARGET_OF[$name]}" --lib "${arguments[@]}" 2>"$work/cargo" | built lib >"$work/built" ||
    { tail -n 20 "$work/cargo" >&2; return 1; }
  while read -r crate file; do
    [ "$crate" != mote_store ] || tell "SKIPPED $name, translated: mote_store: a_crash_between_any_two_steps_leaves_the_old_or_the_new: it starts its own program again"
    for page in ${pages/16384 /}; do
      # Not all system calls are translated; the tests that need others are named in the output. A test
      # that starts its own program again cannot run.
      for try in 1 2 3; do
        (cd "$(dirname "$(grep -l "^name = \"${crate//_/-}\"\$" crates/*/*/Cargo.toml)")" && timeout 900 "$translator" -p "$page" "$file" --test-threads 2 \
          --skip a_crash_between_any_two_steps_leaves_the_old_or_the_new) >"$work/user" 2>&1 || true
        # With pages that are larger than those of this machine, the translator sometimes refuses a
        # thread memory that is there.
        if ! grep -q '^memory allocation of [0-9]* bytes failed' "$work/user" || [ "$page" = 4096 ]; then break; fi
        tell "figure  $name, translated, pages of $((page / 1024)) KiB: $crate: the translator had no memory, attempt $try"
      done
      result=$(grep '^test result' "$work/user" | head -n 1) || true
      if [[ $result == *" ok. "* ]]; then
        tell "ok      $name, translated, pages of $((page / 1024)) KiB: $crate: $result"
      else
        tell "FAILED  $name, translated, pages of $((page / 1024)) KiB: $crate: ${result:-no result}"
        grep -E 'FAILED$|panicked' "$work/user" | sed 's/^/        /' | head -n 30 | tee -a "$all" || true
        tail -n 3 "$work/user" | cut -c1-200 | sed 's/^/        /' | tee -a "$all"
      fi
    done
  done <"$work/built"
}
job_user_arm64() { translated arm64; }
job_user_armv7() { translated armv7; }

for job in "${jobs[@]}"; do
  case $job in
    host-256 | host-512 | user-*) ;;
    # The figure of this machine, with which a guest is compared, is measured in this root.
    fast-*) scripts/setup.sh kernel && root_of amd64 ;;
    arm64 | armv7) root_of "${DEBIAN_OF[$job]}" ;;
    *) root_of amd64 ;;
  esac
  say "$job"
  "job_${job//-/_}"
done
count() { grep -c "^$1 " "$all" || true; }
printf '\n%d passed, %d failed, %d skipped\n' "$(count ok)" "$(count FAILED)" "$(count SKIPPED)"
[ "$(count FAILED)" = 0 ]
