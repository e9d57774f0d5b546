#!/usr/bin/env bash
# Measures what each part of the design brings; see bench/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test bench
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/ablation.py "$@"
