#!/usr/bin/env bash
# Feeds noise to every parser of foreign bytes. Usage: scripts/fuzz.sh [SECONDS_EACH [TARGET…]]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
if [ ! -d fuzz ]; then
  echo "no fuzz targets yet (fuzz/ is not there)" >&2
  exit 1
fi
scripts/setup.sh fuzz
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
mapfile -t targets < <(if [ $# -gt 0 ]; then printf '%s\n' "$@"; else cargo +nightly fuzz list; fi)
failed=()
for target in "${targets[@]}"; do
  printf '\n== fuzz %s for %s s\n' "$target" "$seconds"
  seeds=()
  # New inputs go into the first folder, the checked-in ones are only read.
  mkdir -p "fuzz/corpus/$target"
  if [ -d "fuzz/seeds/$target" ]; then seeds=("fuzz/seeds/$target"); fi
  cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "${seeds[@]}" -- \
    -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -print_final_stats=1 || failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
