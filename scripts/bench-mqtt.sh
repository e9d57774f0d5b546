#!/usr/bin/env bash
# Compares a function behind an MQTT trigger with a native client of mqtt.js; see bench/mqtt.py.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/mqtt.py "$@"
