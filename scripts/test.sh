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
trap 'rm -f "$log" "$log.kubernetes"' EXIT
suite() { # name, command…
  printf '\n== %s\n' "$1"
  "${@:2}" 2>&1 | tee -a "$log" || failed+=("$1")
}
in_folder() { (cd "$1" && shift && "$@"); }

# What the tests need of Kubernetes is built once, while everything else is compiled. Without it,
# they are skipped. Whole clusters are for make test-cluster.
(
  if [ "$(id -u)" = 0 ] && command -v go >/dev/null; then
    scripts/cluster.sh build kube-apiserver kubectl >"$log.kubernetes" 2>&1 || cat "$log.kubernetes"
  fi
) &
kubernetes=$!

printf '\n== build of the binary under test\n'
cargo build --profile quick -p mote -p mote-chain -p mote-bench-peers --bin mote --bin mote-chain --bin bench_static
# By itself: together with mote, the features of shared dependencies would grow the binary of mote.
cargo build --profile quick -p mote-broker
cargo build --profile quick -p mote-nats
cargo build --profile quick -p mote-cluster
cargo build --profile quick -p mote-pod
export MOTE_BIN=$target/quick/mote

suite "Python shim" python3 -B -m unittest discover -s shims/python
suite "standalone server" python3 -B -m unittest discover -s shims/standalone
suite "Go worker" python3 -B -m unittest discover -s shims/go
suite "Node shim" node --test shims/node/*.test.mjs
for folder in examples/*/; do
  if compgen -G "${folder}test_*.py" >/dev/null; then
    suite "$folder" in_folder "$folder" python3 -B -m unittest
  fi
done
if scripts/lab-setup.sh twins; then
  export MOTE_BENCH_PROFILE=quick CARGO_TARGET_DIR=$target
  suite "lab" in_folder bench ../.cache/lab-venv/bin/python -m pytest -q -rs
else
  echo "SKIPPED: lab: scripts/lab-setup.sh could not set it up" | tee -a "$log"
fi
# What only one program needs of Kubernetes is compiled once, with that program.
suite "Rust" cargo test --workspace --exclude mote-tests --exclude mote-cluster --no-fail-fast
suite "Rust, cluster" cargo test --profile quick -p mote-cluster --no-fail-fast
wait "$kubernetes" || true
suite "ordinary user" scripts/test-as-user.sh
suite "end to end" cargo test -p mote-tests --tests --no-fail-fast
[ ${#failed[@]} -eq 0 ] || printf '\nFAILED: %s\n' "${failed[*]}"
echo
python3 -B scripts/test-summary.py "$log"
[ ${#failed[@]} -eq 0 ]
