#!/usr/bin/env bash
# Compares the throughput under other platforms' contracts with that under our own; see
# bench/README.md for the output.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/contracts.py "$@"
