#!/usr/bin/env bash
# Compares our sandbox with bubblewrap, crun, Docker and gVisor; see bench/README.md. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
GVISOR=v0.0.0-20260224225140-573d5e7127a8
scripts/setup.sh build demo bench cold docker
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
if ! command -v bwrap >/dev/null; then apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null; fi
export RUNSC=${RUNSC:-$PWD/.cache/gvisor/runsc}
if [ ! -x "$RUNSC" ] && command -v go >/dev/null; then
  mkdir -p .cache/gvisor
  # The comparison names what it leaves out.
  (cd /tmp && GOBIN=$(dirname "$RUNSC") CGO_ENABLED=0 go install -ldflags "-s -w" "gvisor.dev/gvisor/runsc@$GVISOR") || true
fi
cargo build --release -p mote
# crun refuses a hierarchy of version 2 next to version 1, so a private mount namespace hides it.
exec unshare --mount sh -c '
  if [ -d /sys/fs/cgroup/unified ]; then umount -l /sys/fs/cgroup/unified; fi
  exec python3 -B bench/isolation.py "$@"' bench-isolation "$@"
