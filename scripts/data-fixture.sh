#!/usr/bin/env bash
# Makes tests/fixtures/data/VERSION.tar.gz: the data folder of a node of this version that was
# killed while it had accepted work. The test upgrades starts later versions on this folder. Run it
# once for each release; an archive that exists is not replaced.
#
# Usage: scripts/data-fixture.sh
#
# $MOTE_BIN is target/debug/mote if it is not set.
set -euo pipefail
cd "$(dirname "$0")/.."

mote=$(realpath "${MOTE_BIN:-${CARGO_TARGET_DIR:-target}/debug/mote}")
version=$("$mote" version | cut -d' ' -f2)
out=$PWD/tests/fixtures/data/$version.tar.gz
[ ! -e "$out" ] || { echo "data-fixture: $out exists" >&2; exit 1; }
BYTES_MAX=204800

work=$(mktemp -d)
chmod 755 "$work"
node=''
# shellcheck disable=SC2317 # called by the trap
clean() {
  [ -z "$node" ] || kill -9 "$node" 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT
export MOTE_SOCKET=$work/s
unset MOTE_NODE
until_true() { # command…
  for _ in $(seq 600); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.05
  done
  echo "data-fixture: it never succeeded: $*" >&2
  return 1
}

mkdir -p "$work/src/kept" "$work/src/waits"
cat >"$work/src/kept/app.py" <<'PY'
def handle(event, ctx):
    with open("/secrets/KEPT") as file:
        secret = file.read().strip()
    return "%s %s" % (secret, ctx.kv.get("color").decode())
PY
cat >"$work/src/kept/mote.toml" <<'TOML'
version = 1
runtime = "python"
entry = "app:handle"
secrets = ["KEPT"]

[[trigger]]
cron = "30 6 1 1 *"
timezone = "UTC"
path = "/yearly"
TOML
# Runs of this function end once its gate is open.
cat >"$work/src/waits/app.py" <<'PY'
import time

def handle(event, ctx):
    while ctx.kv.get("gate") is None:
        time.sleep(0.05)
    ctx.kv.increment("runs")
    return "ran " + event.text
PY

"$mote" up --data "$work/data" --http 127.0.0.1:0 --coap off >"$work/out" 2>"$work/err" &
node=$!
until_true "$mote" list
printf 'a kept secret' | "$mote" secret set KEPT
"$mote" deploy --quiet "$work/src/kept"
"$mote" deploy --quiet "$work/src/waits"
"$mote" kv put kept color blue
http=$(sed -n 's|.*http   http://\([0-9.:]*\).*|\1|p' "$work/out" | head -n 1)
[ "$(curl -sS "http://$http/kept")" = "a kept secret blue" ]
for number in 1 2 3 4 5; do
  curl -sS --fail -H 'Prefer: respond-async' -d "$number" "http://$http/waits" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["location"])' >>"$work/accepted"
done
[ "$(wc -l <"$work/accepted")" = 5 ]
# The node is killed, so that later versions must also read the logs of the databases.
kill -9 "$node"
wait "$node" 2>/dev/null || true
node=''
# At its next start, the node writes the shims and the markers of its process again.
rm -rf "$work/data/shims" "$work/data/staging"
mkdir -p "$(dirname "$out")"
tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner data accepted |
  gzip --no-name --best >"$out"
bytes=$(stat --format=%s "$out")
tar -tzf "$out" >&2
echo "data-fixture: $out has $bytes bytes" >&2
[ "$bytes" -le $BYTES_MAX ] || { rm "$out"; echo "data-fixture: that is more than $BYTES_MAX" >&2; exit 1; }
