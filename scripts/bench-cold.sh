#!/usr/bin/env bash
# Cold starts beside crun's, in alternation; see bench/README.md for what is printed. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test bench cold
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
# crun refuses a tree of version 2 beside version 1: hidden in a mount namespace of our own.
exec unshare --mount sh -c '
  if [ -d /sys/fs/cgroup/unified ]; then umount -l /sys/fs/cgroup/unified; fi
  exec python3 -B bench/cold.py "$@"' bench-cold "$@"
