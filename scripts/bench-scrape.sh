#!/usr/bin/env bash
# Measures what collecting metrics costs; see bench/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build demo bench
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/scrape.py "$@"
