#!/usr/bin/env bash
# Measures an idle node: binary, memory, threads and time to readiness, both alone and with 1,000
# deployed idle functions. Compares the results with the bars, writes bench/results/, and exits with
# 0 whether they are met or not.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --release -p mote
mkdir -p bench/results
exec python3 -B bench/footprint.py "$target/release/mote" "bench/results/footprint-$(date -u +%Y-%m-%d).json"
