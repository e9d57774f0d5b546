#!/usr/bin/env bash
# Tests a cell in a pod of a real cluster: its sandboxes, what its functions reach, installation and
# removal; that the command, Helm and Kustomize give the same objects; resources on the store of K3s;
# and two nodes under change and loss (--long: 20 rounds of each change). Needs root. The first run
# builds Kubernetes, Helm and kine. MOTE_BIN names another mote than that of the release build; all
# programs are taken from its folder.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "SKIPPED: the tests on a cluster need root, for namespaces and control groups" >&2
  [ "${CI:-}" != true ] || exit 1
  exit 0
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
profile=release
if [ -n "${MOTE_BIN:-}" ]; then
  bin=$(dirname "$(realpath "$MOTE_BIN")")
  profile=$(basename "$bin")
else
  make build
  bin=$target/release
  export MOTE_BIN=$bin/mote
fi
cargo build --profile "$profile" -p mote-cluster
escape=$(cargo test --profile "$profile" -p mote-sandbox --test escape --no-run --message-format=json |
  python3 -c 'import json, sys
for line in sys.stdin:
    found = json.loads(line)
    if found.get("executable"): print(found["executable"])')

helm=$PWD/.cache/helm-v3.18.6
if [ ! -x "$helm/helm" ]; then
  mkdir -p "$helm"
  (cd /tmp && GOBIN=$helm CGO_ENABLED=0 nice -n 10 go install -ldflags "-s -w" helm.sh/helm/v3/cmd/helm@v3.18.6)
fi
scripts/cluster.sh build
HELM=$helm/helm KUBECTL=$(echo "$PWD"/.cache/kubernetes-*/kubectl) \
  cargo test --profile "$profile" -p mote-cluster
# Tests resources on kine with SQLite, which is K3s's store.
scripts/cluster.sh build kine
APISERVER_STORE=kine cargo test --profile "$profile" -p mote-tests --test e2e cluster::an_applied_function
scripts/image.sh
python3 -B tests/kubernetes/cell.py --bin "$bin" --escape "$escape"
python3 -B tests/kubernetes/cluster.py --bin "$bin" "$@"
