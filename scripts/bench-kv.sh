#!/usr/bin/env bash
# Measures the state of functions; see bench/README.md for the output.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
# To compare with a NATS server as well: scripts/bench-kv.sh --nats "$(scripts/nats-server.sh)"
exec python3 -B bench/kv.py "$@"
