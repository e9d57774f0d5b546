#!/usr/bin/env bash
# Checks the prose of the project: spelling (typos, _typos.toml) and the project's own list of phrases
# to avoid (Vale, docs/.vale). Installs both tools when they are missing; Vale is built with Go.
# Usage: scripts/lint-prose.sh
set -euo pipefail
cd "$(dirname "$0")/.."

TYPOS=1.52.0
VALE=3.21.0
# The folder is outside the working tree, so that a new clone finds the tools again.
tools=${XDG_CACHE_HOME:-$HOME/.cache}/mote-lint
typos=$tools/typos-$TYPOS/bin/typos
vale=$tools/vale-$VALE/vale

say() { echo "lint-prose: $*" >&2; }

if [ ! -x "$typos" ]; then
  say "installing typos $TYPOS"
  python3 -m venv "$tools/typos-$TYPOS"
  "$tools/typos-$TYPOS/bin/pip" install --quiet --disable-pip-version-check "typos==$TYPOS"
fi
if [ ! -x "$vale" ] && command -v go >/dev/null; then
  say "building Vale $VALE, which takes a few minutes"
  GOBIN=$tools/vale-$VALE go install "github.com/vale-cli/vale/v3/cmd/vale@v$VALE" 2>&1 |
    grep -v '^go: downloading' >&2 || true
fi

failed=0
"$typos" --format brief || failed=1
if [ ! -x "$vale" ]; then
  echo "SKIPPED: phrases to avoid: Vale could not be built, which needs Go"
  exit "$failed"
fi

# The golden file has the messages of the command line, and docs/reference/errors.md has the
# catalogue of errors that the code generates.
mapfile -t prose < <(git ls-files '*.md')
prose+=(crates/cli/mote/tests/golden/cli_errors.txt)

python3 -B scripts/check-prose-rules.py "$vale" || failed=1
"$vale" --output=line "${prose[@]}" || failed=1
exit "$failed"
