#!/usr/bin/env bash
# Installs the packages of target/dist in clean Debian systems, in which systemd runs, and removes
# them again. Builds the packages first if there are none.
#
# Usage: scripts/test-dist.sh [--keep] [deb] [archive] [static] [install] [upgrade] [rpm] [openrc]
#                             [foreign]
#   --keep  leave the folder of the systems
#   deb      dpkg -i, a function, the answer within 10 s, restart, remove, purge: nothing is left
#   archive  the same with install.sh and uninstall.sh
#   static   the same with the archive that needs no C library
#   install  what install.sh refuses, and interrupted installations (scripts/test-install.sh)
#   upgrade  upgrades between two versions under load, and interrupted ones (scripts/test-upgrade.sh)
#   rpm      the list of files; installation, a function, and removal with rpm
#   openrc   the static archive in a system without systemd, in which OpenRC keeps the service
#   foreign  the packages for other processors: their fields, and the programs in QEMU
# Without a word all are run. SUITE (bookworm), MIRROR, DIST and TMPDIR can be set. MOTE_NEXT is an
# archive of a newer version (scripts/dist.sh --archive-only); without it, one is built.
#
# Each system is a process id, mount, network, host name and control group namespace of its own, with
# a copy of a minimal Debian as its root. Needs root; SKIPPED and the last line say what could not run.
set -euo pipefail
cd "$(dirname "$0")/.."

SUITE=${SUITE:-bookworm}
DIST=$(realpath -m "${DIST:-target/dist}")
ANSWER_SECONDS_MAX=10
EXPOSURE_MAX=80 # systemd-analyze security, in tenths; without any protection it is 96
# The packages of the base system in addition to dpkg and apt. mote's packages need python3 for the
# function and systemd for the service. The tests need the others.
INCLUDE=ca-certificates,python3,systemd,systemd-sysv,dbus,rpm,minisign
INCLUDE_OPENRC=ca-certificates,python3,busybox,openrc,procps
keep=no jobs=()
for word in "$@"; do
  case $word in
    --keep) keep=yes ;;
    deb | archive | static | install | upgrade | rpm | openrc | foreign) jobs+=("$word") ;;
    *) sed -n '5,15s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
