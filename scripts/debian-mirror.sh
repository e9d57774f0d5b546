#!/usr/bin/env bash
# Prints the address of the first archive of Debian that apt is configured for, or nothing if there is
# none.
set -euo pipefail
{ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null || true; } |
  grep -v '^ *#' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n1 | tr -d " " || true
