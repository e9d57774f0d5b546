#!/usr/bin/env bash
# Runs the end-to-end tests and those of the sandbox on another kernel than that of this machine, at
# nearly full speed: Debian's user-mode kernel, which runs as a process of an ordinary kernel.
#
# Usage: scripts/test-kernel.sh [--memory MIB] [--tests "NAME…"] [KIND…]
#   --memory MIB   the memory of the machine (default 3072)
#   --tests NAMES  only the test programs with these names
#   KIND           what the machine has and who runs the tests; the default is all of them
#     v2-root      version 2 of control groups alone, root
#     v2-user      the same, an ordinary user
#     v2-delegated the same, an ordinary user with control groups of its own
#     none-root    no control groups, root
#     none-user    the same, an ordinary user
#
# Each machine has one processor, which it shares with no other; as many run at the same time as there
# are processors. It has the files of this machine, no Landlock, and the network as a user of this
# machine has it. What the tests write goes to memory and is gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
ALL=(v2-root v2-user v2-delegated none-root none-user)
KIND_SECONDS_MAX=14400
CRATES="tests sandbox" # the folders of the crates whose test programs run

memory=3072 names='' kinds=()
while [ $# -gt 0 ]; do
  case $1 in
    --memory) memory=${2:?--memory needs a number of MiB} && shift ;;
    --tests) names=${2:?--tests needs the names of test programs} && shift ;;
    -*) sed -n '5,13s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    *) kinds+=("$1") ;;
  esac
  shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=("${ALL[@]}")
for kind in "${kinds[@]}"; do
  [[ " ${ALL[*]} " == *" $kind "* ]] || { echo "test-kernel: there is no kind $kind; there are: ${ALL[*]}" >&2; exit 2; }
done
[ "$(uname -m)" = x86_64 ] || { echo "SKIPPED: test-kernel: Debian has this kernel for x86-64 only" >&2; exit 1; }
scripts/setup.sh build test kernel
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/mote-kernel.XXXXXX")
trap 'rm -rf "$work"' EXIT
cargo build --workspace --bins --tests >"$work/cargo" 2>&1 || { tail -n 20 "$work/cargo" >&2; exit 1; }
# shellcheck disable=SC2086 # names
scripts/run-tests.py --list $names | grep -E "^[^ ]+ [^ ]*/(${CRATES// /|}) " >"$work/tests" ||
  { echo "test-kernel: no test program has one of these names: $names" >&2; exit 2; }
[ -n "$names" ] || scripts/cluster.sh build kube-apiserver kubectl >"$work/cluster" 2>&1 || tail -n 3 "$work/cluster" >&2
# The tests find tools and registries in the same way as on this machine.
export -p | grep -vE '^declare -x (TMPDIR|PWD|OLDPWD|SHLVL)' >"$work/environment"
echo "export MOTE_BIN=${CARGO_TARGET_DIR:-$PWD/target}/debug/mote GUEST_TEST_SECONDS=${GUEST_TEST_SECONDS:-1800}" >>"$work/environment"

# run_kinds PROCESSOR KIND…: one machine after the other, each on this processor alone. The kernel and
# its programs are processes of this machine, and a system call between two processors takes longer.
run_kinds() {
  local processor=$1 kind
  shift
  for kind in "$@"; do
    # The kernel takes its memory from a file in /dev/shm, and keeps its name in the home folder.
    mkdir -p "$work/$kind"
    env -u TMPDIR HOME="$work/$kind" timeout --kill-after=10 "$KIND_SECONDS_MAX" taskset --cpu-list "$processor" \
      linux.uml mem="${memory}M" rootfstype=hostfs rootflags=/ ro loglevel=1 con=null con0=fd:0,fd:1 \
      eth0=slirp,,"$(command -v slirp-fullbolt)" init="$PWD/scripts/guests/user-mode.sh" guest.kind="$kind" guest.work="$work" \
      guest.repository="$PWD" </dev/null 2>"$work/$kind/errors" | stdbuf -oL tr -d '\r' | tee "$work/$kind/console" |
      sed -un '/^start of job/,/^end of job/p' | tee "$work/$kind/results" || true
    grep -q '^end of job' "$work/$kind/console" || {
      echo "FAILED  $kind: the machine ended before its job" | tee -a "$work/$kind/results"
      tail -n 20 "$work/$kind/console" "$work/$kind/errors" >&2
    }
  done
}

# As many machines run at the same time as there are processors.
mapfile -t processors < <(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | tr , '\n' |
  while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done)
for ((at = 0; at < ${#processors[@]}; at++)); do
  of_processor=()
  for ((next = at; next < ${#kinds[@]}; next += ${#processors[@]})); do of_processor+=("${kinds[next]}"); done
  [ ${#of_processor[@]} = 0 ] || run_kinds "${processors[at]}" "${of_processor[@]}" &
done
wait
all=$work/results
for kind in "${kinds[@]}"; do cat "$work/$kind/results"; done >"$all"
for kind in "${kinds[@]}"; do
  printf '\n%s: %d passed, %d failed, %d skipped\n' "$kind" "$(grep -c '^ok ' "$work/$kind/results")" \
    "$(grep -c '^FAILED ' "$work/$kind/results")" "$(grep -c '^SKIPPED ' "$work/$kind/results")"
  grep '^FAILED ' "$work/$kind/results" || true
done
count() { grep -c "^$1 " "$all" || true; }
printf '\n%d passed, %d failed, %d skipped\n' "$(count ok)" "$(count FAILED)" "$(count SKIPPED)"
[ "$(count FAILED)" = 0 ]
