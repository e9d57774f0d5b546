#!/bin/bash
# The jobs that run inside the guests of scripts/test-guests.sh: jobs.sh NAME. Each result is one line
# that begins with ok, FAILED or SKIPPED; lines that begin with `figure` are measurements.
set -u
job=$1
files=/guests/files
mote=/guests/programs/mote
export MOTE_SOCKET=/run/mote.sock
node=''
# GUEST_TESTS and GUEST_MODES, as scripts/test-guests.sh was called with them.
# shellcheck disable=SC1091 # it is made with the data disk
. /guests/settings

# shellcheck source=SCRIPTDIR/results.sh
. "$files/scripts/guests/results.sh"
machine() {
  figure "machine: $(uname -m), kernel $(uname -r), $(nproc) processors, $(awk '$1 == "MemTotal:" { print int($2 / 1024) }' /proc/meminfo) MiB for programs, control groups: $(stat -f -c %T /sys/fs/cgroup)"
}

# --- Nodes ------------------------------------------------------------------------------------------

# up LOG FLAGS…: starts a node and waits until it says that it is ready, or has ended.
up() {
  local log=$1
  shift
  "$mote" up --data /var/lib/mote-guest --socket "$MOTE_SOCKET" "$@" >"$log" 2>&1 &
  node=$!
  until grep -q '  reach ' "$log"; do
    kill -0 $node 2>/dev/null || return 1
    sleep 0.1
  done
}
down() {
  kill $node
  wait $node
}
# Asks a function once, with the patience that an emulated processor needs.
ask() { # path, expected text
  python3 -c '
import sys, urllib.request
answer = urllib.request.urlopen("http://127.0.0.1:6683/" + sys.argv[1], data=b"edge", timeout=60).read().decode()
assert sys.argv[2] in answer, answer' "$1" "$2"
}

# The examples with longer times for a start and a call, because an emulated processor is many times
# slower: 60 s instead of 10 s. Nothing else is changed.
patient_examples() {
  local manifest
  cp -r "$files/examples" /var/tmp/
  for manifest in /var/tmp/examples/*/mote.toml; do
    sed -i '/^timeout = /d' "$manifest"
    grep -q '^\[limits\]' "$manifest" || printf '\n[limits]\n' >>"$manifest"
    sed -i '/^\[limits\]/a timeout = "60s"\ninit_timeout = "60s"' "$manifest"
  done
}
patient_examples
examples=/var/tmp/examples

# --- Memory -----------------------------------------------------------------------------------------

available() { awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo; }
# Proportional share of the memory of processes: shared pages are divided by those that share them.
share_of() { # pid…
  local pid
  for pid in "$@"; do cat "/proc/$pid/smaps_rollup" 2>/dev/null; done | awk '$1 == "Pss:" { sum += $2 } END { printf "%.1f", sum / 1024 }'
}
all_below() { # pid: it and all its descendants
  local child
  echo "$1"
  for child in $(pgrep -P "$1"); do all_below "$child"; done
}
report_memory() { # name
  local used
  used=$(awk -v before="$before" -v after="$(available)" 'BEGIN { printf "%.1f", (before - after) / 1024 }')
  # shellcheck disable=SC2046 # process ids
  figure "$1: $(share_of $node) MiB in the node's process, $(share_of $(all_below $node)) MiB with its instances, $used MiB less available in the machine than before its start, $(($(available) / 1024)) MiB still available"
}

# --- Tests of the repository -------------------------------------------------------------------------

# The tests are copied to a disk on which programs of other users may be run and written.
tests() { # mode: root, user, delegated
  local mode=$1 test prefix=()
  case $mode in
    root) ;;
    user) prefix=("$files/scripts/as-user.sh" /var/tmp/user) ;;
    delegated) prefix=("$files/scripts/as-user.sh" --delegate /var/tmp/delegated) ;;
  esac
  export MOTE_BIN=/guests/programs/mote
  for test in /guests/tests/*; do
    [ -z "${GUEST_TESTS:-}" ] || [[ " $GUEST_TESTS " == *" ${test##*/} "* ]] || continue
    run_test "$mode: ${test##*/}" "${prefix[@]}" "$test"
  done
}

job_tests() {
  machine
  "$mote" doctor | indent
  for mode in ${GUEST_MODES:-root user delegated}; do tests "$mode"; done
}

# --- A node for clients outside of the guest ------------------------------------------------------------

