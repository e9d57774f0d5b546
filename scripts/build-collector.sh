#!/usr/bin/env bash
# Builds the OpenTelemetry Collector with a receiver for OTLP and an exporter that prints what arrives,
# for the tests of traces. Prints the path of the program. Takes a few minutes the first time.
set -euo pipefail

VERSION=0.137.0
CONFMAP=1.43.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/mote-tools/collector-$VERSION
program=$folder/collector
if [ -x "$program" ]; then
  echo "$program"
  exit 0
fi
command -v go >/dev/null || {
  echo "build-collector: Go is not installed" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/builder.yaml" <<END
dist:
  module: mote.internal/collector
  name: collector
  output_path: $work/out
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v$VERSION
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/debugexporter v$VERSION
providers:
  - gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v$CONFMAP
  - gomod: go.opentelemetry.io/collector/confmap/provider/envprovider v$CONFMAP
END
(cd "$work" && GOFLAGS=-mod=mod go run "go.opentelemetry.io/collector/cmd/builder@v$VERSION" --config builder.yaml) >&2
mkdir -p "$folder"
mv "$work/out/collector" "$program"
echo "$program"
