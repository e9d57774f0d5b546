#!/usr/bin/env bash
# Prints the address of the first Debian archive in apt's configuration, or nothing if there is
# none.
set -euo pipefail
{ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null || true; } |
  grep -v '^ *#' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n1 | tr -d " " || true
