#!/usr/bin/env bash
# Measures the processor time of whole starts, from the call to the end of the clean-up; see
# bench/README.md for the output. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/start_cycle.py "$@"
