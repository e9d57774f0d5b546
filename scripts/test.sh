#!/usr/bin/env bash
# Runs every test that needs no long run: both shims, the examples, Rust, and end to end.
#
# All suites run even when one fails; the exit code reports whether any did. The last lines add up
# the counts of the runners; a test that cannot run on this machine is named there and counts as
# skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}

failed=()
log=$(mktemp)
trap 'rm -f "$log" "$log.kubernetes" "$log.built"' EXIT
# A suite writes to a file and not to a pipe, because a process that a test leaves behind would hold
# the pipe, and everything would wait for that process.
suite() { # name, command…
  local part pid
  printf '\n== %s\n' "$1"
  null_device
  part=$(mktemp)
  "${@:2}" >"$part" 2>&1 &
  pid=$!
  tail -n +1 -f --pid="$pid" "$part"
  wait "$pid" || failed+=("$1")
  cat "$part" >>"$log"
  rm -f "$part"
}
# Functions and ordinary users must be able to write to /dev/null. If a program that runs as root
# has replaced it or restricted its mode, dozens of tests fail without naming the cause. This
# function therefore names the cause, and repairs it.
null_device() {
  local now
  now=$(stat -c '%F, mode %a, %t:%T' /dev/null)
  [ "$now" != "character special file, mode 666, 1:3" ] || return 0
  echo "/dev/null was wrong before this suite: $now"
  [ "$(id -u)" = 0 ] || return 0
  [ -c /dev/null ] || { rm -f /dev/null && mknod /dev/null c 1 3; }
  chmod 666 /dev/null
}

# The parts of Kubernetes that the tests need are built once, while other tests run. Without these
# parts, the tests are skipped. make test-cluster tests whole clusters.
export MOTE_KUBERNETES_BUILT=$log.built
(
  if [ "$(id -u)" = 0 ] && command -v go >/dev/null; then
    scripts/cluster.sh build kube-apiserver kubectl >"$log.kubernetes" 2>&1 || cat "$log.kubernetes"
  fi
  touch "$MOTE_KUBERNETES_BUILT"
) &
kubernetes=$!

printf '\n== build\n'
# There is one build with one profile, in which programs and tests share everything (decision 0052).
cargo build --workspace --bins --tests
export MOTE_BIN=$target/debug/mote

# The suites of other languages run beside the programs of Rust, because all of them wait much.
beside=()
add() { beside+=(--suite "$1" "$2"); } # name, command of the shell
add "Python shim" "python3 -B -m unittest discover -s shims/python"
add "standalone server" "python3 -B -m unittest discover -s shims/standalone"
add "Rust library" "MOTE_RUST_TARGET=$target/rust-function python3 -B -m unittest discover -s shims/rust"
add "Go worker" "python3 -B -m unittest discover -s shims/go"
add "Node shim" "node --test shims/node/*.test.mjs"
modules=$PWD/.cache/test-node/node_modules
for folder in "$modules"/@oven/bun-linux-*/bin "$modules"/@deno/linux-*; do
  [ ! -d "$folder" ] || PATH=$PATH:$folder
done
for name in bun deno; do
  if command -v $name >/dev/null; then
    add "Node shim on $name" "MOTE_INTERPRETER=$name node --test shims/node/*.test.mjs"
  else
    echo "SKIPPED: Node shim on $name: not installed" | tee -a "$log"
  fi
done
for folder in examples/*/; do
  if compgen -G "${folder}test_*.py" >/dev/null; then
    add "$folder" "cd $folder && python3 -B -m unittest"
  fi
done
if scripts/lab-setup.sh twins; then
  add "lab" "cd bench && MOTE_BENCH_PROFILE=debug CARGO_TARGET_DIR=$target ../.cache/lab-venv/bin/python -m pytest -q -rs"
else
  echo "SKIPPED: lab: scripts/lab-setup.sh could not set it up" | tee -a "$log"
fi
suite "tests" scripts/run-tests.py "${beside[@]}"
suite "ordinary user" scripts/test-as-user.sh
wait "$kubernetes" || true
[ ${#failed[@]} -eq 0 ] || printf '\nFAILED: %s\n' "${failed[*]}"
echo
python3 -B scripts/test-summary.py "$log"
[ ${#failed[@]} -eq 0 ]
