#!/usr/bin/env bash
# Measures how long a function takes from one instance to ten under load, in one cell, across two
# cells, and as a plain Deployment with a HorizontalPodAutoscaler; see bench/README.md for the output.
# Needs root, and the images of scripts/image.sh. CARGO_TARGET_DIR and MOTE_BENCH_PROFILE name the
# build.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/lab-setup.sh
scripts/cluster.sh build
scripts/cluster.sh build metrics-server
export PYTHONPATH=$PWD/bench
exec .cache/lab-venv/bin/python -B bench/cluster_scale.py "$@"
