#!/usr/bin/env bash
# Makes the recording on the front page: runs `make demo` in a terminal of its own and writes its
# output to docs/images/demo.cast and docs/images/demo.svg. Everything is installed and built before,
# so that the recording shows no compiler.
# Usage: scripts/record-demo.sh [--draw]   (--draw draws docs/images/demo.cast again and runs nothing)
set -euo pipefail
cd "$(dirname "$0")/.."
cast=docs/images/demo.cast
if [ "${1:-}" != --draw ]; then
  scripts/setup.sh build demo
  export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
  scripts/demo.sh # builds, and shows that the demo works here
  new=$(mktemp)
  trap 'rm -f "$new"' EXIT
  python3 -B scripts/recording.py record "$new" -- sh -c 'printf "\033[32m$\033[0m make demo\r\n" && exec make --silent demo'
  mv "$new" "$cast"
  chmod 644 "$cast"
fi
python3 -B scripts/recording.py draw "$cast" docs/images/demo.svg make demo
