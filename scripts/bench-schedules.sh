#!/usr/bin/env bash
# Measures 10,000 schedules at rest: memory, CPU over 30 s, and time to readiness, compared with the
# same functions without schedules. Writes bench/results/, and exits with 0 whether the bars are met
# or not.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --release -p mote
mkdir -p bench/results
exec python3 -B bench/schedules.py "$target/release/mote" "bench/results/schedules-$(date -u +%Y-%m-%dT%H%M%SZ).json"
