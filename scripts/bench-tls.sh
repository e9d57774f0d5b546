#!/usr/bin/env bash
# Compares HTTPS of a node with nginx in front of the same node; see bench/README.md.
# Usage: scripts/bench-tls.sh [SECONDS] [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test tls
export PATH="$PATH:/usr/sbin:${CARGO_HOME:-$HOME/.cargo}/bin"
profile=${MOTE_BENCH_PROFILE:-release}
cargo build --profile "$profile" -p mote
exec python3 -B bench/tls.py "${CARGO_TARGET_DIR:-target}/$profile/mote" "$@"
