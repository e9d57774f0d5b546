#!/usr/bin/env bash
# Measures the warm path and native servers in alternation; see bench/README.md for the output.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test bench
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

venv=.cache/bench-venv
if ! cmp -s bench/requirements.txt "$venv/installed.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r bench/requirements.txt
  cp bench/requirements.txt "$venv/installed.txt"
fi
if [ ! -d .cache/bench-node/node_modules/coap ]; then
  mkdir -p .cache/bench-node
  npm install --silent --no-audit --no-fund --prefix .cache/bench-node coap@1 >/dev/null
fi
cargo build --release -p mote -p mote-bench-peers
exec python3 bench/warm "$@"
