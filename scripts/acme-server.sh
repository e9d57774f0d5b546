#!/usr/bin/env bash
# Installs Pebble, the test server of Let's Encrypt for ACME, with its DNS server, and prints the folder
# of both programs. It needs Go.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v2.10.3
folder=$PWD/.cache/pebble-$version
if [ ! -x "$folder/pebble-challtestsrv" ]; then
  command -v go >/dev/null || { echo "acme-server: needs Go to build it" >&2; exit 1; }
  mkdir -p .cache
  GOBIN=$folder GOFLAGS=-mod=mod go install "github.com/letsencrypt/pebble/v2/cmd/pebble@$version" \
    "github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@$version" >&2
fi
echo "$folder"