# Serves until somebody sends `end` to port 9999; `memory NAME` reports the memory.
serve() {
  echo "serving"
  local word name
  while read -r word name < <(busybox nc -l -p 9999); do
    case $word in
      memory) report_memory "$name" ;;
      end) break ;;
    esac
    echo "done $word"
  done
}
CALIBRATION='
import os, time
def best(work):
    times = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3
def interpreter():
    total = 0
    for number in range(300_000):
        total += number * number % 7
def system_calls():
    for _ in range(50_000):
        os.stat("/")
def switches():
    here, there = os.pipe(), os.pipe()
    if os.fork() == 0:
        while os.read(here[0], 1) == b"x":
            os.write(there[1], b"x")
        os._exit(0)
    for _ in range(5_000):
        os.write(here[1], b"x")
        os.read(there[0], 1)
    os.write(here[1], b"e")
    os.wait()
print("%.1f %.1f %.1f" % (best(interpreter), best(system_calls), best(switches)))'
job_calibrate() {
  machine
  echo "calibration $(python3 -c "$CALIBRATION")"
}
job_clients() {
  machine
  echo "calibration $(python3 -c "$CALIBRATION")"
  before=$(available)
  if ! up /tmp/up.log --lan --access public; then wrong "the node starts"; indent </tmp/up.log; return; fi
  ok "the node starts: $(head -n 1 /tmp/up.log)"
  report_memory "idle node"
  check "a function is deployed" "$mote" deploy --quiet "$examples/echo-node"
  check "it answers" ask echo-node edge
  serve
  figure "connections that the kernel did not accept: $(awk '$1 == "TcpExt:" && !names { names = split($0, name); next }
    $1 == "TcpExt:" { for (at in name) if (name[at] ~ /^(ListenOverflows|ListenDrops|TCPReqQFullDrop|TCPTimeouts|TCPSynRetrans|TCPBacklogDrop)$/) printf "%s %s; ", name[at], $at }' /proc/net/netstat)"
  ip -s link show vec0 2>/dev/null | indent
  check "the node still answers" ask echo-node edge
  down
}

TEN="hello-python echo-python thermo-python hello-node echo-node sieve-node hello-shell echo-shell hello-server echo-server"
job_ten() {
  machine
  ten serve
}
ten() { # [serve]
  before=$(available)
  if ! up /tmp/up.log --lan --access public; then wrong "the node starts"; indent </tmp/up.log; return; fi
  ok "the node starts: $(head -n 1 /tmp/up.log)"
  report_memory "idle node"
  local name expected
  for name in $TEN; do check "$name is deployed" "$mote" deploy --quiet "$examples/$name"; done
  for name in $TEN; do
    case $name in
      hello-*) expected=mote ;;
      echo-*) expected=edge ;;
      sieve-*) expected=168 ;;
      thermo-*) continue ;; # the year of temperatures asks it
    esac
    check "$name answers" ask "$name" "$expected"
  done
  report_memory "ten functions"
  "$mote" list | indent
  if [ "${1:-}" = serve ]; then serve; fi
  for name in $TEN; do
    case $name in
      hello-*) check "$name answers afterwards" ask "$name" mote ;;
    esac
  done
  "$mote" doctor | indent
  check "no process was killed for want of memory" sh -c '! dmesg | grep -iE "out of memory|oom-kill"'
  down
}

# --- Machines that lack something ------------------------------------------------------------------------

# Runs a command as an ordinary user without an account. The command replaces the shell, so this is
# called in a subshell.
as_user() {
  install -d -m 755 -o 2000 -g 2000 /var/tmp/ordinary
  cd /var/tmp/ordinary && exec setpriv --reuid=2000 --regid=2000 --clear-groups env -i PATH="$PATH" HOME=/var/tmp/ordinary \
    LC_ALL=C.UTF-8 MOTE_SOCKET=/var/tmp/ordinary/mote.sock "$@"
}
says() { # name, text, expected…: the text has each of the expected words
  local name=$1 text=$2 word
  shift 2
  for word in "$@"; do
    if ! grep -qiF -- "$word" <<<"$text"; then
      wrong "$name: $word is not in:"
      indent <<<"$text"
      return
    fi
  done
  ok "$name: $(grep -iF -m 1 -- "$1" <<<"$text")"
}
# The line of a report that begins with this name, and its hint.
line_of() { sed -n "/^. $1 /,/^. /p" | sed '1!{/^[^ ]/d}'; }

