#!/usr/bin/env bash
# Fuzzes every reader of foreign bytes: FUZZ_SECONDS (600) per target, two targets at a time, from
# the seeds in fuzz/seeds/ and what earlier runs found. One line per target; fails on a finding.
# Usage: scripts/fuzz.sh [target...]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh fuzz
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

seconds=${FUZZ_SECONDS:-600}
logs=$PWD/fuzz/artifacts
targets=("$@")
[ $# -gt 0 ] || targets=(http_head worker_frames coap_front coap_stream mqtt_packets manifest archive image_documents image_layer platform_apis platform_codecs)

# The binaries are built first, in one build, so that the runs below do not compile.
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
for target in "${targets[@]}"; do
  cargo +nightly fuzz build "$target" >"${TMPDIR:-/tmp}/mote-fuzz-build.$$" 2>&1 ||
    { cat "${TMPDIR:-/tmp}/mote-fuzz-build.$$" >&2; exit 1; }
done
rm -f "${TMPDIR:-/tmp}/mote-fuzz-build.$$"
binaries=${CARGO_TARGET_DIR:-$PWD/fuzz/target}/$host/release

run() {
  local target=$1 log=$logs/$1.log status=0
  mkdir -p "fuzz/corpus/$target" "$logs/$target"
  # The bundled SQLite defines a table twice; cargo-fuzz has the same exception.
  ASAN_OPTIONS=detect_odr_violation=0 "$binaries/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="$logs/$target/" \
    "fuzz/corpus/$target" "fuzz/seeds/$target" >"$log" 2>&1 || status=$?
  local executions findings
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n1)
  findings=$([ $status = 0 ] && echo 0 || echo 1)
  echo "fuzz: $target: ${executions:-0} executions in $seconds s, $findings findings"
  if [ "$status" != 0 ]; then
    tail -n 40 "$log" >&2
    return 1
  fi
}

failed=0
for ((at = 0; at < ${#targets[@]}; at += 2)); do
  pids=()
  for target in "${targets[@]:at:2}"; do
    run "$target" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
done
exit $failed
