#!/usr/bin/env bash
# Draws a flame graph of the node while a function is called over persistent connections. It shows
# how the data path uses processor time, including the kernel. Writes target/profile/warm-CONNECTIONS.svg and prints
# the shares of kernel, node and library.
# Usage: scripts/profile-warm.sh [CONNECTIONS] [FUNCTION] [BINARY]   (default: 64 hello-node)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
connections=${1:-64} function=${2:-hello-node} binary=${3:-}

scripts/setup.sh build test bench profile
command -v inferno-flamegraph >/dev/null || cargo install --quiet --locked inferno
if [ -z "$binary" ]; then
  # The release binary is stripped, so a binary with symbols is built into a separate folder.
  CARGO_PROFILE_RELEASE_STRIP=false cargo build --quiet --release -p mote --target-dir target/profile
  binary=target/profile/release/mote
fi

folder=$(mktemp -d)
chmod 755 "$folder"
"$binary" up --data "$folder/data" --socket "$folder/s" --http 127.0.0.1:0 --coap off >"$folder/log" 2>&1 &
node=$!
trap 'kill $node; wait $node 2>/dev/null || true; rm -rf "$folder"' EXIT
url=''
for _ in $(seq 200); do
  url=$(sed -n 's/^ *http *\(http:[^ ]*\)$/\1/p' "$folder/log" | head -n1)
  [ -n "$url" ] && break
  sleep 0.05
done
[ -n "$url" ] || { cat "$folder/log" >&2; exit 1; }
MOTE_SOCKET=$folder/s "$binary" deploy "examples/$function" >/dev/null 2>&1

wrk -t1 -c"$connections" -d2s "$url/$function" >/dev/null # compilers and caches
wrk -t1 -c"$connections" -d8s --latency "$url/$function" >"$folder/wrk" &
load=$!
perf record --quiet -o "$folder/perf" -t "$node" -F 2000 -g -- sleep 5
wait $load
mkdir -p target/profile
perf script -i "$folder/perf" 2>/dev/null | inferno-collapse-perf 2>/dev/null >"$folder/stacks"
inferno-flamegraph --title "mote, $function, $connections connections" --minwidth 0.3 \
  <"$folder/stacks" >"target/profile/warm-$connections.svg"
grep -E 'Requests/sec|^ +(50|99)%' "$folder/wrk"
perf report -i "$folder/perf" --no-children -g none --sort dso 2>/dev/null | grep -v '^#' | head -n 5
echo "written to target/profile/warm-$connections.svg"
