#!/usr/bin/env bash
# Runs a command as an ordinary user that exists only for this run; needs root.
#
#   scripts/as-user.sh [--delegate] FOLDER COMMAND…
#
# FOLDER receives a home and a folder for temporary files that belong to that user. With --delegate
# the user also receives control groups of its own, in the kind of hierarchy that this machine has,
# as a service manager would delegate them. With version 2, each node that the command starts as
# $MOTE_BIN gets a group to itself, because groups with processes cannot have groups below them. On a
# machine where this is not possible, the script prints SKIPPED.
set -euo pipefail
delegate=false
if [ "${1:-}" = --delegate ]; then
  delegate=true
  shift
fi
folder=$1
shift
# No account has this id, and a second run at the same time has a different one.
uid=$((2000000000 + $$ % 100000000))
install -d -m 755 "$folder"
install -d -m 755 "$folder/home" "$folder/tmp"
# A former run had another user.
chown -R "$uid:$uid" "$folder/home" "$folder/tmp"

groups=() joined=()
# shellcheck disable=SC2317 # called by the trap
leave() {
  for group in "${groups[@]}"; do
    # The deepest groups are removed first. A group that still contains a process stays, and its
    # name is printed.
    find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    [ ! -d "$group" ] || echo "left behind: $group" >&2
  done
}
trap leave EXIT

if $delegate; then
  name=mote-as-user-$$
  if [ -f /sys/fs/cgroup/cgroup.controllers ] && grep -q memory /sys/fs/cgroup/cgroup.controllers; then
    own=$(sed -n 's/^0:://p' /proc/self/cgroup)
    group=/sys/fs/cgroup${own%/}/$name
    if ! mkdir "$group" 2>/dev/null || ! grep -q memory "$group/cgroup.controllers"; then
      rmdir "$group" 2>/dev/null || true
      echo "SKIPPED: delegated cgroups: no controllers in ${group%/*}"
      exit 0
    fi
    groups+=("$group")
    mkdir "$group/command"
    tr ' ' '\n' <"$group/cgroup.controllers" | while read -r controller; do
      echo "+$controller" >"$group/cgroup.subtree_control"
    done
    joined=("$group/command")
    if [ -n "${MOTE_BIN:-}" ]; then
      # Other programs of the build are next to it, where tests and nodes look for them.
      install -d -m 755 "$folder/bin"
      ln -sf "${MOTE_BIN%/*}"/mote-* "$folder/bin/"
      cat >"$folder/bin/mote" <<END
#!/bin/bash
# A node with the same data folder gets the same group. What a former one has left is ended first, as
# a service manager does; one that still runs keeps its group.
given=\$PATH PATH=/usr/sbin:/usr/bin:/sbin:/bin
data=\$\$ before=
for word in "\$@"; do
  [ "\$before" != --data ] || data=\$(printf %s "\$word" | cksum | cut -d ' ' -f 1)
  before=\$word
done
case " \$* " in
  *" up "*)
    group=$group/node-\$data
    own=$folder/home/node-\$data.pid
    if kill -0 "\$(cat "\$own" 2>/dev/null)" 2>/dev/null; then group=\$group-\$\$; else echo "\$\$" >"\$own"; fi
    [ ! -d "\$group" ] || echo 1 >"\$group/cgroup.kill"
    for _ in {1..500}; do
      [ -d "\$group" ] || break
      find "\$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.02
    done
    mkdir "\$group" && echo "\$\$" >"\$group/cgroup.procs" || exit 1
    ;;
esac
PATH=\$given
exec "$MOTE_BIN" "\$@"
END
      chmod 755 "$folder/bin/mote"
      MOTE_BIN=$folder/bin/mote
    fi
  else
    for controller in memory pids cpu cpuacct; do
      root=$(awk -v c="$controller" '$3 == "cgroup" && $4 ~ "(^|,)" c "(,|$)" { print $2 }' /proc/mounts)
      own=$(awk -F: -v c="$controller" '$2 ~ "(^|,)" c "(,|$)" { print $3 }' /proc/self/cgroup)
      group=$root${own%/}/$name
      if [ -z "$root" ] || { [ ! -d "$group" ] && ! mkdir "$group" 2>/dev/null; }; then
        echo "SKIPPED: delegated cgroups: no $controller hierarchy that can be written"
        exit 0
      fi
      groups+=("$group")
    done
    joined=("${groups[@]}")
  fi
  for group in "${groups[@]}"; do
    chown -R "$uid:$uid" "$group"
  done
fi

clean=(env -i "PATH=${AS_USER_PATH:-/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin}" "HOME=$folder/home"
  "TMPDIR=$folder/tmp" "LANG=C.UTF-8")
# The environment variables for the tests and for this machine's package clients.
while IFS='=' read -r name _; do
  case $name in
    MOTE_* | PIP_* | GOPROXY | GOSUMDB | GONOSUMDB | npm_config_* | *_PROXY | *_proxy | SSL_CERT_* | *_CA_BUNDLE | NODE_EXTRA_CA_CERTS)
      clean+=("$name=${!name}")
      ;;
  esac
done < <(env)
status=0
(
  cd "$folder"
  for group in "${joined[@]}"; do echo "$BASHPID" >"$group/cgroup.procs"; done
  exec setpriv --reuid="$uid" --regid="$uid" --clear-groups "${clean[@]}" "$@"
) || status=$?
exit $status
