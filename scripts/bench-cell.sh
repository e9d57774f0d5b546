#!/usr/bin/env bash
# Measures a cell in a pod against the same node outside of Kubernetes; see bench/README.md for the
# output. Needs root. MOTE_BIN names a mote other than that of the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
if [ -n "${MOTE_BIN:-}" ]; then
  bin=$(dirname "$(realpath "$MOTE_BIN")")
else
  make build
  cargo build --release -p mote-cluster
  bin=$target/release
  export MOTE_BIN=$bin/mote
fi
scripts/cluster.sh build
scripts/image.sh cell
exec python3 -B bench/cell.py --bin "$bin" "$@"
