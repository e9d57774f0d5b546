#!/usr/bin/env bash
# Sends 10,000 messages of each kind through Mosquitto while node, broker and network fail, and
# counts what is lost. Takes some minutes. Usage: scripts/test-mqtt.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --profile quick -p mote
export MOTE_BIN=$target/quick/mote MOTE_LONG=1
exec cargo test -p mote-tests --test e2e -- --nocapture mqtt_loss::
