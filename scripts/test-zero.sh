#!/usr/bin/env bash
# Makes a million calls to functions that scale to zero, of which at least 20,000 arrive within a
# millisecond of a stop; takes 35 minutes at most.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --profile quick -p mote
export MOTE_BIN=$target/quick/mote MOTE_LONG=1
exec cargo test -p mote-tests --test e2e -- --nocapture scale_to_zero::
