#!/usr/bin/env bash
# Starts a new node, deploys every example and sends a year of temperatures to it, over HTTP and CoAP
# and through an MQTT broker.
#
# $MOTE_PROGRAMS names a folder with the programs. If it is not set, the programs of a release are
# used, or the programs are built.
set -euo pipefail
cd "$(dirname "$0")/.."

READY_TENTHS_MAX=150 # of a second until the node must answer

step() { printf '\n== %s\n' "$*"; }

step "what is needed"
scripts/setup.sh demo
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
venv=.cache/demo-venv
if ! cmp -s demo/requirements.txt "$venv/installed.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r demo/requirements.txt
  cp demo/requirements.txt "$venv/installed.txt"
fi

if [ -n "${MOTE_PROGRAMS:-}" ]; then
  step "the programs in $MOTE_PROGRAMS"
  programs=$MOTE_PROGRAMS
elif programs=$(scripts/prebuilt.sh); then
  step "the programs of the release in $programs"
else
  step "build"
  scripts/setup.sh build
  # The build is not optimised, because optimising takes as long again. make build makes the program
  # for daily use. Programs that the tests have built are used if they exist.
  programs=${CARGO_TARGET_DIR:-target}/debug
  profile=dev
  [ -d "$programs/deps" ] || profile=demo programs=${programs%debug}demo
  cargo build --bins -p mote --profile $profile
fi
mote=$programs/mote

step "start a node"
free_port() { python3 -c "import socket; s = socket.socket(socket.AF_INET, socket.$1); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"; }
http=$(free_port SOCK_STREAM)
coap=$(free_port SOCK_DGRAM)
broker_port=$(free_port SOCK_STREAM)
data=.cache/demo-data
rm -rf "$data"
mkdir -p "$data"
# Socket paths are limited to 108 bytes, and the path of a checkout may be longer.
run=$(mktemp -d)
export MOTE_SOCKET=$run/mote.sock
"$mote" up --data "$data" --http "127.0.0.1:$http" --coap "127.0.0.1:$coap" --socket "$MOTE_SOCKET" --mqtt-broker "mqtt://127.0.0.1:$broker_port" >"$data/mote.out" 2>"$data/mote.log" &
node=$!
broker=
stop() {
  for process in "$node" $broker; do
    kill "$process" 2>/dev/null || true
    wait "$process" 2>/dev/null || true
  done
  rm -rf "$run"
}
trap stop EXIT
for ((i = 0; ; i++)); do
  "$mote" list >/dev/null 2>&1 && break
  if ! kill -0 "$node" 2>/dev/null || ((i == READY_TENTHS_MAX)); then
    echo "the node did not start; its log:" >&2
    cat "$data/mote.out" "$data/mote.log" >&2
    exit 1
  fi
  sleep 0.1
done
echo "http://127.0.0.1:$http  coap://127.0.0.1:$coap"

step "deploy every example"
examples=()
for manifest in examples/*/mote.toml; do # those in examples/languages need further packages
  examples+=("$(dirname "$manifest")")
done
for example in "${examples[@]}"; do
  "$mote" deploy "$example"
done

step "call each once over HTTP"
call() { # name, expected text (a substring), curl arguments
  local name=$1 expected=$2 answer
  shift 2
  answer=$(curl -fsS --max-time 20 "$@" "http://127.0.0.1:$http/$name")
  printf '%-14s %s\n' "$name" "$answer"
  [[ $answer == *"$expected"* ]] || { echo "$name: expected $expected" >&2; exit 1; }
}
for example in "${examples[@]}"; do
  name=$(basename "$example")
  case $name in
    hello-*) call "$name" mote ;;
    echo-*) call "$name" "sent and back" -d "sent and back" ;;
    sieve-*) call "$name" 168 ;;
    counter-*) call "$name" "call 1" ;;
    thermo-*) call thermo '"anomaly":false' -d '{"sensor":"demo","celsius":21.5,"at":"now"}' ;;
    *) echo "no call is written for $name" >&2; exit 1 ;;
  esac
done

step "a year of temperatures, by HTTP and CoAP"
"$venv/bin/python" demo/drive.py --http-port "$http" --coap-port "$coap"

step "some months of them through a broker, judged, counted and summarised"
PATH=$PATH:/usr/sbin mosquitto -p "$broker_port" >"$data/mosquitto.log" 2>&1 &
broker=$!
"$mote" deploy demo/functions/summary
"$mote" deploy demo/functions/ledger
"$mote" deploy demo/functions/alarm
"$mote" deploy demo/functions/station
for ((i = 0; ; i++)); do
  "$mote" describe station | grep -q ' subscribed ' && break
  if ((i == READY_TENTHS_MAX)); then
    echo "station has no subscription:" >&2
    "$mote" describe station >&2
    exit 1
  fi
  sleep 0.1
done
"$venv/bin/python" -B demo/mqtt.py --broker-port "$broker_port" --http-port "$http"
echo "the last alarm was a run of a chain, with these steps:"
"$mote" runs list --limit 1
"$mote" runs show "$("$mote" runs list --limit 1 -o name)"

step "accept a call, and look its result up later"
accepted=$(curl -fsS -H 'Prefer: respond-async' -d 'sent and back' "http://127.0.0.1:$http/echo-python")
echo "$accepted"
id=${accepted#*\"id\":\"}
id=${id%%\"*}
curl -fsS -H 'Prefer: respond-async, wait=10' -d '{"sensor":"demo","celsius":21.5}' "http://127.0.0.1:$http/thermo"
echo
"$mote" invocation show "$id"

step "what the node runs now"
"$mote" list
