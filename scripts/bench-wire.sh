#!/usr/bin/env bash
# Counts the bytes and packets of one call over each way to a function; see bench/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test bench
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 bench/wire.py "$@"
