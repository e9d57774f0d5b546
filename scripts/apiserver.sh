#!/usr/bin/env bash
# A real Kubernetes API server without nodes, for tests that only read and write objects: it checks
# manifests (kubectl apply --dry-run=server) and keeps resources, but runs no pods. It starts in a
# few seconds, in a separate network namespace, so it can be reached only through this script.
# scripts/cluster.sh starts whole clusters.
#
# Usage: scripts/apiserver.sh up               starts etcd and kube-apiserver
#        scripts/apiserver.sh up --here        the same on free ports of this machine's loopback, for
#                                              programs that run outside the namespace
#        scripts/apiserver.sh env              prints KUBECONFIG=… and PATH=… for a shell
#        scripts/apiserver.sh token NAME       prints the token of a service account NAMESPACE/NAME
#        scripts/apiserver.sh kubectl ARG…     kubectl as the administrator
#        scripts/apiserver.sh run COMMAND…     runs a command where the server can be reached
#        scripts/apiserver.sh down             ends both, and removes everything
#
# APISERVER_STORE=kine keeps the objects in SQLite behind kine, as K3s does, instead of etcd.
# APISERVER_DIR has the files of the running server (default: /tmp/mote-apiserver). Several servers
# can run at a time, each in its own folder.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=v1.36.3
DIR=${APISERVER_DIR:-/tmp/mote-apiserver}
PROGRAMS=$PWD/.cache/kubernetes-$VERSION
# The store of the objects.
STORE=${APISERVER_STORE:-etcd}
# Every wait ends after this many seconds.
PATIENCE=${APISERVER_PATIENCE:-60}

say() { echo "apiserver: $*" >&2; }
fail() {
  say "$*"
  exit 1
}
wait_for() {
  local what=$1 end=$((SECONDS + PATIENCE))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "$what: not after $PATIENCE s; see the logs in $DIR"
    sleep 0.1
  done
}

# Runs a command where the server can be reached.
inside() {
  if [ -e "$DIR/holder" ]; then
    nsenter -t "$(cat "$DIR/holder")" -n -- "$@"
  else
    "$@"
  fi
}
# Starts a daemon, whose output goes to a file. Because of `exec`, the job's process id is the
# daemon's.
daemon() {
  local name=$1
  shift
  if [ -e "$DIR/holder" ]; then
    setsid nsenter -t "$(cat "$DIR/holder")" -n -- "$@" </dev/null >"$DIR/$name.log" 2>&1 &
  else
    setsid "$@" </dev/null >"$DIR/$name.log" 2>&1 &
  fi
  echo $! >"$DIR/$name.pid"
}
kubectl() { inside env KUBECONFIG="$DIR/kubeconfig" "$PROGRAMS/kubectl" "$@"; }

# Prints three ports on which nothing listens at this moment. They are below the range that the
# kernel uses for outgoing connections, so they are still free when the servers bind them.
free_ports() {
  python3 - <<'PYTHON'
import random, socket

free = []
while len(free) < 3:
    port = random.randrange(12000, 16000)
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            continue
    if port not in free:
        free.append(port)
print(*free)
PYTHON
}

# start_store CLIENT_PORT PEER_PORT
start_store() {
  local client=$1 peer=$2
  if [ "$STORE" = kine ]; then
    mkdir "$DIR/etcd"
    daemon etcd "$PROGRAMS/kine" --metrics-bind-address 0 \
      --endpoint "sqlite://$DIR/etcd/state.db?_journal=WAL&cache=shared&_busy_timeout=30000" \
      --listen-address "tcp://127.0.0.1:$client"
    return
  fi
  daemon etcd etcd --data-dir "$DIR/etcd" --unsafe-no-fsync \
    --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
    --listen-peer-urls "http://127.0.0.1:$peer" \
    --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer"
}

