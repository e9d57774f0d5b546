#!/usr/bin/env bash
# A real Kubernetes on this machine, for the project's tests and for trying mote on a cluster. It
# needs root, and nothing of it is reachable from outside: every node has its own network, mount and
# process namespaces, and its end removes everything. Its addresses are in ranges for benchmarks
# (RFC 2544).
#
# Usage: scripts/cluster.sh build [PROGRAM…]   builds all programs, or only these, once; kine,
#                                              metrics-server, CoreDNS are built only if named
#        scripts/cluster.sh up             a control plane and the node node1
#        scripts/cluster.sh join           one more node: node2, node3 …
#        scripts/cluster.sh kill NODE      ends a node at once, as if its machine had failed
#        scripts/cluster.sh metrics        starts metrics-server, so that HPAs see processor time
#        scripts/cluster.sh dns            starts CoreDNS, so that pods find Services by their names
#        scripts/cluster.sh restart-etcd       ends the store at once and starts it again
#        scripts/cluster.sh load FILE…     loads images (docker archives) into all nodes
#        scripts/cluster.sh run COMMAND…   runs a command where the cluster can be reached
#        scripts/cluster.sh kubectl ARG…   kubectl as the administrator
#        scripts/cluster.sh down           ends everything
#
# CLUSTER_STORE=kine keeps the objects in SQLite instead of etcd.
# CLUSTER_DIR has the files of the running cluster (default: /tmp/mote-cluster). Clusters with folders
# of different names run side by side: each has all of its addresses in namespaces of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=v1.36.3
DIR=${CLUSTER_DIR:-/tmp/mote-cluster}
# The names of a node's control groups begin with this name, followed by the node's own.
NAME=$(basename "$DIR")
PROGRAMS=$PWD/.cache/kubernetes-$VERSION
API=198.18.0.1
PODS=198.18.128.0/17
SERVICES=198.19.0.0/20
# The store: etcd, or kine with SQLite, which is what K3s uses.
STORE=${CLUSTER_STORE:-etcd}
# Every wait ends after this many seconds.
PATIENCE=${CLUSTER_PATIENCE:-120}

say() { echo "cluster: $*" >&2; }
fail() {
  say "$*"
  exit 1
}
# Waits until a command succeeds.
wait_for() {
  local what=$1 end=$((SECONDS + PATIENCE))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "$what: not after $PATIENCE s; see the logs in $DIR"
    sleep 0.1
  done
}

# Prints the process that holds the namespaces of a node.
holder() { cat "$DIR/$1/pid"; }
# Runs a command inside a node.
inside() {
  local node=$1
  shift
  nsenter -t "$(holder "$node")" -n -m -p -- "$@"
}
# Starts a daemon inside a node, whose output goes to a file.
daemon() {
  local node=$1 name=$2
  shift 2
  inside "$node" "$@" </dev/null >"$DIR/$node/$name.log" 2>&1 &
}
kubectl() { inside node1 "$PROGRAMS/kubectl" --kubeconfig "$DIR/admin.kubeconfig" "$@"; }