# works NAME [as_user]: a node starts, and functions in three languages are deployed and answer.
works() {
  local name=$1 as=${2:-} log=/var/tmp/up.log pid function
  install -m 666 /dev/null $log
  # shellcheck disable=SC2086 # no word for root
  $as "$mote" up --data "$(folder_of "$as")" --socket "$(folder_of "$as").sock" --coap off >$log 2>&1 &
  pid=$!
  until grep -q '  reach ' $log; do
    if ! kill -0 $pid 2>/dev/null; then
      wrong "$name: the node starts"
      indent <$log
      return
    fi
    sleep 0.1
  done
  ok "$name: the node starts"
  sed -n '/  reach /,$p' $log | indent
  for function in hello-python hello-node hello-shell; do
    # shellcheck disable=SC2086
    check "$name: $function is deployed" $as "$mote" --node "$(folder_of "$as").sock" deploy --quiet "$examples/$function"
    check "$name: $function answers" ask $function mote
  done
  kill $pid
  wait $pid
}
folder_of() { if [ -n "$1" ]; then echo /var/tmp/ordinary/data; else echo /var/lib/mote-guest; fi; }
# refused NAME EXPECTED…: what an ordinary user's node says that cannot run sandboxes.
refused() {
  local name=$1 text
  shift
  text=$(as_user timeout 60 "$mote" up --data /var/tmp/ordinary/data --coap off "$examples/hello-python" 2>&1)
  local status=$?
  says "$name: mote up" "$text" "$@"
  if [ $status != 124 ] && [ $status != 0 ]; then ok "$name: mote up ends with status $status"; else wrong "$name: mote up ends with status $status"; indent <<<"$text"; fi
}

job_no_userns() {
  machine
  echo 0 >/proc/sys/user/max_user_namespaces
  says "max_user_namespaces=0, root: doctor" "$("$mote" doctor 2>&1 | line_of 'user namespace')" "user.max_user_namespaces"
  works "max_user_namespaces=0, root"
  says "max_user_namespaces=0, user: doctor" "$(as_user "$mote" doctor 2>&1 | line_of 'user namespace')" "user.max_user_namespaces" "run as root"
  refused "max_user_namespaces=0, user" "user.max_user_namespaces" "root"
  echo 4000 >/proc/sys/user/max_user_namespaces
  if [ -e /proc/sys/kernel/unprivileged_userns_clone ]; then
    echo 0 >/proc/sys/kernel/unprivileged_userns_clone
    works "unprivileged_userns_clone=0, root"
    says "unprivileged_userns_clone=0, user: doctor" "$(as_user "$mote" doctor 2>&1 | line_of 'user namespace')" "unprivileged_userns_clone" "run as root"
    refused "unprivileged_userns_clone=0, user" "unprivileged_userns_clone" "root"
    echo 1 >/proc/sys/kernel/unprivileged_userns_clone
  else
    skip "unprivileged_userns_clone: this kernel has no such switch"
  fi
  works "user namespaces allowed again, user" as_user
  disks
}

# A folder that cannot be written, and a full disk.
disks() {
  local text status
  mkdir -p /mnt/small
  mount -t tmpfs -o size=3m tmpfs /mnt/small
  mount -o remount,ro /mnt/small
  text=$("$mote" up --data /mnt/small/data --coap off 2>&1)
  status=$?
  says "read-only folder: mote up ends with status $status" "$text" "M0704" "read-only" "--data"
  text=$(as_user "$mote" up --data /var/lib/mote-guest --coap off 2>&1)
  status=$?
  says "folder of root, user: mote up ends with status $status" "$text" "permission denied" "--data"
  mount -o remount,rw /mnt/small
  dd if=/dev/zero of=/mnt/small/filler bs=4k 2>/dev/null
  text=$("$mote" up --data /mnt/small/data --coap off 2>&1)
  status=$?
  says "full disk: mote up ends with status $status" "$text" "M0703" "free space"
  rm /mnt/small/filler
  "$mote" up --data /mnt/small/data --socket "$MOTE_SOCKET" --coap off >/tmp/small.log 2>&1 &
  node=$!
  until "$mote" list >/dev/null 2>&1; do
    kill -0 $node || { wrong "full disk: the node starts"; indent </tmp/small.log; return; }
    sleep 0.1
  done
  check "a function is deployed before the disk is full" "$mote" deploy --quiet "$examples/hello-python"
  dd if=/dev/zero of=/mnt/small/filler bs=4k 2>/dev/null
  text=$("$mote" deploy "$examples/hello-node" 2>&1)
  says "full disk: deploy ends with status $?" "$text" "M0703" "disk full" "free space"
  check "full disk: the earlier function answers" ask hello-python mote
  rm /mnt/small/filler
  check "space again: deploy" "$mote" deploy --quiet "$examples/hello-node"
  check "space again: it answers" ask hello-node mote
  dd if=/dev/zero of=/mnt/small/filler bs=4k 2>/dev/null
  down
  "$mote" up --data /mnt/small/data --socket "$MOTE_SOCKET" --coap off >/tmp/small.log 2>&1 &
  node=$!
  until "$mote" list >/dev/null 2>&1; do
    kill -0 $node || { wrong "full disk: the node starts again"; indent </tmp/small.log; return; }
    sleep 0.1
  done
  check "full disk: after a restart the functions answer" ask hello-python mote
  down
}