[ ${#jobs[@]} -gt 0 ] || jobs=(deb archive static install upgrade rpm openrc foreign)

[ "$(id -u)" = 0 ] || { echo "SKIPPED: test-dist needs root; nothing was tested" >&2; exit 1; }
if [ "${TEST_DIST_INSIDE:-}" != yes ]; then
  scripts/setup.sh dist
  ls "$DIST"/mote_*_amd64.deb >/dev/null 2>&1 || scripts/dist.sh
  # Every mount below this point disappears with the namespace, whatever happens.
  TEST_DIST_INSIDE=yes exec unshare --mount --propagation private -- "$0" "$@"
fi

passed=0 failed=0 skipped=0
say() { printf '\n## %s\n' "$*"; }
pass() {
  printf 'ok      %s\n' "$*"
  passed=$((passed + 1))
}
wrong() {
  printf 'FAILED  %s\n' "$*"
  failed=$((failed + 1))
}
skip() {
  printf 'SKIPPED %s\n' "$*"
  skipped=$((skipped + 1))
}
check() { # name, command…
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then pass "$name"; else
    wrong "$name"
    printf '%s\n' "$output" | tail -n 20 | sed 's/^/        /'
  fi
}

deb=$(ls "$DIST"/mote_*_amd64.deb)
rpm=$(ls "$DIST"/mote-*.x86_64.rpm)
archive=$(ls "$DIST"/mote-*-linux-gnu.tar.gz)
static=$(ls "$DIST"/mote-*-x86_64-linux-musl.tar.gz 2>/dev/null) || static=''
unpacked=$(basename "$archive" .tar.gz)

# --- The base system ----------------------------------------------------------------------------

MIRROR=${MIRROR:-$(scripts/debian-mirror.sh)}
MIRROR=${MIRROR:-http://deb.debian.org/debian}

# base_system NAME PACKAGES: makes a minimal Debian in $base, which is kept for the next run.
base_system() {
  base=$PWD/target/dist-root/$1
  [ "$(cat "$base.packages" 2>/dev/null)" != "$2" ] || return 0
  say "a minimal Debian $SUITE, which is kept in $base"
  rm -rf "$base" && mkdir -p "$base"
  debootstrap --variant=minbase --include="$2" "$SUITE" "$base" "$MIRROR" >"$base.log" 2>&1 ||
    { tail -n 20 "$base.log" >&2; exit 1; }
  rm -f "$base"/var/cache/apt/archives/*.deb
  echo "$2" >"$base.packages"
}
base_system "$SUITE" "$INCLUDE"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/mote-dist.XXXXXX")
mount --bind "$work" "$work"
init=''
# shellcheck disable=SC2317 # called by the trap
clean() {
  [ "$keep" = no ] || cp "$work"/doctor* /tmp/ 2>/dev/null
  stop_system
  if [ "$keep" = yes ]; then echo "kept: $work"; else
    umount -R -l "$work" 2>/dev/null || true
    if grep -qF " $work" /proc/self/mountinfo; then echo "kept, something is mounted there: $work" >&2; return; fi
    rm -rf --one-file-system "$work"
  fi
}
trap clean EXIT

# Units that belong to a real machine, which a test must not touch, and units that would run during
# a test.
MASKED="systemd-sysctl systemd-udevd systemd-udev-trigger systemd-modules-load systemd-random-seed
  systemd-timesyncd systemd-remount-fs systemd-logind systemd-hwdb-update console-getty getty@tty1"
MASKED_OTHERS="proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount tmp.mount
  sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount
  apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer
  man-db.timer systemd-tmpfiles-clean.timer"

# start_system NAME [openrc]: a new system from a base; it runs systemd, or the init of busybox with
# OpenRC as in Alpine, as process 1.
start_system() {
  local boot='/lib/systemd/systemd --log-target=console --log-level=warning' waits='systemctl is-system-running'
  base_system "$SUITE" "$INCLUDE"
  if [ "${2:-}" = openrc ]; then
    base_system "$SUITE-openrc" "$INCLUDE_OPENRC"
    boot='/bin/busybox init' waits='cat /run/started'
  fi
  root=$work/$1/root
  mkdir -p "$root" "$work/$1"/{upper,work}
  mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/$1/upper,workdir=$work/$1/work" "$root"
  mkdir -p "$root/dist" "$root/tests" "$root/old"
  mount --bind "$DIST" "$root/dist"
  mount --bind "$PWD/scripts" "$root/tests"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  local name group folder type options
  for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  for name in $MASKED; do ln -sf /dev/null "$root/etc/systemd/system/$name.service"; done
  for name in $MASKED_OTHERS; do ln -sf /dev/null "$root/etc/systemd/system/$name"; done
  ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
  if [ "${2:-}" = openrc ]; then
    mkdir -p "$root/run/openrc"
    touch "$root/run/openrc/softlevel"
    # These services belong to a real machine, which a test must not touch.
    rm -f "$root"/etc/runlevels/*/*
    printf '%s\n' '::wait:/bin/busybox ip link set lo up' '::wait:/sbin/openrc default' '::once:/bin/sh -c "echo running >/run/started"' >"$root/etc/inittab"
    # install.sh uses busybox's programs, as in Alpine.
    mkdir -p "$root/opt/busybox"
    chroot "$root" /bin/busybox --install -s /opt/busybox
  fi
  echo "mote-dist" >"$root/etc/hostname"
  # The system gets a control group in each tree. This group becomes the root of the tree that
  # systemd sees. Machines with version 1 have several trees.
  : >"$work/trees"
  while read -r _ folder type options _; do
    case $type:$options in
      cgroup2:*) name=2 ;;
      cgroup:*name=systemd*) name=name=systemd ;;
      cgroup:*cpuset*) continue ;; # a new group of it has no processors
      cgroup:*) name=$(basename "$folder") ;;
      *) continue ;;
    esac
    mkdir "$folder/mote-dist-$$"
    echo "$folder/mote-dist-$$ $name $folder" >>"$work/trees"
  done < <(grep -E '^[^ ]+ [^ ]+ cgroup2? ' /proc/mounts)
  # shellcheck disable=SC2016 # expanded by the inner shells
  setsid unshare --pid --fork --kill-child --mount --uts --ipc --net --propagation private -- bash -c '
    while read -r group _; do echo 0 >"$group/cgroup.procs"; done <"$2"
    cd "$1"
    exec unshare --cgroup -- bash -c '\''
      mount -t proc proc proc && mount -t sysfs -o ro sysfs sys || exit
      grep -q " 2 /sys/fs/cgroup$" "$1" || mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup || exit
      while read -r _ name folder; do
        [ -d ".$folder" ] || mkdir ".$folder"
        case $name in
          2) mount -t cgroup2 cgroup2 ".$folder" ;;
          *) mount -t cgroup -o "$name" cgroup ".$folder" ;;
        esac || exit
      done <"$1"
      mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts && ln -s pts/ptmx dev/ptmx &&
      pivot_root . old && umount -l /old &&
      exec env -i container=mote-dist PATH=/usr/sbin:/usr/bin:/sbin:/bin $2
    '\'' bash "$2" "$3"
  ' bash "$root" "$work/trees" "$boot" </dev/null >"$work/$1/console" 2>&1 &
  unshare_pid=$!
  local waited
  for waited in $(seq 300); do
    init=$(pgrep -P "$unshare_pid" | head -n 1) || init=''
    if [ -n "$init" ] && [[ $(inside sh -c "$waits" 2>/dev/null) =~ ^(running|degraded)$ ]]; then return 0; fi
    kill -0 "$unshare_pid" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$work/$1/console" >&2
  echo "the system did not start within $waited tenths of a second" >&2
  return 1
}
stop_system() {
  [ -n "$init" ] || return 0
  kill -9 "$init" 2>/dev/null || true
  wait "$unshare_pid" 2>/dev/null || true
  init=''
  while read -r group _; do find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true; done <"$work/trees"
}
inside() {
  nsenter --target "$init" --mount --uts --ipc --net --pid --cgroup --root --wd -- env -i HOME=/root TERM=dumb LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}

