#!/usr/bin/env bash
# Measures how the rate of one function grows with the threads of the data path, and what as many
# nodes with one thread each reach on the same machine. Usage: scripts/bench-threads.sh [SECONDS] [ROUNDS]
#
# Half of the processors are for the threads, and the others are for the instances and the clients.
# Each round uses a fresh node for each number of threads, and 64 clients for each thread.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build test
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
seconds=${1:-4} rounds=${2:-3} clients=64
profile=${MOTE_BENCH_PROFILE:-release}
mote=${MOTE_BENCH_PROGRAM:-}
if [ -z "$mote" ]; then
  cargo build --profile "$profile" -p mote
  mote=${CARGO_TARGET_DIR:-target}/$profile/mote
fi
most=$(($(nproc) / 2))
[ "$most" -ge 1 ] || most=1

work=$(mktemp -d)
nodes=()
stop() {
  if [ ${#nodes[@]} -gt 0 ]; then { kill "${nodes[@]}"; wait "${nodes[@]}"; } 2>/dev/null || true; fi
  nodes=()
}
trap 'stop; rm -rf "$work"' EXIT

# up NUMBER THREADS: starts a node with this number of threads and as many instances of the
# function.
up() {
  local data=$work/node$1
  rm -rf "$data" && mkdir "$data" "$data/hello"
  echo "export default { fetch() { return new Response('hello'); } };" >"$data/hello/index.mjs"
  printf 'version = 1\nname = "hello"\nruntime = "node"\nentry = "index.mjs"\n[access]\nmode = "public"\n[scale]\nmin = %s\nmax = %s\n' \
    "$2" "$2" >"$data/hello/mote.toml"
  "$mote" up --data "$data" --http "127.0.0.1:$((16700 + $1))" --coap off --socket "$data/socket" --threads "$2" \
    --uid-base $((200000 + $1 * 10000)) "$data/hello" >"$data.log" 2>&1 &
  nodes+=($!)
  for ((tries = 0; tries < 200; tries++)); do
    ! [ "$("$mote" describe hello --node "$data/socket" -o json 2>/dev/null | grep -c '"pid"')" = "$2" ] || return 0
    sleep 0.1
  done
  cat "$data.log" >&2
  exit 1
}

# load NUMBER CLIENTS THREADS: prints the rate of the node with this number, and the processor share
# of the clients' busiest thread.
load() {
  "$mote" bench "http://127.0.0.1:$((16700 + $1))/hello" -c "$2" --threads "$3" --duration "${seconds}s" |
    sed -n 's/^rate *\([0-9.]*\).*/\1/p; s/.*busiest thread \([0-9]*\) %.*/\1/p' | paste -sd ' '
}

for ((round = 0; round < rounds; round++)); do
  for ((threads = 1; threads <= most; threads *= 2)); do
    up 0 "$threads"
    echo "threads $threads $(load 0 $((clients * threads)) $(((threads * 5 + 7) / 8)))"
    stop
  done
  for ((node = 0; node < most; node++)); do up "$node" 1; done
  runs=()
  for ((node = 0; node < most; node++)); do
    load "$node" "$clients" 1 >"$work/rate$node" &
    runs+=($!)
  done
  wait "${runs[@]}"
  echo "nodes $most $(cat "$work"/rate* | python3 -c '
import sys
rows = [[float(word) for word in line.split()] for line in sys.stdin]
print(sum(rate for rate, _ in rows), max(busy for _, busy in rows))')"
  rm -f "$work"/rate*
  stop
done >"$work/rows"
python3 - "$work/rows" <<'PYTHON'
import statistics
import sys

rows = {}
for line in open(sys.argv[1]):
    kind, count, rate, busy = line.split()
    rows.setdefault((kind, int(count)), []).append((float(rate), float(busy)))
one = statistics.median(rate for rate, _ in rows["threads", 1])
print(f"{'':<22}{'calls/s, median':>16}{'lowest':>10}{'highest':>10}{'to one thread':>15}{'busiest client':>16}")
for (kind, count), measured in rows.items():
    rates = [rate for rate, _ in measured]
    median = statistics.median(rates)
    name = f"{count} threads" if kind == "threads" else f"{count} nodes of one"
    busiest = max(busy for _, busy in measured)
    print(f"{name:<22}{median:>16.0f}{min(rates):>10.0f}{max(rates):>10.0f}{median / one:>15.2f}{busiest:>14.0f} %")
PYTHON
