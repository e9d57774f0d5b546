#!/usr/bin/env bash
# Everything of the lab in small: builds what is measured and what it talks to, runs every experiment
# and writes the page. Usage: scripts/lab.sh [PROFILE]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build
scripts/lab-setup.sh twins store
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote -p mote-bench-peers --bin mote --bin bench_static
./lab run --all --profile "${1:-smoke}"
./lab report
