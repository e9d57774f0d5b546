#!/usr/bin/env bash
# Runs the long tests: the attack battery, 200 swaps of revisions, the neighbours, the death of
# workers and hostile workers at full length, accepted invocations under 200 kills and 100 power
# cuts, 50 restarts of a service between two versions under load, and a minute of noise for each
# parser. Needs root and an otherwise idle machine; takes about three quarters of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test languages
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}

failed=()
suite() { # name, command…
  printf '\n== %s\n' "$1"
  "${@:2}" || failed+=("$1")
}

printf '\n== build of the binary under test\n'
cargo build --profile quick -p mote -p mote-wasm
export MOTE_BIN=$target/quick/mote MOTE_LONG=1

printf '\n== build of another version\n'
PROFILE=quick scripts/build-version.sh 0.1.1 "$target/other-version"

suite "collector" scripts/build-collector.sh
suite "traces" cargo test -p mote-tests --test e2e -- --nocapture traces::
suite "fuzz" env FUZZ_SECONDS=60 scripts/fuzz.sh
suite "attack battery" cargo test -p mote-sandbox --test escape
[ ${#failed[@]} -eq 0 ] || printf '\nFAILED so far: %s\n' "${failed[*]}"
suite "other languages" cargo test -p mote-tests --test e2e -- --nocapture applications::servers_in
suite "components in other languages" cargo test -p mote-tests --test e2e -- --nocapture wasm::components_in
suite "modules that the specification calls invalid" cargo test -p mote-tests --features wasm-specification --test e2e -- --nocapture wasm_specification::
suite "rollout" cargo test -p mote-tests --test e2e -- --nocapture rollout::
suite "neighbours" cargo test -p mote-tests --test e2e -- --nocapture neighbours::
suite "hostile workers" cargo test -p mote-tests --test e2e -- --nocapture hostile_workers::
suite "MQTT" cargo test -p mote-tests --test e2e -- --nocapture mqtt_loss::
suite "death of workers" cargo test -p mote-tests --test e2e -- --nocapture worker_death::
suite "accepted invocations under kills" cargo test -p mote-tests --test e2e -- --nocapture invocations::nothing_that
suite "restarts between two versions" env MOTE_OTHER_BIN="$target/other-version/mote" cargo test -p mote-tests --test e2e -- --nocapture service_manager::
suite "power cuts" cargo test -p mote-tests --test e2e -- --nocapture power_cut::
[ ${#failed[@]} -eq 0 ]
