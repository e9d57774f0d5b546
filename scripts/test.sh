#!/usr/bin/env bash
# Every test that needs no long run: both shims, the examples, Rust, and end to end.
#
# All suites run even when one fails; the exit code says whether any did. The end-to-end tests come
# last, so that the last lines are a test runner's own.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}

failed=()
suite() { # name, command…
  printf '\n== %s\n' "$1"
  "${@:2}" || failed+=("$1")
}
in_folder() { (cd "$1" && shift && "$@"); }

printf '\n== build of the binary under test\n'
cargo build --profile quick -p mote
export MOTE_BIN=$target/quick/mote

suite "Python shim" python3 -B -m unittest discover -s shims/python
suite "Go worker" python3 -B -m unittest discover -s shims/go
suite "Node shim" node --test shims/node/*.test.mjs
for folder in examples/*/; do
  if compgen -G "${folder}test_*.py" >/dev/null; then
    suite "$folder" in_folder "$folder" python3 -B -m unittest
  fi
done
suite "Rust" cargo test --workspace --exclude mote-tests --no-fail-fast
[ ${#failed[@]} -eq 0 ] || printf '\nFAILED so far: %s\n' "${failed[*]}"
suite "end to end" cargo test -p mote-tests --tests --no-fail-fast
[ ${#failed[@]} -eq 0 ]
