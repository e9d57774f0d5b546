#!/usr/bin/env bash
# Throughput under other platforms' contracts beside our own; see bench/README.md for what is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/contracts.py "$@"
