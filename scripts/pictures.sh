#!/usr/bin/env bash
# Takes the pictures of the dashboard in docs/pictures: starts a node, deploys the functions of
# dashboard/e2e/pictures, calls them for two minutes, and drives Chromium.
# `pictures.sh --all DIR` takes every view at three widths in two themes, to look at.
# MOTE_BIN is the program; the default is a debug build. Needs Chromium, Node.js and pngquant.
set -euo pipefail
cd "$(dirname "$0")/.."

mote=${MOTE_BIN:-target/debug/mote}
all=()
out=$(mktemp -d)
if [ "${1:-}" = --all ]; then
  all=(--all)
  out=$2
fi
data=$(mktemp -d -t mote-XXXXXX)
node=
finish() {
  if [ -n "$node" ]; then
    kill "$node" 2>/dev/null || true
    wait "$node" 2>/dev/null || true
  fi
  rm -rf "$data"
}
trap finish EXIT

export MOTE_SOCKET=$data/socket
"$mote" up --data "$data/data" --socket "$MOTE_SOCKET" --http 127.0.0.1:0 --coap 127.0.0.1:0 \
  --trace 100% ${MOTE_UID_BASE:+--uid-base "$MOTE_UID_BASE"} >"$data/log" 2>&1 &
node=$!
for _ in $(seq 100); do
  grep -q '^  http' "$data/log" && break
  sleep 0.1
done
http=$(sed -n 's/^  http *//p' "$data/log")
printf secret | "$mote" secret set shop-api-key
for function in dashboard/e2e/pictures/*; do
  "$mote" deploy "$function" >/dev/null
done
# A second revision of a function receives a part of the traffic.
sed 's/hello/welcome/' dashboard/e2e/pictures/greet.py >"$data/greet.py"
"$mote" deploy --no-traffic "$data/greet.py" >/dev/null
"$mote" traffic greet 1=80 2=20 >/dev/null || true

url=$("$mote" dashboard -q -o name)
node dashboard/e2e/pictures.mjs --base "${url%%/dashboard*}" --http "$http" --code "${url##*code=}" \
  --out "$out" "${all[@]}"
if [ ${#all[@]} -eq 0 ]; then
  for picture in "$out"/*.png; do
    pngquant --force --speed 1 --strip --quality 50-90 --output "docs/pictures/$(basename "$picture")" "$picture"
  done
  rm -rf "$out"
  du -cb docs/pictures/*.png | tail -1
fi