# --- What is compared ---------------------------------------------------------------------------

# All files of the system except those in which every installation is recorded: the databases of dpkg,
# apt and rpm, logs, caches, and the memory of systemd. There, only names with "mote" count.
listing() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  inside sh -c '
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /dist -o -path /tests -o -path /run -o -path /tmp \
      -o -path /var/tmp -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/rpm \
      -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /root \) -prune -o -print | grep -v "^/etc/\(passwd\|group\|shadow\|gshadow\)-$"
    find /run /tmp /var/tmp /var/cache /var/lib/dpkg/info /var/lib/apt /var/lib/systemd /root -name "*mote*" ! -path "/run/credentials/*" ! -name "systemd-private-*"
    sed "s/^/passwd: /" /etc/passwd
    sed "s/^/group: /" /etc/group
  ' | sort
}
nothing_left() { # name, file with the listing from before
  listing >"$work/after"
  if diff "$2" "$work/after" >"$work/difference"; then pass "$1: no file, user or group is left"; else
    wrong "$1: these are left (>) or missing (<)"
    grep '^[<>]' "$work/difference" | sed 's/^/        /'
  fi
}

FUNCTION='def handle(event, ctx):
    return "hello " + (event.text or "world")
'
ASK='import time, urllib.request
until = time.monotonic() + 20
while True:
    try:
        answer = urllib.request.urlopen("http://127.0.0.1:6683/hello", data=b"edge", timeout=5).read()
        break
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.02)
assert answer == b"hello edge", answer'
# Deploys a function as soon as the node accepts it, and calls it.
first_answer() { # path of mote
  printf '%s' "$FUNCTION" >"$root/root/hello.py"
  # shellcheck disable=SC2016 # expanded by the inner shell
  inside sh -c '
    n=0
    until "$0" list >/dev/null 2>&1; do
      n=$((n + 1))
      [ $n -lt 400 ] || { "$0" list; exit 1; }
      sleep 0.02
    done
    "$0" deploy --quiet "$HOME/hello.py" >/dev/null
  ' "$1" && answers
}
answers() { inside python3 -c "$ASK"; }
refuses_connections() {
  ! inside python3 -c 'import socket; socket.create_connection(("127.0.0.1", 6683), 1)' 2>/dev/null
}
now() { date +%s.%N; }
in_time() { # name, from
  local seconds
  seconds=$(awk -v from="$2" -v to="$(now)" 'BEGIN { printf "%.2f", to - from }')
  if awk -v seconds="$seconds" -v most=$ANSWER_SECONDS_MAX 'BEGIN { exit !(seconds < most) }'; then
    pass "$1: $seconds s to the first answer (at most $ANSWER_SECONDS_MAX s)"
  else
    wrong "$1: $seconds s to the first answer (at most $ANSWER_SECONDS_MAX s)"
  fi
}
property() { inside systemctl show --property "$1" --value mote.service; }
equals() { # value, expected
  [ "$1" = "$2" ] || { echo "it is $1 and not $2"; return 1; }
}
# Checks the service as a package or install.sh has left it: started, and with a function.
service_checks() { # name
  local pid
  check "$1: the service is active" equals "$(property ActiveState)" active
  pid=$(property MainPID)
  # shellcheck disable=SC2016
  check "$1: only loopback is open" inside python3 -c '
lines = [line.split() for name in ("tcp", "udp") for line in open(f"/proc/net/{name}").readlines()[1:]]
opened = {line[1] for line in lines if line[3] in ("0A", "07")}
assert opened and all(address.startswith("0100007F:") for address in opened), opened'
  inside sh -c "kill -9 $pid"
  check "$1: after kill -9 the service starts again and the function answers" answers
  check "$1: it is a new process" test "$(property MainPID)" != "$pid"
  cp "$root/etc/mote/mote-node.toml" "$work/settings" 2>/dev/null || : >"$work/settings"
  mkdir -p "$root/etc/mote"
  echo 'htpp = ":80"' >>"$root/etc/mote/mote-node.toml"
  inside systemctl restart mote.service 2>/dev/null || true
  for _ in $(seq 50); do
    [ "$(property ActiveState)" = failed ] && break
    sleep 0.1
  done
  check "$1: with invalid settings it fails with 78 and is not restarted" \
    equals "$(property ActiveState) $(property ExecMainStatus) $(property NRestarts)" "failed 78 0"
  if [ -s "$work/settings" ]; then cp "$work/settings" "$root/etc/mote/mote-node.toml"; else rm -r "$root/etc/mote"; fi
  inside systemctl restart mote.service || true
  check "$1: with valid settings it starts, and the function was kept" answers
  check "$1: it stops cleanly" inside systemctl stop mote.service
  check "$1: its result is success" equals "$(property Result)" success
  inside systemctl start mote.service || true
  check "$1: it starts again" answers
}

