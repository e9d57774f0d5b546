#!/usr/bin/env bash
# Half an hour of mixed calls against one node, with its memory, descriptors and threads recorded;
# prints how they moved. Usage: scripts/soak.sh [MINUTES]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --release -p mote
mkdir -p bench/results
exec python3 -B bench/soak.py "$target/release/mote" "${1:-30}" "bench/results/soak-$(date -u +%Y-%m-%d).json"
