#!/bin/sh
# Removes what install.sh has installed: the files and folders that the receipt names, and no others.
#
# Usage: uninstall.sh [--prefix DIR] [--purge]
#   --prefix DIR  where mote is installed; the default is the prefix from which this script runs
#   --purge       also remove the data of the service (/var/lib/mote) and its settings (/etc/mote)
#
# A file that was changed after the installation is kept, and named.
set -eu
export LC_ALL=C

prefix=
purge=no

say() { printf 'uninstall: %s\n' "$*"; }
fail() {
  printf 'uninstall: error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf 'uninstall: %s\n' "$2" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case $1 in
    --prefix)
      if [ $# -lt 2 ] || [ -z "$2" ]; then fail "--prefix needs a value" "Run uninstall.sh --help for its flags."; fi
      prefix=$2
      shift
      ;;
    --prefix=*) prefix=${1#*=} ;;
    --purge) purge=yes ;;
    -h | --help) sed -n '4,6s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) fail "$1 is not a flag of uninstall.sh" "Run uninstall.sh --help for its flags." ;;
  esac
  shift
done
if [ -z "$prefix" ]; then
  here=$(cd "$(dirname "$0")" && pwd)
  case $here in
    */share/mote) prefix=${here%/share/mote} ;;
    *) prefix=/usr/local ;;
  esac