# Calls over new connections that are never repeated, while the service restarts again and again.
RESTARTS='import subprocess, threading, time, urllib.request
done, good, wrong = threading.Event(), [0], []
def call():
    while not done.is_set():
        try:
            answer = urllib.request.urlopen("http://127.0.0.1:6683/hello", data=b"edge", timeout=20).read()
            assert answer == b"hello edge", answer
            good[0] += 1
        except Exception as error:
            wrong.append(repr(error))
threads = [threading.Thread(target=call) for _ in range(4)]
[thread.start() for thread in threads]
for restart in range(10):
    while not wrong and good[0] < 50 * (restart + 1):
        time.sleep(0.01)
    subprocess.run(["systemctl", "restart", "mote.service"], check=True)
done.set()
[thread.join() for thread in threads]
print(good[0], "calls,", len(wrong), "lost", *wrong[:3])
raise SystemExit(1 if wrong else 0)'
SOCKETS=(mote.socket mote-coap.socket mote-management.socket)
without_loss() { # name, files or names of the socket units
  local name=$1 calls
  shift
  check "$name: the sockets can be enabled" inside sh -c "systemctl stop mote.service && systemctl enable --now $* && systemctl start mote.service"
  check "$name: the socket units are valid" inside systemd-analyze verify --man=no "${SOCKETS[@]}"
  # shellcheck disable=SC2016 # expanded by the inner shell
  check "$name: the node has the sockets" inside sh -c 'tr "\0" "\n" </proc/$(systemctl show --property MainPID --value mote.service)/environ | grep -qx LISTEN_FDS=3'
  if calls=$(inside python3 -c "$RESTARTS" 2>&1); then pass "$name: ten restarts, $calls"; else wrong "$name: ten restarts, $calls"; fi
  check "$name: the management API answers after them" inside sh -c "PATH=/usr/local/bin:/usr/bin mote list"
  check "$name: the service can be stopped alone" inside systemctl stop mote.service
  check "$name: a call starts it again" answers
}