up() {
  local client=2379 peer=2380 port=6443
  [ ! -e "$DIR" ] || fail "$DIR exists; run scripts/apiserver.sh down first"
  [ -x "$PROGRAMS/kube-apiserver" ] || fail "needs scripts/cluster.sh build kube-apiserver kubectl, once"
  case $STORE in
    etcd) ;;
    kine) [ -x "$PROGRAMS/kine" ] || fail "needs scripts/cluster.sh build kine, once" ;;
    *) fail "APISERVER_STORE is etcd or kine, not $STORE" ;;
  esac
  [ "$STORE" = kine ] || command -v etcd >/dev/null || fail "needs etcd: apt-get install etcd-server"
  mkdir -m 700 "$DIR" && mkdir "$DIR/pki"
  if [ "${1:-}" = --here ]; then
    read -r client peer port <<<"$(free_ports)"
  else
    [ "$(id -u)" = 0 ] || fail "needs root, for a network namespace, or --here"
    unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
    local pid=$!
    # The new namespace exists as soon as the process has left this one.
    wait_for "the namespace" bash -c "[ \$(readlink /proc/$pid/ns/net) != $(readlink /proc/self/ns/net) ]"
    echo "$pid" >"$DIR/holder"
    inside ip link set lo up
  fi
  local token
  token=$(openssl rand -hex 16)
  (
    umask 077
    echo "$token,admin,admin,\"system:masters\"" >"$DIR/tokens.csv"
    openssl genrsa -out "$DIR/accounts.key" 2048 2>/dev/null
    openssl rsa -in "$DIR/accounts.key" -pubout -out "$DIR/accounts.pub" 2>/dev/null
  )
  start_store "$client" "$peer"
  daemon apiserver "$PROGRAMS/kube-apiserver" --etcd-servers="http://127.0.0.1:$client" \
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --endpoint-reconciler-type=none \
    --secure-port="$port" --service-cluster-ip-range=198.19.0.0/20 --cert-dir="$DIR/pki" \
    --token-auth-file="$DIR/tokens.csv" --authorization-mode=RBAC \
    --disable-admission-plugins=ServiceAccount \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$DIR/accounts.pub" \
    --service-account-signing-key-file="$DIR/accounts.key"
  wait_for "the server's certificate" test -s "$DIR/pki/apiserver.crt"
  (
    umask 077
    cat >"$DIR/kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: mote, cluster: {server: "https://127.0.0.1:$port", certificate-authority: $DIR/pki/apiserver.crt}}]
users: [{name: me, user: {token: $token}}]
contexts: [{name: mote, context: {cluster: mote, user: me, namespace: default}}]
current-context: mote
YAML
  )
  wait_for "the API server" kubectl get --raw /readyz
  # Usually the controller manager makes this account, but it does not run here.
  wait_for "the namespace default" kubectl get namespace default
  kubectl create serviceaccount default >/dev/null
  say "ready after $SECONDS s: scripts/apiserver.sh kubectl api-resources"
}

token() {
  local namespace=${1%/*} name=${1#*/}
  [ "$1" != "$name" ] || namespace=default
  kubectl -n "$namespace" create token "$name"
}

down() {
  [ -d "$DIR" ] || return 0
  local file
  for file in apiserver.pid etcd.pid holder; do
    [ -s "$DIR/$file" ] || continue
    kill -9 "$(cat "$DIR/$file")" 2>/dev/null || true
  done
  rm -rf "$DIR"
}

verb=${1:-}
[ $# -gt 0 ] && shift
case $verb in
  up) up "$@" ;;
  env) printf "export KUBECONFIG=%q PATH=%q:\$PATH\n" "$DIR/kubeconfig" "$PROGRAMS" ;;
  token) token "${1:?a service account}" ;;
  kubectl) kubectl "$@" ;;
  run) inside env KUBECONFIG="$DIR/kubeconfig" PATH="$PROGRAMS:$PATH" "$@" ;;
  down) down ;;
  *) sed -n '2,19s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
