#!/usr/bin/env bash
# Tests upgrades of a service under load: between two versions, to versions that do not start, and
# killed at many moments. It changes the system in which it runs, so scripts/test-dist.sh runs it in
# a separate system.
#
# Usage: test-upgrade.sh OLD.tar.gz NEW.tar.gz CALLERS
#   CALLERS  the program mote-callers
set -euo pipefail

if [ "$(cat /proc/1/comm)" != systemd ] || [ "$(hostname)" != mote-dist ]; then
  echo "test-upgrade: only scripts/test-dist.sh runs this, in a system of its own" >&2
  exit 2
fi
old=$1 new=$2 callers=$3
export LC_ALL=C
work=$(mktemp -d /tmp/upgrade-test.XXXXXX)
cd "$work"
UPGRADES=10
CALLS=1000 # between two upgrades
KILLS=12
passed=0 failed=0

pass() { echo "ok      upgrade: $*"; passed=$((passed + 1)); }
wrong() { echo "FAILED  upgrade: $*"; failed=$((failed + 1)); }
succeeds() { # name, command…
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then pass "$name"; else wrong "$name: $output"; fi
}
# refused NAME TEXT command…: checks that the command fails, and prints TEXT.
refused() {
  local name=$1 text=$2 output code=0
  shift 2
  output=$("$@" 2>&1) || code=$?
  if [ $code = 0 ]; then wrong "$name: it was not refused"
  elif [[ $output != *"$text"* ]]; then wrong "$name: it says: $output"
  else pass "$name: $text"; fi
}
# Prints the version that answers on the management socket.
answering() {
  python3 -c '
import json, socket
asked = socket.socket(socket.AF_UNIX)
asked.settimeout(20)
asked.connect("/run/mote/mote.sock")
asked.sendall(b"GET /v1/status HTTP/1.0\r\nHost: node\r\n\r\n")
print(json.loads(asked.makefile("rb").read().split(b"\r\n\r\n", 1)[1])["version"])'
}
version_of() { tar -xzOf "$1" --wildcards '*/requirements' | sed -n 's/^version=//p'; }
is_version() { # version
  local said
  said=$(answering)
  [ "$said" = "$1" ] || { echo "mote $said answers and not $1"; return 1; }
  [ "$(mote version)" = "mote $1" ] || { echo "the program is $(mote version)"; return 1; }
  grep -qx "mote $1 complete" <(head -n 1 /usr/local/share/mote/receipt) || { head -n 1 /usr/local/share/mote/receipt; return 1; }
  [ -z "$(find /usr/local /etc/systemd -name '*.mote-new' -o -path '*/share/mote/upgrade*')" ] || { find /usr/local -path '*/share/mote/upgrade*'; return 1; }
}
# changed NAME VERSION FILE…: makes an archive of the new version with another version number and
# other files, whose sums are right.
changed() {
  local name=$1 tree
  tree=$work/$name/mote-$2
  mkdir -p "$tree"
  tar -xzf "$new" -C "$tree" --strip-components=1
  sed -i "s/^version=.*/version=$2/" "$tree/requirements"
  mv "$tree/bin/mote" "$tree/bin/mote-real"
  cat >"$tree/bin/mote"
  chmod 755 "$tree/bin/mote"
  (cd "$tree" && find . -type f ! -name SHA256SUMS ! -name '*.minisig' -printf '%P\n' | sort | xargs -d '\n' sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
  tar -czf "$work/$name.tar.gz" -C "$work/$name" "mote-$2"
  rm -rf "${work:?}/$name"
}

old_version=$(version_of "$old") new_version=$(version_of "$new")
[ "$old_version" != "$new_version" ] || { echo "both archives have version $old_version" >&2; exit 2; }
tar -xzf "$old"
succeeds "install.sh of $old_version" mote-"$old_version"-*/install.sh
mkdir echo slow
printf 'def handle(event, ctx):\n    return event.body or event.path[1:]\n' >echo/app.py
printf 'import time\n\ndef handle(event, ctx):\n    time.sleep(0.2)\n    return event.body\n' >slow/app.py
for _ in $(seq 400); do mote list >/dev/null 2>&1 && break; sleep 0.05; done
succeeds "the functions are deployed" mote deploy --quiet echo slow
flags=(--yes --unsigned)

# --- Without the socket units -------------------------------------------------------------------

refused "the version that runs" "mote $old_version is installed already" mote upgrade "${flags[@]}" "$old"
output=$(mote upgrade "${flags[@]}" "$new" 2>&1) || true
if is_version "$new_version" && [[ $output == *"not all socket units are active"* ]]; then pass "without the socket units, the upgrade says that connections are refused"; else wrong "without the socket units: $output"; fi
refused "an older version" "is older than the installed" mote upgrade "${flags[@]}" "$old"
succeeds "--rollback" mote upgrade --rollback --yes
succeeds "$old_version answers again" is_version "$old_version"

# --- Under load ---------------------------------------------------------------------------------

units=(mote.socket mote-coap.socket mote-management.socket)
succeeds "the sockets are enabled" sh -c "systemctl stop mote.service && systemctl enable --now ${units[*]/#//usr/local/share/mote/systemd/} && systemctl start mote.service"
load() {
  coproc CALLERS { "$callers" 127.0.0.1:6683 127.0.0.1:5683 2>&1; }
  # shellcheck disable=SC2153 # set by coproc
  load_pid=$CALLERS_PID load_in=${CALLERS[1]} load_out=${CALLERS[0]}
}
calls() { # number: waits until so many more are answered
  echo "$1" >&"$load_in"
  read -r _ <&"$load_out"
}
load_ends() { # name
  local said code=0
  eval "exec $load_in>&-"
  said=$(cat <&"$load_out") || true
  wait "$load_pid" || code=$?
  if [ $code = 0 ]; then pass "$1: ${said##*$'\n'}"; else wrong "$1: $said"; fi
}
load
times=()
for count in $(seq $UPGRADES); do
  calls $CALLS
  archive=$new version=$new_version
  [ $((count % 2)) = 1 ] || archive=$old version=$old_version
  since=$(date +%s%N)
  succeeds "upgrade $count under load, to $version" mote upgrade "${flags[@]}" --allow-downgrade "$archive"
  times+=($((($(date +%s%N) - since) / 1000000)))
  succeeds "after upgrade $count, $version answers" is_version "$version"
done
calls $CALLS
load_ends "$UPGRADES upgrades under load"
mapfile -t times < <(printf '%s\n' "${times[@]}" | sort -n)
echo "        an upgrade took ${times[$((UPGRADES / 2))]} ms (median), ${times[-1]} ms at most"

# --- Versions that do not start -----------------------------------------------------------------

# The program of a version: it says the version, and does something else than to serve.
# shellcheck disable=SC2016 # expanded by the program
says() { printf '#!/bin/sh\ncase $1 in version) echo "mote %s" ;; up) %s ;; *) exec "$(dirname "$0")/mote-real" "$@" ;; esac\n' "$1" "$2"; }
says 0.9.1 'echo "broken on purpose" >&2; exit 1' | changed fails 0.9.1
says 0.9.2 'exit 78' | changed refuses 0.9.2
says 0.9.3 'exec sleep 1000' | changed hangs 0.9.3
load
for name in fails refuses hangs; do
  calls $CALLS
  refused "a version that $name under load" "error[M0153]: mote $old_version is installed again" mote upgrade "${flags[@]}" "$work/$name.tar.gz"
  succeeds "after a version that $name, $old_version answers" is_version "$old_version"
done
calls $CALLS
load_ends "three versions that do not start, under load"
for unit in "${units[@]}"; do succeeds "$unit is active" systemctl is-active --quiet "$unit"; done

# The settings are not valid for the new version.
# shellcheck disable=SC2016 # expanded by the program
printf '#!/bin/sh\ncase $1 in version) echo "mote 0.9.4" ;; config) [ "$2" = show ] || { echo "error[M0203]: no such setting"; exit 78; } >&2 ;; esac\n' | changed settings 0.9.4
refused "settings that the new version refuses" "the settings are not valid for mote 0.9.4" mote upgrade "${flags[@]}" "$work/settings.tar.gz"
succeeds "nothing was restarted for it" is_version "$old_version"

# A version that changes the tables, as a migration does, but does not start.
cat >migrate.py <<'PY'
import os, sqlite3
for name in ("mote.db", "journal.db"):
    path = "/var/lib/mote/" + name
    connection = sqlite3.connect(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < 90:
        if os.path.exists(f"{path}.format-{version}"):
            os.remove(f"{path}.format-{version}")
        connection.execute("VACUUM INTO ?", (f"{path}.format-{version}",))
        connection.execute("PRAGMA user_version = 90")
        connection.commit()
    connection.close()
PY
install -m 644 migrate.py /usr/local/migrate.py
says 0.9.5 'python3 /usr/local/migrate.py; exit 1' | changed migrates 0.9.5
answers() { python3 -c 'import urllib.request as r; assert r.urlopen("http://127.0.0.1:6683/echo", data=b"x", timeout=30).read() == b"x"'; }
refused "a version that changes the tables and does not start" "mote $old_version is installed again" mote upgrade "${flags[@]}" "$work/migrates.tar.gz"
succeeds "the tables are as before, and $old_version answers" is_version "$old_version"
succeeds "the functions are there" answers
succeeds "no copy is left" sh -c '! ls /var/lib/mote/*.format-* 2>/dev/null'
# The last upgrade has changed the tables, so the former version could not read them.
succeeds "an upgrade" mote upgrade "${flags[@]}" "$new"
touch /var/lib/mote/mote.db.format-1
refused "going back over a change of the tables" "has changed the tables of mote.db" mote upgrade --rollback --yes
succeeds "$new_version goes on" is_version "$new_version"
rm /var/lib/mote/mote.db.format-1 /usr/local/migrate.py
succeeds "going back" mote upgrade --rollback --yes

# --- Killed upgrades ----------------------------------------------------------------------------

since=$(date +%s%N)
succeeds "an upgrade whose time is taken" mote upgrade "${flags[@]}" "$new"
took=$((($(date +%s%N) - since) / 1000))
load
for kill in $(seq $KILLS); do
  before=$(mote version | cut -d' ' -f2)
  archive=$new target=$new_version
  [ "$before" != "$new_version" ] || archive=$old target=$old_version
  setsid mote upgrade "${flags[@]}" --allow-downgrade "$archive" >/dev/null 2>&1 &
  pid=$!
  sleep "$(awk -v took="$took" -v kill="$kill" -v kills=$KILLS 'BEGIN { print took * kill / (kills + 1) / 1000000 }')"
  # The script of the upgrade goes on if only the upgrade itself is killed.
  case $((kill % 3)) in 0) kill -9 $pid 2>/dev/null || true ;; *) kill -9 -$pid 2>/dev/null || true ;; esac
  wait $pid 2>/dev/null || true
  calls 50
  name="killed at $kill of $((KILLS + 1)) parts of $((took / 1000)) ms"
  for _ in $(seq 200); do
    code=0
    if [ $((kill % 2)) = 0 ]; then output=$(mote upgrade --rollback --yes 2>&1) || code=$?
    else output=$(mote upgrade "${flags[@]}" --allow-downgrade "$archive" 2>&1) || code=$?; fi
    [[ $output == *"another upgrade of"* ]] || break
    sleep 0.05
  done
  now=$(mote version | cut -d' ' -f2)
  if [ "$code" != 0 ] && [[ $output != *"is installed already"* ]]; then wrong "$name: $output"
  elif [ $((kill % 2)) = 1 ] && [ "$now" != "$target" ]; then wrong "$name: $now is installed and not $target"
  elif output=$(is_version "$now"); then pass "$name: $now answers"
  else wrong "$name: $output"; fi
done
load_ends "$KILLS killed upgrades under load"

cd / && rm -rf "$work"
echo "test-upgrade: $passed checks passed, $failed failed"
[ $failed = 0 ]
