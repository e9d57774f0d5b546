#!/usr/bin/env bash
# Measures the processor time and the wake-ups of nodes that do nothing; see bench/README.md for the
# output.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/idle.py "$@"
