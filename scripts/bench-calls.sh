#!/usr/bin/env bash
# Measures calls between functions; see bench/README.md for the output.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/calls.py "$@"
