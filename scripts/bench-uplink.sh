#!/usr/bin/env bash
# Counts what leaves a site with and without a function on the node; see bench/README.md. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build bench
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
exec python3 -B bench/uplink.py "$@"
