#!/usr/bin/env bash
# Prints the folder with the programs of a release that fit this clone and this machine, if there is
# one, and fails otherwise. A release fits if it was made from this commit, and nothing has changed
# since then.
#
# Usage: scripts/prebuilt.sh
#   $MOTE_PREBUILT  a folder with what "make dist" makes, or an address (https://…) below which these
#                   files are; the default is target/dist. "off" means none.
set -euo pipefail
cd "$(dirname "$0")/.."

from=${MOTE_PREBUILT:-target/dist}
explain() { [ -z "${MOTE_PREBUILT:-}" ] || echo "prebuilt: $*" >&2; }
[ "$from" != off ] || exit 1
commit=$(git rev-parse HEAD 2>/dev/null) || exit 1
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
  explain "the clone has changes, so that no release fits it"
  exit 1
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
cache=.cache/prebuilt/$commit
mkdir -p "$cache"

get() { # name of a file; its path
  case $from in
    http://* | https://*)
      [ -s "$cache/$1" ] || curl -fsS --max-time 300 -o "$cache/$1" "${from%/}/$1" || { rm -f "${cache:?}/$1" && return 1; }
      echo "$cache/$1"
      ;;
    *) [ -r "$from/$1" ] && echo "$from/$1" ;;
  esac
}
provenance=$(get "mote-$version-provenance.json") || { explain "there is no release $version in $from"; exit 1; }
python3 -B -c '
import json, sys
made = json.load(open(sys.argv[1]))
sys.exit(made["commit"] != sys.argv[2] or made["modified"])' "$provenance" "$commit" || { explain "the release $version in $from was made from another commit"; exit 1; }
sums=$(get SHA256SUMS)
for libc in gnu musl; do
  name=mote-$version-$(uname -m)-linux-$libc
  archive=$(get "$name.tar.gz") || continue
  wanted=$(awk -v name="$name.tar.gz" '$2 == name { print $1 }' "$sums")
  if [ "$(sha256sum <"$archive" | cut -d' ' -f1)" != "$wanted" ]; then
    echo "prebuilt: $archive is damaged: it does not match SHA256SUMS" >&2
    continue
  fi
  rm -rf "${cache:?}/$name"
  tar -xzf "$archive" -C "$cache"
  # This system's C library can be older than the one that the programs need.
  if "$cache/$name/bin/mote" version >/dev/null 2>&1; then
    echo "$cache/$name/bin"
    exit 0
  fi
done
explain "no archive in $from runs on this machine"
exit 1
