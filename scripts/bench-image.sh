#!/usr/bin/env bash
# Measures first answers of an image beside the bare program, crun and Docker; see bench/README.md.
# Exits with 1 if a bar is missed. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test bench cold docker
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cargo build --release -p mote
# crun refuses a hierarchy of version 2 next to version 1, so a private mount namespace hides it.
exec unshare --mount sh -c '
  if [ -d /sys/fs/cgroup/unified ]; then umount -l /sys/fs/cgroup/unified; fi
  exec python3 -B bench/image.py "$@"' bench-image "$@"