doctor() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  inside sh -c 'n=0; until mote list >/dev/null 2>&1 || [ $n = 400 ]; do n=$((n + 1)); sleep 0.02; done; mote doctor' |
    sed -e 's/plain\.service/mote.service/' -e 's/, [0-9]* MiB taken//' || true
}

# Whether a file with symbols belongs to a program: the program contains the file's name and
# checksum.
same_build() { # program, file with symbols
  objcopy -O binary --only-section=.gnu_debuglink --set-section-flags .gnu_debuglink=alloc "$1" "$work/link"
  python3 -B -c '
import struct, sys, zlib
link, symbols = open(sys.argv[1], "rb").read(), open(sys.argv[2], "rb").read()
assert link.split(b"\0")[0].decode() == sys.argv[2].rpartition("/")[2], link
assert struct.unpack("<I", link[-4:])[0] == zlib.crc32(symbols), "the checksum differs"' "$work/link" "$2" &&
    nm "$2" | grep -c ' T ' >/dev/null
}

# --- The parts ----------------------------------------------------------------------------------

test_deb() {
  start_system deb || { skip "deb: systemd does not run here"; return; }
  listing >"$work/before"
  local from
  from=$(now)
  check "deb: dpkg -i" inside dpkg -i "/dist/$(basename "$deb")"
  if first_answer mote; then in_time "dpkg -i" "$from"; else wrong "deb: no answer"; inside journalctl -u mote --no-pager | tail -n 20; return; fi
  check "deb: the service is enabled" inside systemctl is-enabled mote.service
  check "deb: the unit is valid" inside systemd-analyze verify --man=no mote.service
  check "deb: the files are those of the package" inside dpkg --verify mote
  check "deb: the manual pages are there" inside test -e /usr/share/man/man1/mote-up.1.gz
  check "deb: the schema of manifests is there" inside test -e /usr/share/mote/mote.schema.json
  check "deb: the types of functions are there" inside test -e /usr/share/mote/types/mote.pyi -a -e /usr/share/mote/types/mote.d.ts
  service_checks deb
  # shellcheck disable=SC2016 # expanded by the inner shell
  check "deb: the settings in comments are valid" inside sh -c '
    sed "s/^# \([a-z_]* = \)/\1/" /etc/mote/mote-node.toml >/tmp/settings.toml && grep -q ^lan /tmp/settings.toml &&
    MOTE_CONFIG=/tmp/settings.toml mote config check; status=$?; rm /tmp/settings.toml; exit $status'
  # The unit's protections must not take anything away from the sandboxes.
  doctor >"$work/doctor"
  inside systemctl stop mote.service
  inside systemd-run --quiet --unit=plain --property=Delegate=yes --property=LimitNOFILE=524288 mote up
  doctor >"$work/doctor-plain"
  check "deb: mote doctor finds the same in a unit without protections" diff "$work/doctor-plain" "$work/doctor"
  check "deb: mote doctor finds something" grep -q . "$work/doctor"
  inside systemctl stop plain.service
  inside systemctl start mote.service
  echo '# mine' >>"$root/etc/mote/mote-node.toml"
  check "deb: installing again keeps the function" inside dpkg -i "/dist/$(basename "$deb")"
  check "deb: changed settings are kept" grep -q '^# mine$' "$root/etc/mote/mote-node.toml"
  check "deb: it answers after the update" answers
  check "deb: mote upgrade names the command of apt" \
    inside sh -c "mote upgrade --yes --unsigned /dist/$unpacked.tar.gz 2>&1 | grep -F 'sudo apt install ./mote_'"
  without_loss deb "${SOCKETS[@]}"
  check "deb: apt remove" inside apt-get remove -y -qq mote
  check "deb: the node is stopped" refuses_connections
  check "deb: the data and the settings are kept" inside test -e /var/lib/mote/mote.db -a -e /etc/mote/mote-node.toml
  check "deb: it can be installed again" inside dpkg -i "/dist/$(basename "$deb")"
  check "deb: the kept function answers" answers
  check "deb: apt purge" inside apt-get purge -y -qq mote
  nothing_left deb "$work/before"
  stop_system
}

