#!/usr/bin/env bash
# Measures how fast a node accepts invocations with every 202 synced, next to the disk's own rate of
# fdatasync and to NATS JetStream with the same promise. Writes bench/results/.
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
# Debian's server is older than the setting that makes an acknowledgement durable.
version=v2.15.2
server=.cache/nats-server-$version
if [ ! -x "$server" ]; then
  command -v go >/dev/null || { echo "bench-accept: needs Go to build nats-server" >&2; exit 1; }
  GOBIN=$PWD/.cache/nats-bin GOFLAGS=-mod=mod go install "github.com/nats-io/nats-server/v2@$version"
  mv .cache/nats-bin/nats-server "$server"
fi
mkdir -p bench/results
exec "$venv/bin/python" -B bench/accept.py "$target/release/mote" "$server" \
  "bench/results/accept-$(date -u +%Y-%m-%dT%H%M%SZ).json"
