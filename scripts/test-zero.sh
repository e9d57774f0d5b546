#!/usr/bin/env bash
# A million calls to functions that go to zero, at least 20,000 of which meet a stop within a
# millisecond; 35 minutes at most.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --profile quick -p mote
export MOTE_BIN=$target/quick/mote MOTE_LONG=1
exec cargo test -p mote-tests --test scale_to_zero -- --nocapture