install_archive() { # name, folder in the archive
  local name=$1 unpacked=$2
  start_system "$name" || { skip "$name: systemd does not run here"; return; }
  listing >"$work/before"
  local from
  from=$(now)
  check "$name: install.sh" inside sh -c "cd /tmp && tar -xzf /dist/$unpacked.tar.gz && $unpacked/install.sh"
  if first_answer /usr/local/bin/mote; then in_time "install.sh" "$from"; else wrong "$name: no answer"; inside journalctl -u mote --no-pager | tail -n 20; return; fi
  check "$name: the service is enabled" inside systemctl is-enabled mote.service
  check "$name: the unit is valid" inside systemd-analyze verify --man=no mote.service
  service_checks "$name"
  check "$name: installing again keeps the function" inside "/tmp/$unpacked/install.sh"
  check "$name: it answers after the update" answers
  without_loss "$name" "${SOCKETS[@]/#//usr/local/share/mote/systemd/}"
  check "$name: uninstall.sh" inside /usr/local/share/mote/uninstall.sh
  check "$name: the node is stopped" refuses_connections
  check "$name: the data is kept" inside test -e /var/lib/mote/mote.db
  check "$name: it can be installed again" inside "/tmp/$unpacked/install.sh"
  check "$name: the kept function answers" answers
  check "$name: install.sh --uninstall --purge" inside "/tmp/$unpacked/install.sh" --uninstall --purge
  inside rm -rf "/tmp/$unpacked"
  nothing_left "$name" "$work/before"
  stop_system
}

test_archive() { install_archive archive "$unpacked"; }

test_static() {
  [ -n "$static" ] || { skip "static: $DIST has no archive for x86-64 without a C library"; return; }
  install_archive static "$(basename "$static" .tar.gz)"
}

# Adds the checks of a script that ran inside.
count_checks() { # name, its output, its result
  passed=$((passed + $(grep -c '^ok' "$2" || true)))
  failed=$((failed + $(grep -c '^FAILED' "$2" || true)))
  skipped=$((skipped + $(grep -c '^SKIPPED' "$2" || true)))
  grep -q "^test-$1: " "$2" || wrong "$1: the script did not reach its end"
  [ "$3" = 0 ] || grep -q '^FAILED' "$2" || wrong "$1: the script failed"
}

test_install() {
  start_system install || { skip "install: systemd does not run here"; return; }
  local result=0
  inside bash /tests/test-install.sh "/dist/$unpacked.tar.gz" "/dist/$(basename "$deb")" | tee "$work/install.txt" || result=1
  count_checks install "$work/install.txt" $result
  stop_system
}

