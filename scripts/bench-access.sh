#!/usr/bin/env bash
# Measures what the checks of requests cost on the warm path: a function with a check compared with a
# public one of the same node, in turns. Usage: scripts/bench-access.sh [SECONDS] [ROUNDS]
#
# Even without any check, the function that is deployed second is up to 4 % slower than the first.
# Each round therefore has a fresh node for each order of the two, and two public functions are
# compared, too.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
seconds=${1:-12} rounds=${2:-2} clients=64
profile=${MOTE_BENCH_PROFILE:-release}
# An existing program, such as one from the packages, is measured without a build.
mote=${MOTE_BENCH_PROGRAM:-}
if [ -z "$mote" ]; then
  cargo build --profile "$profile" -p mote
  mote=${CARGO_TARGET_DIR:-target}/$profile/mote
fi

work=$(mktemp -d)
node=''
stop() {
  [ -z "$node" ] || { kill "$node" && wait "$node"; } 2>/dev/null || true
  node=''
}
trap 'stop; rm -rf "$work"' EXIT

# function NAME TEXT: a function with the manifest's usual keys and this text.
function_of() {
  mkdir -p "$work/$1"
  echo "export default { fetch() { return new Response('hello'); } };" >"$work/$1/index.mjs"
  printf 'version = 1\nname = "%s"\nruntime = "node"\nentry = "index.mjs"\n%s\n' "$1" "$2" >"$work/$1/mote.toml"
}
public=$'[access]\nmode = "public"\n'
checks=(public local key rate caller_rate calls_at_once caller_calls_at_once)
manifest_of() {
  case $1 in
    public) echo "$public" ;;
    local | key) printf '[access]\nmode = "%s"\n' "$1" ;;
    *rate) printf '%s[limits]\n%s = "1000000/s"\n' "$public" "$1" ;;
    *) printf '%s[limits]\n%s = 1000\n' "$public" "$1" ;;
  esac
}
answers() { [ "$(curl -s -o /dev/null -w '%{http_code}' "${fields[@]}" "$1")" = 200 ]; }

# ratio CHECK FIRST SECOND: deploys in this order and prints the ratio of the rates.
ratio() {
  local data log url=http://127.0.0.1:16683
  data=$(mktemp -d "$work/node.XXXX") log=$data.log
  fields=()
  "$mote" up --data "$data" --http "${url#http://}" --coap off --socket "$data/socket" "$work/$2" "$work/$3" >"$log" 2>&1 &
  node=$!
  for ((tries = 0; tries < 100; tries++)); do
    ! grep -q "^$3@1 is live" "$log" || break
    sleep 0.1
  done
  if [ "$1" = key ]; then
    fields=(-H "x-api-key: $("$mote" key create bench --node "$data/socket" -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["key"])')")
  fi
  if ! answers "$url/checked" || ! answers "$url/plain"; then
    cat "$log" >&2
    exit 1
  fi
  "$mote" bench "$url/checked" --baseline "$url/plain" -c "$clients" --duration "${seconds}s" "${fields[@]}" |
    sed -n 's/^ratio *\([0-9.]*\),.*/\1/p'
  stop
}

function_of plain "$public"
printf '%-22s%s\n' check 'rate with it / without it, lowest, median, highest'
for check in "${checks[@]}"; do
  function_of checked "$(manifest_of "$check")"
  # Each part of a pipe needs its own trap.
  { trap stop EXIT; for ((round = 0; round < rounds; round++)); do
    ratio "$check" plain checked
    ratio "$check" checked plain
  done; } | sort -n | python3 -c '
import statistics, sys
ratios = [float(line) for line in sys.stdin]
print(f"{sys.argv[1]:<22}{ratios[0]:.3f} {statistics.median(ratios):.3f} {ratios[-1]:.3f}")' "$check"
done
