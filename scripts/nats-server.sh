#!/usr/bin/env bash
# Installs the NATS server that tests and benchmarks use, and prints its path. It needs Go.
set -euo pipefail
cd "$(dirname "$0")/.."
# Debian's server is older than the setting that makes an acknowledgement durable.
version=v2.15.2
server=$PWD/.cache/nats-server-$version
if [ ! -x "$server" ]; then
  command -v go >/dev/null || { echo "nats-server: needs Go to build it" >&2; exit 1; }
  mkdir -p .cache
  GOBIN=$PWD/.cache/nats-bin GOFLAGS=-mod=mod go install "github.com/nats-io/nats-server/v2@$version" >&2
  mv .cache/nats-bin/nats-server "$server"
fi
echo "$server"
