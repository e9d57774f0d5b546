#!/usr/bin/env bash
# Runs the whole lab in a small form: builds the measured programs and their servers, runs every
# experiment and writes the page. Usage: scripts/lab.sh [PROFILE]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build
scripts/lab-setup.sh twins store
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote -p mote-bench-peers --bin mote --bin bench_static
./lab run --all --profile "${1:-smoke}"
./lab report
