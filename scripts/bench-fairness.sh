#!/usr/bin/env bash
# Measures how much one client or function slows others down in the worst case; see bench/README.md
# for the output.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/fairness.py "$@"