without_groups() { # name
  machine
  indent </proc/cgroups
  "$mote" doctor 2>&1 | indent
  says "$1, root: doctor" "$("$mote" doctor 2>&1 | line_of cgroups)" "cgroups"
  says "$1, root: doctor" "$("$mote" doctor 2>&1 | line_of memory)" "RLIMIT_DATA" "memory controller"
  works "$1, root"
  says "$1, user: doctor" "$(as_user "$mote" doctor 2>&1 | line_of memory)" "RLIMIT_DATA"
  works "$1, user" as_user
}
job_no_cgroup() { without_groups "no control groups"; }
job_no_controllers() { without_groups "no controllers"; }

job_no_landlock() {
  machine
  says "no Landlock: doctor" "$("$mote" doctor 2>&1 | line_of landlock)" "landlock" "kernel from 5.13"
  works "no Landlock, root"
  works "no Landlock, user" as_user
}

job_old_kernel() {
  machine
  "$mote" doctor 2>&1 | indent
  says "old kernel: doctor" "$("$mote" doctor 2>&1)" "kernel"
  works "old kernel, root"
  works "old kernel, user" as_user
}

# --- Another processor -----------------------------------------------------------------------------------

job_boots() {
  machine
  check "Python runs" python3 -c 'import ssl, sqlite3'
  check "Node runs" node -e 'process.exit(0)'
}
# From the packed archive to the first answer, and back to a system without a trace of it.
archive() {
  if ! [ -e /guests/archive.tar.gz ]; then skip "the archive: it was not made"; return; fi
  local before=/run/files-before after=/run/files-after started seconds pid
  files_of() { find /usr /etc /opt /home /root /srv /var/lib /var/log -xdev | sort; cut -d: -f1 /etc/passwd /etc/group; find /sys/fs/cgroup -type d; }
  # Programs of the system that the node runs would leave their compiled modules.
  export PYTHONDONTWRITEBYTECODE=1
  files_of >$before
  started=$(date +%s.%N)
  mkdir /run/unpacked && tar xzf /guests/archive.tar.gz -C /run/unpacked
  check "the archive is installed" /run/unpacked/*/install.sh
  mote up --data /var/lib/mote-guest --socket "$MOTE_SOCKET" --coap off >/tmp/up.log 2>&1 &
  pid=$!
  until grep -q '  reach ' /tmp/up.log; do
    kill -0 $pid 2>/dev/null || { wrong "the installed node starts"; indent </tmp/up.log; return; }
    sleep 0.1
  done
  check "the installed node deploys" mote deploy --quiet "$examples/hello-python"
  check "the installed node answers" ask hello-python mote
  seconds=$(awk -v from="$started" -v to="$(date +%s.%N)" 'BEGIN { printf "%.1f", to - from }')
  figure "from the packed archive to the first answer of a Python function: $seconds s"
  kill $pid
  wait $pid
  check "the archive is removed" /usr/local/share/mote/uninstall.sh
  rm -rf /run/unpacked /var/lib/mote-guest
  files_of >$after
  check "nothing is left of it" diff $before $after
}
job_foreign() {
  machine
  archive
  check "mote version" "$mote" version
  "$mote" doctor 2>&1 | indent
  says "doctor" "$("$mote" doctor 2>&1 | line_of seccomp)" "system calls allowed"
  works "root"
  works "user" as_user
  ten
  for mode in ${GUEST_MODES:-root user delegated}; do tests "$mode"; done
}

"job_${job//-/_}"
