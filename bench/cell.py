"""Compares a cell in a pod with the same node outside Kubernetes, and with a plain Deployment.

The node outside has its own network namespace on the same bridge as the pods, the same root file
system as the cell, and the same memory, so that only the pod differs. Both are called in
alternation from the machine's namespace. See bench/README.md.

Usage: cell.py --bin FOLDER [--rounds N] [--seconds N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm"), str(HERE.parent / "tests" / "kubernetes")]

from machine import machine  # noqa: E402
from node import ROOT  # noqa: E402
from outcome import Outcome, exit_status  # noqa: E402

from cell import NAMESPACE, Cluster, bare_cell, deploy, inside, manifest  # noqa: E402

THROUGHPUT_BAR = 0.95
COLD_MS_BAR = 2.0
#: An address of the pods' network that no pod has.
OUTSIDE = "198.18.129.250"
GATEWAY = "198.18.128.1"
IDLE = '[scale]\nidle = "1ms"\n'
#: Asks two URLs in turns, each time on a connection of its own, and prints milliseconds.
ASK = """
import json, socket, sys, time
rounds, pause, *hosts = sys.argv[1:]
path = hosts.pop()
times = {host: [] for host in hosts}
for round in range(int(rounds)):
    for host in hosts if round % 2 else hosts[::-1]:
        time.sleep(float(pause))
        since = time.perf_counter()
        with socket.create_connection((host, 8080), 20) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = f"GET {path} HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n"
            sock.sendall(head.encode())
            answer = b""
            while piece := sock.recv(4096):
                answer += piece
        if b" 200 " not in answer.split(b"\\r\\n")[0]:
            raise SystemExit(answer.decode())
        times[host].append((time.perf_counter() - since) * 1e3)
