#!/usr/bin/env bash
# Makes mixed calls to one node for half an hour, records its memory, descriptors and threads, and
# prints how they changed. Usage: scripts/soak.sh [MINUTES]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --release -p mote
mkdir -p bench/results
exec python3 -B bench/soak.py "$target/release/mote" "${1:-30}" "bench/results/soak-$(date -u +%Y-%m-%d).json"
