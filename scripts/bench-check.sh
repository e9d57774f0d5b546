#!/usr/bin/env bash
# Compares `mote bench` with wrk, hey and libcoap's client on one function; see bench/README.md.
# Usage: scripts/bench-check.sh [SECONDS] [ROUNDS] [CLIENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test check
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
profile=${MOTE_BENCH_PROFILE:-release}
cargo build --profile "$profile" -p mote
mote=${CARGO_TARGET_DIR:-target}/$profile/mote
exec python3 bench/check.py "$mote" "$@"