# The same programs with a newer version, and the clients that call while it is upgraded.
newer_version() {
  local version=99.0.0
  callers=${CARGO_TARGET_DIR:-target}/debug/mote-callers
  [ -x "$callers" ] || cargo build -p mote-tests --bins || return
  [ -z "${MOTE_NEXT:-}" ] || return 0
  [ -x target/versions/$version/mote ] || scripts/build-version.sh $version target/versions/$version || return
  DIST=target/dist-next scripts/dist.sh --archive-only --version $version --programs target/versions/$version || return
  MOTE_NEXT=$(ls target/dist-next/mote-*-linux-gnu.tar.gz)
}
test_upgrade() {
  newer_version || { wrong "upgrade: the newer version could not be built"; return; }
  start_system upgrade || { skip "upgrade: systemd does not run here"; return; }
  local result=0
  mkdir "$root/newer"
  cp "$MOTE_NEXT" "$callers" "$root/newer/"
  inside bash /tests/test-upgrade.sh "/dist/$unpacked.tar.gz" "/newer/$(basename "$MOTE_NEXT")" /newer/mote-callers |
    tee "$work/upgrade.txt" || result=1
  count_checks upgrade "$work/upgrade.txt" $result
  stop_system
}

test_rpm() {
  start_system rpm || { skip "rpm: systemd does not run here"; return; }
  local file from
  file=/dist/$(basename "$rpm")
  inside mkdir -p /usr/share/licenses # where RPM is at home, it exists
  listing >"$work/before"
  inside rpm -qp --queryformat '[%{FILEMODES:perms} %{FILENAMES}\n]' "$file" 2>/dev/null | sed -n 's/^-[^ ]* //p' | sort >"$work/files"
  dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n 's/^\.\(.*[^/]\)$/\1/p' | grep -v /usr/share/doc/ | sort >"$work/files-deb"
  # In the Debian package, the licence is in another place, which is left out above.
  check "rpm: the list of rpm -qp names the files of the Debian package" \
    diff "$work/files-deb" <(grep -v '^/usr/share/licenses/mote/LICENSE$' "$work/files")
  check "rpm: it needs the C library" sh -c "rpm -qpR '$rpm' 2>/dev/null | grep -F 'libc.so.6(GLIBC_'"
  mkdir -p "$work/rpm-root"
  check "rpm: it installs into a folder" rpm --force-debian --root "$work/rpm-root" --dbpath /var/lib/rpm --nodeps --noscripts --install "$rpm"
  check "rpm: the program in the folder runs" "$work/rpm-root/usr/bin/mote" version
  from=$(now)
  # Here, the dependencies of an RPM are in dpkg's database.
  check "rpm: rpm --install" inside rpm --force-debian --nodeps --install "$file"
  check "rpm: the service starts" inside systemctl start mote.service
  if first_answer mote; then in_time "rpm --install" "$from"; else wrong "rpm: no answer"; fi
  check "rpm: the files are those of the package" inside rpm --verify --nodeps mote
  service_checks rpm
  check "rpm: mote upgrade names the command of dnf" \
    inside sh -c "mote upgrade --yes --unsigned /dist/$unpacked.tar.gz 2>&1 | grep -F 'sudo dnf install ./mote-'"
  check "rpm: rpm --erase" inside rpm --force-debian --nodeps --erase mote
  check "rpm: the node is stopped" refuses_connections
  # RPM has no purge.
  check "rpm: the data is kept" inside test -e /var/lib/mote/mote.db
  inside rm -rf /var/lib/mote
  nothing_left rpm "$work/before"
  stop_system
}

# Without systemd: a system with OpenRC, in which nothing but a shell is process 1.
test_openrc() {
  [ -n "$static" ] || { skip "openrc: $DIST has no archive for x86-64 without a C library"; return; }
  local name from
  name=$(basename "$static" .tar.gz)
  start_system openrc openrc || { skip "openrc: the system does not start"; return; }
  listing >"$work/before"
  from=$(now)
  check "openrc: install.sh with the programs of busybox" inside busybox sh -c \
    "cd /tmp && export PATH=/opt/busybox:\$PATH && tar -xzf /dist/$name.tar.gz && sh $name/install.sh"
  if first_answer /usr/local/bin/mote; then in_time "install.sh with OpenRC" "$from"; else
    wrong "openrc: no answer"
    inside sh -c 'rc-service mote status; tail -n 20 /var/log/mote.log' || true
    return
  fi
  check "openrc: the service starts with the machine" inside sh -c 'rc-update show default | grep -w mote'
  # shellcheck disable=SC2016 # expanded by the inner shell
  inside sh -c 'kill -9 $(pgrep -x mote | head -n 1)'
  check "openrc: after kill -9 the service starts again and the function answers" answers
  check "openrc: it restarts" inside rc-service mote restart
  check "openrc: the function was kept" answers
  check "openrc: it stops" inside rc-service mote stop
  check "openrc: the node is stopped" refuses_connections
  # shellcheck disable=SC2016 # expanded by the inner shell
  check "openrc: uninstall.sh --purge with the programs of busybox" inside busybox sh -c 'PATH=/opt/busybox:$PATH sh "$0" "$@"' /usr/local/share/mote/uninstall.sh --purge
  inside rm -rf "/tmp/$name"
  nothing_left openrc "$work/before"
  stop_system
}

