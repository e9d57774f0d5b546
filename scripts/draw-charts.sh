#!/usr/bin/env bash
# The charts of README.md, drawn again from bench/results/ and bench/reference/ into docs/images/.
# Usage: scripts/draw-charts.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 -B bench/charts.py "$@"
