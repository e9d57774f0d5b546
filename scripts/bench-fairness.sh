#!/usr/bin/env bash
# What one client or function at its worst costs others; see bench/README.md for what is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/fairness.py "$@"
