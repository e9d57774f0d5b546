#!/usr/bin/env bash
# Runs the scaling experiments of published studies at full length on a real node: about six hours,
# on an otherwise idle machine. Usage: scripts/experiments.sh [NAME] (for instance native_scaling)
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --profile quick -p mote
export MOTE_BIN=$target/quick/mote MOTE_LONG=1
exec cargo test -p mote-tests --test e2e -- --nocapture "experiments::" "$@"
