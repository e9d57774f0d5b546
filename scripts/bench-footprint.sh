#!/usr/bin/env bash
# What a node costs while nothing happens: binary, memory, threads, time to readiness; alone and
# with 1,000 deployed functions that idle. Compares with the bars, writes bench/results/, exits 0
# whether they are met or not.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --release -p mote
mkdir -p bench/results
exec python3 -B bench/footprint.py "$target/release/mote" "bench/results/footprint-$(date -u +%Y-%m-%d).json"
