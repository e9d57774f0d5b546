#!/usr/bin/env bash
# Measures the time from a save to the new code's first answer in `mote dev`; see bench/README.md.
# MOTE_BIN names a program that is already built.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${MOTE_BIN:-}" ]; then
  scripts/setup.sh build test
  export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
  cargo build --release -p mote
fi
exec python3 -B bench/dev.py "$@"