print(json.dumps(times))
"""
SERVER = (
    "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n    def do_GET(self):\n        "
    "self.send_response(200); self.send_header('content-length', '4'); self.end_headers(); "
    "self.wfile.write(b'mote')\nh.ThreadingHTTPServer(('', 8080), H).serve_forever()"
)


class Outside:
    """A node from the cell's image, next to the cluster's pods. Use as a context manager."""

    def __init__(self, cluster: Cluster, binaries: Path, images: Path, memory: str) -> None:
        self.cluster, self.binaries = cluster, binaries
        self.folder = Path(tempfile.mkdtemp(prefix="mote-cell"))
        self.folder.chmod(0o755)
        root = self.folder / "root"
        root.mkdir()
        for layer in ("cell-base", "cell-programs"):
            (tar,) = images.glob(f"{layer}-*.tar")
            subprocess.run(["tar", "-xf", tar, "-C", root], check=True)
        (root / "old").mkdir()
        # In groups of its own, as the cell is: the scheduler counts the node with all its instances
        # as one.
        group = f"{Path(cluster.environment['CLUSTER_DIR']).name}-node1/outside"
        steps = f"""
            for one in cpu cpuacct memory pids; do
              mkdir -p /sys/fs/cgroup/$one/{group} && echo $$ > /sys/fs/cgroup/$one/{group}/tasks
            done
            unshare --net sleep 3600 & net=$!
            until [ "$(readlink /proc/$net/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
            ip link add outside0 type veth peer name eth0 netns $net
            ip link set outside0 master cni0 up
            nsenter -t $net -n sh -c 'ip link set lo up; ip address add {OUTSIDE}/23 dev eth0
              ip link set eth0 up; ip route add default via {GATEWAY}'
            exec nsenter -t $net -n unshare --mount --pid --fork sh -c '
              mount --make-rprivate /; mount --rbind {root} {root}; cd {root}
              mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev
              pivot_root . old; umount -l /old
              exec /usr/local/bin/mote up --lan --http 0.0.0.0:8080 --memory {memory}'"""
        self.log = (self.folder / "log").open("w")
        self.process = subprocess.Popen(
            cluster.command("run", "sh", "-c", steps),
            text=True,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        self.socket = root / "run" / "mote" / "mote.sock"
        if " is ready in " not in self.process.stdout.readline():
            raise SystemExit((self.folder / "log").read_text())

    def __enter__(self) -> Outside:
        return self

    def __exit__(self, *_: object) -> None:
        # The end of the cluster ends all processes in its namespaces.
        self.log.close()

    def mote(self, *args: str) -> str:
        return subprocess.run(
            [self.binaries / "mote", *args],
            capture_output=True,
            text=True,
            env={**os.environ, "MOTE_SOCKET": str(self.socket)},
            check=True,
        ).stdout

    def deploy(self, name: str, files: dict[str, str]) -> None:
        code = self.folder / name
        code.mkdir()
        for file, text in files.items():
            (code / file).write_text(text)
        self.mote("deploy", str(code))


def example(name: str, more: str = "") -> dict[str, str]:
    folder = ROOT / "examples" / name
    files = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    files["mote.toml"] += more
    return files


def warm(cluster: Cluster, binaries: Path, pod: str, name: str, seconds: int) -> Outcome:
    """Requests per second of the cell divided by those of the node outside, in turns."""
    said = cluster.call(
        "run",
        str(binaries / "mote"),
        "bench",
        f"http://{pod}:8080/{name}",
        "--baseline",
        f"http://{OUTSIDE}:8080/{name}",
        "--clients",
        "16",
        "--duration",
        f"{seconds}s",
        "-o",
        "json",
        seconds=seconds * 10 + 60,
    )
    report = json.loads(said)
    return Outcome(
        f"{name}: warm, cell over outside",
        report["ratio"],
        "",
        THROUGHPUT_BAR,
        at_least=True,
        detail={"report": report},
    )


def spread(times: list[float]) -> dict:
    return {
        "count": len(times),
        "p50_ms": statistics.median(times),
        "p90_ms": statistics.quantiles(times, n=10)[8],
    }


def ask(cluster: Cluster, rounds: int, pause: float, pod: str, name: str) -> list[list[float]]:
    said = cluster.call(
        "run", "python3", "-c", ASK, str(rounds), str(pause), pod, OUTSIDE, f"/{name}", seconds=600
    )
    times = json.loads(said)
    return [times[pod], times[OUTSIDE]]


def cold(cluster: Cluster, pod_name: str, pod: str, name: str, rounds: int) -> list[Outcome]:
    times = ask(cluster, rounds, 0.8, pod, name)
    logs = inside(
        cluster, pod_name, f"mote logs {name} --limit 5000 2>/dev/null || mote logs {name}"
    )
    starts = logs.count("first-invocation")
    ours, theirs = (statistics.median(one) for one in times)
    detail = {"cell": spread(times[0]), "outside": spread(times[1]), "starts_in_log": starts}
    return [
        Outcome(
            f"{name}: cold, cell above outside", ours - theirs, "ms", COLD_MS_BAR, detail=detail
        ),
        Outcome(f"{name}: cold, cell", ours, "ms"),
        Outcome(f"{name}: cold, outside", theirs, "ms"),
    ]


def plain_deployment(cluster: Cluster, image: str, rounds: int) -> Outcome:
    """Scales a Deployment of the same image with a small server from 0 to 1, until a request
    through its Service is answered."""
    labels = {"app": "plain"}
    pod = {
        "containers": [
            {
                "name": "server",
                "image": image,
                "imagePullPolicy": "Never",
                "command": ["python3", "-c", SERVER],
            }
        ],
        "terminationGracePeriodSeconds": 0,
    }
    objects = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "plain"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "plain"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("apply", "-f", "-", data=made.encode())
    address = cluster.get("service", "plain")["spec"]["clusterIP"]
    times = []
    for _ in range(rounds):
        since = time.perf_counter()
        cluster.kubectl("scale", "deployment/plain", "--replicas=1")
        cluster.call(
            "run",
            "sh",
            "-c",
            f"until curl -s -o /dev/null -m 1 http://{address}/; do sleep 0.01; done",
        )
        times.append((time.perf_counter() - since) * 1e3)
        cluster.kubectl("scale", "deployment/plain", "--replicas=0")
        cluster.wait(
            "the pod to be gone", lambda: not cluster.get("pods", "-l", "app=plain")["items"]
        )
    return Outcome(
        "plain Deployment, 0 to 1", statistics.median(times), "ms", detail={"times_ms": times}
    )


#: Prints the memory of the node's processes in KiB, private and shared in parts, and their time on
#: the processor in ticks of 10 ms, before and after 20 s.
IDLE_SCRIPT = """
ticks() { cat /proc/[0-9]*/stat | awk '$2 == "(mote)" {sum += $14 + $15} END {print sum}'; }
before=$(ticks); sleep 20; after=$(ticks); echo $((after - before))
for one in /proc/[0-9]*; do
  [ "$(cat $one/comm)" = mote ] && cat $one/smaps_rollup
done 2>/dev/null | awk '/^Pss:/ {sum += $2} END {print sum}'
cat /sys/fs/cgroup/memory/memory.stat 2>/dev/null | awk '$1 == "total_rss" {print int($2 / 1024)}'
"""


def idle(cluster: Cluster, pod_name: str) -> list[Outcome]:
    ticks, pss, *group = (int(one) for one in inside(cluster, pod_name, IDLE_SCRIPT).split())
    outcomes = [
        Outcome("idle cell: processor", ticks / 20, "%"),
        Outcome("idle cell: its processes", pss / 1024, "MiB"),
    ]
    return outcomes + [Outcome("idle cell: anonymous memory", one / 1024, "MiB") for one in group]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder with mote")
    parser.add_argument("--rounds", type=int, default=50, help="cold starts of each kind")
    parser.add_argument("--seconds", type=int, default=10, help="length of each warm run")
    options = parser.parse_args()
    images = Path(os.environ.get("IMAGES", ROOT / "target" / "images"))
    described = {**machine(), "binary": str(options.bin.name)}
    started = datetime.datetime.now(datetime.UTC)
    folder = None
    try:
        with Cluster("mote-bench-cell") as cluster:
            cluster.call("load", str(images / "cell.tar"))
            pod_name = bare_cell(options.bin, cluster)
            outcomes = idle(cluster, pod_name)
            found = cluster.get("pod", "-n", NAMESPACE, pod_name)
            pod, image = found["status"]["podIP"], found["spec"]["containers"][0]["image"]
            with Outside(cluster, options.bin, images, "768MiB") as outside:
                folder = outside.folder
                for name in ("hello-python", "hello-node"):
                    deploy(cluster, pod_name, name, example(name))
                    outside.deploy(name, example(name))
                    outcomes.append(warm(cluster, options.bin, pod, name, options.seconds))
                code = {
                    "app.py": "def handle(event, ctx):\n    return 'mote'\n",
                    "mote.toml": manifest("cold", IDLE),
                }
                deploy(cluster, pod_name, "cold", code)
                outside.deploy("cold", code)
                outcomes += cold(cluster, pod_name, pod, "cold", options.rounds)
            outcomes.append(plain_deployment(cluster, image, 5))
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    for outcome in outcomes:
        print(outcome.line())
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    result = {
        "machine": described,
        "rounds": options.rounds,
        "outcomes": [outcome.as_json() for outcome in outcomes],
    }
    path = results / f"cell-{started:%Y-%m-%dT%H%M%SZ}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path)
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
