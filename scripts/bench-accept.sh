#!/usr/bin/env bash
# Measures how fast a node accepts invocations with every 202 synced, compared with the disk's own
# fdatasync rate and with NATS JetStream under the same promise. Also measures a node with its
# journal in JetStream. Writes bench/results/.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
cargo build --release -p mote

venv=.cache/accept-venv
if ! cmp -s bench/accept-requirements.txt "$venv/installed.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r bench/accept-requirements.txt
  cp bench/accept-requirements.txt "$venv/installed.txt"
fi
server=$(scripts/nats-server.sh)
mkdir -p bench/results
exec "$venv/bin/python" -B bench/accept.py "$target/release/mote" "$server" \
  "bench/results/accept-$(date -u +%Y-%m-%dT%H%M%SZ).json"
