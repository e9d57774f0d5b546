#!/usr/bin/env bash
# Every test that needs no long run: Rust, both shims, the examples.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

cargo test --workspace
python3 -m unittest discover -s shims/python
node --test shims/node
(cd examples/thermo-python && python3 -B -m unittest)
