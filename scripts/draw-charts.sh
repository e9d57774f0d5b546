#!/usr/bin/env bash
# Draws the charts of README.md from bench/results/ and bench/reference/ into docs/images/.
# Usage: scripts/draw-charts.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 -B bench/charts.py "$@"
