#!/usr/bin/env bash
# Checks licences, sources, duplicate versions and advisories of the crates in mote against
# deny.toml. The first run builds cargo-deny into .cache/tools, which takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO_DENY=0.20.2

scripts/setup.sh build
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
tools=$PWD/.cache/tools
if [ "$("$tools/bin/cargo-deny" --version 2>/dev/null)" != "cargo-deny $CARGO_DENY" ]; then
  echo "deny: building cargo-deny $CARGO_DENY into .cache/tools" >&2
  CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --root "$tools" "cargo-deny@$CARGO_DENY"
  rm -rf "$tools/build"
fi
"$tools/bin/cargo-deny" --all-features check licenses sources bans
# The advisories are in a repository that some networks cannot reach.
if "$tools/bin/cargo-deny" fetch db 2>/dev/null; then
  "$tools/bin/cargo-deny" check advisories
else
  echo "SKIPPED: advisories: the database of RustSec cannot be fetched from here"
fi