fi
case $prefix in
  /*) ;;
  *) fail "--prefix $prefix is not an absolute path" "Give a path that begins with a slash." ;;
esac
while [ "$prefix" != / ] && [ "${prefix%/}" != "$prefix" ]; do prefix=${prefix%/}; done
state=$prefix/share/mote
receipt=$state/receipt

# An installation that was ended before its receipt existed leaves only this folder.
existing=$prefix/share
while [ ! -d "$existing" ]; do existing=$(dirname "$existing"); done
if [ ! -e "$receipt" ] && [ -d "$existing/.mote-install.new" ]; then
  rm -rf "$existing/.mote-install.new"
  say "the begun installation in $prefix is removed"
  exit 0
fi
[ -f "$receipt" ] ||
  fail "mote is not installed in $prefix: $receipt does not exist" "Name the --prefix of the installation. A package is removed with apt or rpm."
case $(head -n 1 "$receipt") in
  'mote '*' complete' | 'mote '*' incomplete') ;;
  *) fail "$receipt is damaged: its first line is not that of a receipt" "Restore it, or remove the files of mote below $prefix yourself." ;;
esac
! grep -vE '^(mote .*|file [0-9a-f]{64} /.*|dir /.*|service (mote\.service|openrc|procd))$' "$receipt" | grep -q . ||
  fail "$receipt is damaged: it has a line that install.sh does not write" "Restore it, or remove the files of mote below $prefix yourself."
# Somebody who could write this file could name files of others in it.
for path in "$state/." "$receipt"; do
  # shellcheck disable=SC2012 # POSIX has no stat
  owner=$(ls -ldn "$path" | awk '{ print $3 }')
  [ "$owner" = 0 ] || [ "$owner" = "$(id -u)" ] ||
    fail "${path%/.} belongs to the user with the number $owner" "Run uninstall.sh as that user."
done
! grep -q '/\.\.\(/\|$\)' "$receipt" ||
  fail "$receipt is damaged: it names a path with .." "Restore it, or remove the files of mote below $prefix yourself."
outside=$(awk -v prefix="$prefix/" '
  $1 == "file" { path = substr($0, 71); inside = index(path, prefix) == 1 }
  $1 == "file" && (path == "/etc/systemd/system/mote.service" || path == "/etc/init.d/mote") { inside = 1 }
  $1 == "dir" { path = substr($0, 5); inside = index(path "/", prefix) == 1 || index(prefix, path "/") == 1 }
  $1 == "file" || $1 == "dir" { if (!inside) { print path; exit } }' "$receipt")
[ -z "$outside" ] ||
  fail "$receipt is damaged: it names $outside, which is not below $prefix" "Restore it, or remove the files of mote below $prefix yourself."
service=$(sed -n 's/^service //p' "$receipt" | head -n 1)
# Without a service, the node's data is wherever its user has put it, and these folders belong to
# another installation.
if [ $purge = yes ] && [ -z "$service" ]; then
  fail "this installation has no service, so /var/lib/mote and /etc/mote are not its own" "Run uninstall.sh without --purge, and remove the folder of --data yourself."
fi
if [ -n "$service" ] && [ "$(id -u)" != 0 ]; then
  fail "root installed mote with a service, and only root can remove it" "Run uninstall.sh with sudo."
fi
# `mote upgrade` and the other script change the same files.
if [ -d "$state" ] && command -v flock >/dev/null 2>&1; then
  exec 9<"$state"
  flock -n 9 || fail "another installation, removal or upgrade of $prefix is running" "Wait until it has ended."
fi
[ -w "$state" ] || fail "you may not write to $state" "Run uninstall.sh with sudo."
[ $purge = no ] || [ "$(id -u)" = 0 ] || fail "only root can remove /var/lib/mote" "Run uninstall.sh with sudo, or leave out --purge."

case $service in
  mote.service) systemctl disable --now mote.socket mote-coap.socket mote-management.socket mote.service >/dev/null 2>&1 || true ;;
  openrc)
    rc-service mote stop >/dev/null 2>&1 || true
    rc-update --quiet delete mote default >/dev/null 2>&1 || true
    ;;
  procd)
    /etc/init.d/mote stop >/dev/null 2>&1 || true
    /etc/init.d/mote disable >/dev/null 2>&1 || true
    ;;
esac
for exe in /proc/[0-9]*/exe; do
  case $(readlink "$exe" 2>/dev/null) in
    "$prefix/bin/mote" | "$prefix/bin/mote (deleted)")
      pid=${exe#/proc/}
      fail "a node still runs as process ${pid%/exe}" "Stop it first: kill ${pid%/exe}"
      ;;
  esac
done

sum_of() { sha256sum <"$1" | cut -d' ' -f1; }
kept=0
paths=$(grep '^file ' "$receipt" | cut -c71- | sort -u)
while IFS= read -r path; do
  [ -n "$path" ] || continue
  folder=$(dirname "$path")
  rm -f "$path.mote-new" "$folder"/.mote-install.?????? "$(dirname "$folder")"/.mote-install.??????
  [ -e "$path" ] || [ -L "$path" ] || continue
  if [ -f "$path" ] && grep -qxF "file $(sum_of "$path") $path" "$receipt"; then
    rm -f "$path"
  else
    say "$path was changed after the installation and is kept"
    kept=$((kept + 1))
  fi
done <<TXT
$paths
TXT
if [ "$service" = mote.service ]; then
  systemctl daemon-reload >/dev/null 2>&1 || true
  systemctl reset-failed mote.service >/dev/null 2>&1 || true
fi

# What mote upgrade keeps, and what one that was killed has left.
rm -rf "$state/former" "$state/upgrade" "$state/upgrade.new" "$state"/.mote-check.??????
dirs=$(sed -n 's/^dir //p' "$receipt" | sort -ru)
rm -f "$receipt" "$receipt.new"
while IFS= read -r path; do
  [ -z "$path" ] || [ ! -d "$path" ] || rmdir "$path" 2>/dev/null || true
done <<TXT
$dirs
TXT

if [ $purge = yes ]; then
  rm -rf /var/lib/mote /run/mote /etc/mote
  [ "$service" != openrc ] || rm -f /var/log/mote.log
  [ "$service" != procd ] || rm -rf /srv/mote
  say "the data of the service in /var/lib/mote is removed"
elif [ -n "$service" ] && [ -d /var/lib/mote ]; then
  say "the data of the node is kept in /var/lib/mote; --purge removes it"
fi
if [ "$kept" -gt 0 ]; then
  say "mote is removed from $prefix, except for files that were changed: $kept"
else
  say "mote is removed from $prefix"
fi
