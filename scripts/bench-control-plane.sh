#!/usr/bin/env bash
# Measures how much mote loads an API server, and what its controller needs, with 10 cells and 1,000
# functions; see bench/README.md for the output. MOTE_BIN names a mote other than that of the
# release build. APISERVER_STORE=kine uses K3s's store instead of etcd.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
if [ -n "${MOTE_BIN:-}" ]; then
  bin=$(dirname "$(realpath "$MOTE_BIN")")
else
  make build
  cargo build --release -p mote-cluster
  bin=$target/release
fi
scripts/cluster.sh build kube-apiserver kubectl
[ "${APISERVER_STORE:-etcd}" = etcd ] || scripts/cluster.sh build "$APISERVER_STORE"
exec python3 -B bench/control_plane.py --bin "$bin" "$@"