install_packages() {
  local missing=()
  command -v containerd >/dev/null || missing+=(containerd)
  command -v runc >/dev/null || missing+=(runc)
  command -v iptables >/dev/null || missing+=(iptables)
  command -v conntrack >/dev/null || missing+=(conntrack)
  command -v etcd >/dev/null || missing+=(etcd-server)
  command -v openssl >/dev/null || missing+=(openssl)
  command -v ip >/dev/null || missing+=(iproute2)
  [ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
  [ ${#missing[@]} = 0 ] && return
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

build() {
  install_packages
  local program package packages=()
  local all=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl node)
  [ $# -gt 0 ] || set -- "${all[@]}"
  for program in "$@"; do
    [ ! -x "$PROGRAMS/$program" ] || continue
    case $program in
      # K3s's store: SQLite behind the etcd protocol.
      kine) build_module kine 1 github.com/k3s-io/kine@v0.16.4 && continue ;;
      metrics-server)
        build_module metrics-server 0 sigs.k8s.io/metrics-server/cmd/metrics-server@v0.9.0 && continue
        ;;
      coredns) build_module coredns 0 github.com/coredns/coredns@v1.14.7 && continue ;;
    esac
    package=k8s.io/kubernetes/cmd/$program
    [ "$program" != node ] || package=./node
    packages+=("$package")
  done
  [ ${#packages[@]} -gt 0 ] || return 0
  command -v go >/dev/null || fail "needs Go 1.26 to build Kubernetes"
  say "building $* of Kubernetes $VERSION; all of it takes ten minutes of processor time, once"
  mkdir -p "$PROGRAMS"
  local version="-X k8s.io/component-base/version.gitVersion=$VERSION"
  version+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
  (
    cd tests/kubernetes
    export CGO_ENABLED=0
    nice -n 10 go build -trimpath -tags grpcnotrace -ldflags "-s -w $version" -o "$PROGRAMS/" "${packages[@]}"
  )
}

# build_module NAME CGO PACKAGE@VERSION: builds a program that is a separate module.
build_module() {
  command -v go >/dev/null || fail "needs Go 1.26 to build $1"
  say "building $1; it takes some minutes, once"
  mkdir -p "$PROGRAMS"
  (cd /tmp && GOBIN=$PROGRAMS CGO_ENABLED=$2 nice -n 10 go install -trimpath -ldflags "-s -w" "$3") ||
    fail "$1 cannot be built"
}

# The image of a pod's first process, and images of single static programs in general.
# image_of FILE NAME OUT: a docker archive with the program as /NAME.
image_of() {
  python3 - "$@" <<'PY'
import hashlib, io, json, os, sys, tarfile
path, name, out = sys.argv[1:]
layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as tar:
    entry = tarfile.TarInfo(os.path.basename(path))
    data = open(path, "rb").read()
    entry.size, entry.mode = len(data), 0o755
    tar.addfile(entry, io.BytesIO(data))
layer = layer.getvalue()
config = {
    "architecture": "amd64", "os": "linux",
    "config": {"Entrypoint": ["/" + os.path.basename(path)]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
}
manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
with tarfile.open(out, "w") as tar:
    for file, data in [("config.json", json.dumps(config).encode()), ("layer.tar", layer),
                       ("manifest.json", json.dumps(manifest).encode())]:
        entry = tarfile.TarInfo(file)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
PY
}

# Machine-wide settings that the kubelet changes. `down` restores them.
MACHINE="vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes"
# Each running cluster has a copy here. All copies have the values from before the first cluster.
SAVED=/run/mote-clusters
save_machine() {
  local key other
  mkdir -p "$SAVED"
  exec 9>"$SAVED/.lock"
  flock 9
  other=$(find "$SAVED" -maxdepth 1 -name '*.machine' | head -1)
  if [ -n "$other" ]; then
    cp "$other" "$SAVED/$NAME.machine"
  else
    for key in $MACHINE; do echo "$key $(cat "/proc/sys/$key")"; done >"$SAVED/$NAME.machine"
  fi
  exec 9>&-
}
restore_machine() {
  local key value last
  [ -f "$SAVED/$NAME.machine" ] || return 0
  exec 9>"$SAVED/.lock"
  flock 9
  last=$(mktemp)
  mv "$SAVED/$NAME.machine" "$last"
  if [ -z "$(find "$SAVED" -maxdepth 1 -name '*.machine')" ]; then
    while read -r key value; do echo "$value" >"/proc/sys/$key" || true; done <"$last"
  fi
  rm -f "$last"
  exec 9>&-
}

# token USER ID GROUPS: a line of the token file, and a kubeconfig.
user() {
  local name=$1 id=$2 groups=$3 token
  token=$(openssl rand -hex 16)
  echo "$token,$name,$id,\"$groups\"" >>"$DIR/tokens.csv"
  cat >"$DIR/$id.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: mote, cluster: {server: "https://$API:6443", certificate-authority: $DIR/pki/apiserver.crt}}]
users: [{name: me, user: {token: $token}}]
contexts: [{name: mote, context: {cluster: mote, user: me}}]
current-context: mote
YAML
  chmod 600 "$DIR/$id.kubeconfig" "$DIR/tokens.csv"
}

# The switch between nodes. It has its own network namespace, because in a node's namespace, that
# node's packet filter would translate each packet twice.
make_switch() {
  mkdir -p "$DIR/switch"
  unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
  echo $! >"$DIR/switch/pid"
  wait_for "the switch" test -e "/proc/$(holder switch)/ns/net"
  nsenter -t "$(holder switch)" -n ip link add br0 type bridge
  nsenter -t "$(holder switch)" -n ip link set br0 up
}

# start_node NAME NUMBER
start_node() {
  local node=$1 number=$2 group
  local address=198.18.0.$number here=$DIR/$1
  mkdir -p "$here"/{containerd,run,kubelet,cni,etcd}
  unshare --net --mount --pid --fork --mount-proc "$PROGRAMS/node" </dev/null >/dev/null 2>&1 &
  # The process that unshare has started is process 1 of the namespaces.
  local outer=$!
  wait_for "the namespaces of $node" pgrep -P $outer
  pgrep -P $outer >"$here/pid"
  inside "$node" mount --make-rshared /
  inside "$node" umount /sys/fs/cgroup/unified 2>/dev/null || true
  local folder
  for folder in /run/netns /run/containerd /var/lib/kubelet /var/lib/cni /var/log; do
    mkdir -p "$folder"
    inside "$node" mount -t tmpfs tmpfs "$folder"
  done
  nsenter -t "$(holder switch)" -n \
    ip link add "mote$number" type veth peer name node0 netns "$(holder "$node")"
  nsenter -t "$(holder switch)" -n ip link set "mote$number" master br0 up
  inside "$node" ip link set lo up
  inside "$node" ip link set node0 up
  inside "$node" ip address add "$address/24" dev node0
  # Without a default route, a connection to a Service fails before it is translated.
  inside "$node" ip route add default dev node0
  inside "$node" sysctl -q -w net.ipv4.ip_forward=1
  inside "$node" sysctl -q -w net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true
  for group in /sys/fs/cgroup/*/; do
    case $group in */unified/ | */systemd/) continue ;; esac
    mkdir -p "${group}$NAME-$node"
    [ -e "${group}cpuset.cpus" ] || continue
    cat "${group}cpuset.cpus" >"${group}$NAME-$node/cpuset.cpus"
    cat "${group}cpuset.mems" >"${group}$NAME-$node/cpuset.mems"
  done
  mkdir -p "/sys/fs/cgroup/systemd/$NAME-$node" 2>/dev/null || true
}

# Prints the addresses for a node's pods: each node gets a block of 64.
pods_of() { echo "198.18.$((128 + ($1 - 1) * 2)).0/23"; }

start_containerd() {
  local node=$1 number=$2 here=$DIR/$1
  mkdir -p "$here/cni/net.d"
  cat >"$here/cni/net.d/10-mote.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "mote", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "/var/lib/cni/networks",
            "ranges": [[{"subnet": "$(pods_of "$number")"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
  cat >"$here/containerd.toml" <<TOML
version = 2
root = "$here/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "mote.local/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$here/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
TOML
  sed -i '/^snapshotter/d' "$here/containerd.toml"
  daemon "$node" containerd containerd --config "$here/containerd.toml"
  wait_for "containerd of $node" inside "$node" ctr -a /run/containerd/containerd.sock version
  load_into "$node" "$DIR/pause.tar"
}

load_into() {
  local node=$1
  shift
  local file
  for file in "$@"; do
    inside "$node" ctr -a /run/containerd/containerd.sock -n k8s.io images import "$(realpath "$file")" >/dev/null
  done
}

start_kubelet() {
  local node=$1 number=$2 here=$DIR/$1
  cat >"$here/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$NAME-$node
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
podLogsDir: /var/log/pods
volumePluginDir: /var/lib/kubelet/plugins-volume
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: "1%", imagefs.available: "1%"}
resolvConf: ""
clusterDNS: [$API]
YAML
  daemon "$node" kubelet "$PROGRAMS/kubelet" --config "$here/kubelet.yaml" \
    --kubeconfig "$DIR/node-$node.kubeconfig" --hostname-override "$node" \
    --node-ip "198.18.0.$number" --root-dir /var/lib/kubelet --cert-dir "$here/kubelet"
  cat >"$here/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: $node
clusterCIDR: $PODS
clientConnection: {kubeconfig: $DIR/proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 10ms}
YAML
  daemon "$node" proxy "$PROGRAMS/kube-proxy" --config "$here/proxy.yaml"
}

# The API server reads its tokens only when it starts, so tokens for nodes that may join later are
# made then.
NODES_MAX=4

start_etcd() {
  if [ "$STORE" = kine ]; then
    mkdir -p "$DIR/node1/etcd"
    daemon node1 etcd "$PROGRAMS/kine" --metrics-bind-address 0 \
      --endpoint "sqlite://$DIR/node1/etcd/state.db?_journal=WAL&cache=shared&_busy_timeout=30000" \
      --listen-address tcp://127.0.0.1:2379
    return
  fi
  daemon node1 etcd etcd --data-dir "$DIR/node1/etcd/data" --unsafe-no-fsync \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
}

start_control_plane() {
  local here=$DIR/node1 number
  openssl genrsa -out "$DIR/accounts.key" 2048 2>/dev/null
  openssl rsa -in "$DIR/accounts.key" -pubout -out "$DIR/accounts.pub" 2>/dev/null
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=front-proxy \
    -keyout "$DIR/front.key" -out "$DIR/front.crt" 2>/dev/null
  user admin admin system:masters
  user system:kube-controller-manager manager ""
  user system:kube-scheduler scheduler ""
  user system:kube-proxy proxy ""
  for number in $(seq "$NODES_MAX"); do user "system:node:node$number" "node-node$number" system:nodes; done
  start_etcd
  daemon node1 apiserver "$PROGRAMS/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$API" --secure-port=6443 --service-cluster-ip-range="$SERVICES" \
    --cert-dir="$DIR/pki" --token-auth-file="$DIR/tokens.csv" --authorization-mode=Node,RBAC \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$DIR/accounts.pub" \
    --service-account-signing-key-file="$DIR/accounts.key" --allow-privileged=true \
    --kubelet-preferred-address-types=InternalIP --enable-aggregator-routing=true \
    --requestheader-client-ca-file="$DIR/front.crt" --requestheader-allowed-names=front-proxy \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User \
    --proxy-client-cert-file="$DIR/front.crt" --proxy-client-key-file="$DIR/front.key"
  wait_for "the API server" kubectl get --raw /readyz
  daemon node1 manager "$PROGRAMS/kube-controller-manager" --kubeconfig "$DIR/manager.kubeconfig" \
    --authentication-kubeconfig "$DIR/manager.kubeconfig" \
    --authorization-kubeconfig "$DIR/manager.kubeconfig" --use-service-account-credentials \
    --leader-elect=false --service-account-private-key-file="$DIR/accounts.key" \
    --root-ca-file="$DIR/pki/apiserver.crt" --kube-api-qps=500 --kube-api-burst=1000
  daemon node1 scheduler "$PROGRAMS/kube-scheduler" --kubeconfig "$DIR/scheduler.kubeconfig" \
    --authentication-kubeconfig "$DIR/scheduler.kubeconfig" \
    --authorization-kubeconfig "$DIR/scheduler.kubeconfig" --leader-elect=false \
    --kube-api-qps=500 --kube-api-burst=1000
  kubectl create clusterrolebinding mote-node-proxier --clusterrole=system:node-proxier \
    --user=system:kube-proxy >/dev/null
  wait_for "the service account" kubectl get serviceaccount default
}

# Processor time and memory of pods, for the API group metrics.k8s.io. It runs next to the API
# server as a process of node1, so it needs no image.
start_metrics() {
  build metrics-server
  kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {ports: [{name: https, port: 443, targetPort: 4443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: metrics-server
  namespace: kube-system
  labels: {kubernetes.io/service-name: metrics-server}
addressType: IPv4
endpoints: [{addresses: [$API], conditions: {ready: true}}]
ports: [{name: https, port: 4443}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  service: {name: metrics-server, namespace: kube-system}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
YAML
  daemon node1 metrics-server "$PROGRAMS/metrics-server" --secure-port=4443 \
    --cert-dir="$DIR/metrics-server" --kubeconfig="$DIR/admin.kubeconfig" \
    --authentication-kubeconfig="$DIR/admin.kubeconfig" \
    --authorization-kubeconfig="$DIR/admin.kubeconfig" --kubelet-insecure-tls \
    --kubelet-preferred-address-types=InternalIP --metric-resolution=15s \
    --kubelet-request-timeout=5s
  wait_for "the metrics of node1" kubectl top node node1
}

# Names of Services below cluster.local. The address is that of clusterDNS in the kubelet's settings.
start_dns() {
  build coredns
  cat >"$DIR/Corefile" <<TXT
cluster.local:53 {
  bind $API
  kubernetes cluster.local {
    kubeconfig $DIR/admin.kubeconfig
  }
}
TXT
  daemon node1 coredns "$PROGRAMS/coredns" -conf "$DIR/Corefile"
  wait_for "CoreDNS" inside node1 python3 -c '
import socket, sys
# A question for the address of kubernetes.default.svc.cluster.local, which every cluster has.
name = b"".join(bytes([len(part)]) + part for part in b"kubernetes default svc cluster local".split())
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.settimeout(1)
    udp.sendto(b"\0\1\1\0\0\1" + bytes(6) + name + b"\0\0\1\0\1", (sys.argv[1], 53))
    answer = udp.recv(512)
sys.exit(answer[3] & 15 != 0 or answer[7] == 0)' "$API"
}

ready() { [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }

join_node() {
  local node=node$1 number=$1 other
  start_node "$node" "$number"
  for other in $(seq "$((number - 1))"); do
    [ -e "$DIR/node$other/pid" ] || continue
    inside "node$other" ip route replace "$(pods_of "$number")" via "198.18.0.$number"
    inside "$node" ip route replace "$(pods_of "$other")" via "198.18.0.$other"
  done
  [ "$number" = 1 ] && start_control_plane
  start_containerd "$node" "$number"
  start_kubelet "$node" "$number"
  wait_for "$node to be ready" ready "$node"
}

up() {
  [ "$(id -u)" = 0 ] || fail "needs root, for namespaces and control groups"
  [ ! -e "$DIR" ] || fail "$DIR exists; run scripts/cluster.sh down first"
  build
  [ "$STORE" = etcd ] || build "$STORE"
  mkdir -m 700 "$DIR"
  mkdir "$DIR/pki"
  save_machine
  cp "$PROGRAMS/node" "$DIR/pause"
  image_of "$DIR/pause" mote.local/pause:1 "$DIR/pause.tar"
  make_switch
  join_node 1
  say "node1 is ready after $SECONDS s: scripts/cluster.sh kubectl get nodes"
}

join() {
  local number=2
  while [ -e "$DIR/node$number" ]; do number=$((number + 1)); done
  [ "$number" -le "$NODES_MAX" ] || fail "a cluster has at most $NODES_MAX nodes"
  join_node "$number"
  say "node$number is ready"
}

# Ends every process of a node, and removes its control groups.
kill_node() {
  local node=$1 group
  [ -e "$DIR/$node/pid" ] || fail "there is no node $node"
  kill -9 "$(holder "$node")" 2>/dev/null || true
  rm -f "$DIR/$node/pid"
  for group in /sys/fs/cgroup/*/"$NAME-$node"; do
    [ -d "$group" ] || continue
    local end=$((SECONDS + 10))
    until find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || [ $SECONDS -ge $end ]; do
      sleep 0.1
    done
  done
}

down() {
  [ -d "$DIR" ] || return 0
  local pid
  for pid in "$DIR"/node*/pid; do
    [ -e "$pid" ] && kill_node "$(basename "$(dirname "$pid")")"
  done
  if [ -e "$DIR/switch/pid" ]; then kill "$(holder switch)" 2>/dev/null || true; fi
  restore_machine
  rm -rf "$DIR"
}

load() {
  local pid
  for pid in "$DIR"/node*/pid; do load_into "$(basename "$(dirname "$pid")")" "$@"; done
}

verb=${1:-}
[ $# -gt 0 ] && shift
case $verb in
  build) build "$@" ;;
  up) up ;;
  join) join ;;
  kill) kill_node "${1:?a node}" ;;
  metrics) start_metrics ;;
  dns) start_dns ;;
  restart-etcd)
    inside node1 pkill -9 -x "$STORE"
    start_etcd
    ;;
  load) load "$@" ;;
  run) inside node1 "$@" ;;
  kubectl) kubectl "$@" ;;
  down) down ;;
  *) sed -n '2,25s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