# Tests packages for processors that this machine does not have.
test_foreign() {
  local found=0 file name machine arch program
  for file in "$DIST"/mote-*-linux-musl.tar.gz; do
    [ -e "$file" ] || continue
    name=$(basename "$file" .tar.gz)
    mkdir -p "$work/foreign" && tar -xzf "$file" -C "$work/foreign"
    machine=$(sed -n 's/^architecture=//p' "$work/foreign/$name/requirements")
    [ "$machine" != "$(uname -m)" ] || continue
    found=$((found + 1))
    arch=$machine && [ "$arch" != armv7l ] || arch=arm
    for program in "$work/foreign/$name"/bin/*; do
      check "$name: $(basename "$program") needs no C library" sh -c "! readelf -lW '$program' | grep -q INTERP"
      # The loader's messages name the program after a slash.
      check "$name: $(basename "$program") runs" sh -c "qemu-$arch-static '$program' version 2>&1 | grep -qE '(^|[^/[:alnum:]-])mote( |:|\$)'"
    done
    refused=$(sh "$work/foreign/$name/install.sh" --prefix "$work/foreign/prefix" 2>&1) && refused=accepted
    check "$name: install.sh refuses this machine" test -z "${refused##*this archive is for "$machine"*}"
  done
  [ $found -gt 0 ] || skip "foreign: $DIST has no packages for other processors"
  for file in "$DIST"/mote_*.deb; do
    name=$(basename "$file" .deb)
    check "$name: the field Architecture" equals "$(dpkg-deb --field "$file" Architecture)" "${name##*_}"
    [ "${name##*_}" = amd64 ] || check "$name: it depends on no C library" sh -c "! dpkg-deb --field '$file' Depends | grep -q libc"
  done
  rm -rf "$work/foreign"
}

say "the packages of $DIST"
check "the sums are right" sh -c "cd '$DIST' && sha256sum --check --strict SHA256SUMS"
check "the unit's exposure is at most $EXPOSURE_MAX tenths" \
  systemd-analyze security --offline=yes --threshold=$EXPOSURE_MAX "$PWD/deploy/systemd/mote.service"
mkdir "$work/symbols" && tar -xzf "$DIST/$unpacked-symbols.tar.gz" -C "$work/symbols"
mkdir "$work/archive" && tar -xzf "$archive" -C "$work/archive"
check "the symbols are those of the program" same_build "$work/archive/$unpacked/bin/mote" "$work/symbols/$unpacked-symbols/mote.debug"
check "the list of crates and the provenance are there" python3 -B -c '
import json, sys
sbom, provenance = (json.load(open(name)) for name in sys.argv[1:])
assert sbom["bomFormat"] == "CycloneDX" and len(sbom["components"]) > 100
assert all(one.get("hashes") or one["name"].startswith("mote") for one in sbom["components"])
assert len(provenance["commit"]) == 40 and provenance["rustc"].startswith("rustc ")' "$DIST/$unpacked-sbom.cdx.json" "$DIST"/mote-*-provenance.json
for job in "${jobs[@]}"; do
  say "$job"
  "test_$job"
done
printf '\ntest-dist: %d checks passed, %d failed, %d skipped\n' $passed $failed $skipped
[ $failed = 0 ] && [ $skipped = 0 ]
