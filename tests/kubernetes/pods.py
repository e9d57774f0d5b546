"""Functions as pods on a real cluster with two nodes: what the pods may do, how fast one is claimed,
and the loss of a pod and of a node. `make test-cluster` runs it.

Usage: pods.py --bin FOLDER

The network plugin of this cluster does not enforce NetworkPolicies, so only the objects are checked.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from cell import NAMESPACE, ROOT, Cluster, installer, left_over

PODS = "mote-functions"
#: Says where it runs and what it finds there. `/slow` takes a while.
CODE = """
import os
import time


def handle(event, ctx):
    if event.path == "/slow":
        time.sleep(20)
    if event.path == "/look":
        token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
        status = open("/proc/self/status").read()
        kept = {key: value.strip() for key, _, value in (l.partition(":") for l in status.split("\\n"))}
        root = os.access("/", os.W_OK) or os.access("/usr", os.W_OK)
        own = open("/proc/self/environ").read() + str(sorted(os.environ))
        try:
            os.kill(1, 0)
            first = open("/proc/1/environ").read()
        except OSError as error:
            first = type(error).__name__
        return repr((os.getuid(), kept["CapEff"], kept["NoNewPrivs"], kept["Seccomp"],
                     os.path.exists(token), root, "SECRET" in own, first))
    return os.uname().nodename
"""


def function(name: str, more: dict | None = None) -> bytes:
    spec = {"isolation": "pod", "runtime": "python", "files": {"app.py": CODE}, **(more or {})}
    return json.dumps(
        {
            "apiVersion": "mote.dev/v1alpha1",
            "kind": "Function",
            "metadata": {"name": name},
            "spec": spec,
        }
    ).encode()


def pods(cluster: Cluster, state: str = "") -> list[dict]:
    found = cluster.get("pods", "-n", PODS)["items"]
    labels = [(pod, pod["metadata"]["labels"].get("mote.dev/state")) for pod in found]
    live = [pair for pair in labels if "deletionTimestamp" not in pair[0]["metadata"]]
    return [pod for pod, now in live if not state or now == state]


def cells(cluster: Cluster) -> list[dict]:
    found = cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=mote-cell")
    return found["items"]


def is_ready(cluster: Cluster, name: str) -> bool:
    conditions = cluster.get("function", name).get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def timed(cluster: Cluster, url: str) -> tuple[float, str, str]:
    """Seconds until the answer, as curl on the node measures it, the answer, and its status."""
    said = cluster.call(
        "run", "curl", "-sS", "-m", "60", "-w", "\\n%{time_total} %{http_code}", url
    )
    text, _, last = said.rpartition("\n")
    seconds, status = last.split()
    return float(seconds), text, status


def check_refused(cluster: Cluster) -> None:
    """The level of the namespace refuses what a cell needs."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root", "namespace": PODS},
        "spec": {"containers": [{"name": "c", "image": "mote.local/cell:x"}]},
    }
    command = cluster.command("kubectl", "apply", "-f", "-")
    done = subprocess.run(
        command,
        env=cluster.environment,
        input=json.dumps(pod),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode and "restricted" in done.stderr, done.stderr
    print("the level restricted: an ordinary pod is refused, those of functions are accepted")


def check_pod(cluster: Cluster, address: str) -> None:
    said = cluster.http(f"http://{address}/alone/look")
    uid, capabilities, no_new, seccomp, token, writable, secret, first = ast.literal_eval(said)
    assert (uid, int(capabilities, 16), no_new, seccomp) == (65532, 0, "1", "2"), said
    assert not token and not writable and not secret and first == "PermissionError", said
    for pod in pods(cluster):
        mounts = pod["spec"]["containers"][0]["volumeMounts"]
        assert not any("serviceaccount" in mount["mountPath"] for mount in mounts), mounts
    print(f"in the pod: {said}")


def check_policies(cluster: Cluster) -> None:
    more = {"allow": {"net": ["192.0.2.7:5432", "*:443"]}}
    cluster.kubectl("apply", "-f", "-", data=function("reaches", more))
    cluster.wait("the function", lambda: is_ready(cluster, "reaches"))
    found = cluster.get("networkpolicies", "-n", PODS)["items"]
    names = sorted(policy["metadata"]["name"] for policy in found)
    assert names == ["allow-reaches", "cells", "closed"], names
    (policy,) = [one for one in found if one["metadata"]["name"] == "allow-reaches"]
    text = json.dumps(policy["spec"]["egress"])
    assert "192.0.2.7/32" in text and "10.0.0.0/8" in text, text
    own = [pod for pod in pods(cluster) if "mote.dev/function" in pod["metadata"]["labels"]]
    assert own and policy["spec"]["podSelector"]["matchLabels"] == {"mote.dev/function": "reaches"}
    cluster.kubectl("delete", "function", "reaches")

    def is_gone() -> bool:
        names = cluster.kubectl("get", "networkpolicies", "-n", PODS, "-o", "name")
        return "allow-reaches" not in names

    cluster.wait("the policy to go", is_gone)
    print(
        "network policies: closed, cells, and one for each function with [allow] net (not enforced here)"
    )


def check_cold(cluster: Cluster, address: str, rounds: int) -> None:
    """Cold starts of one cell from waiting pods, measured by the caller and by the cell."""
    waits, calls = [], []
    (cell,) = [one for one in cells(cluster) if one["status"]["podIP"] in address]
    name = cell["metadata"]["name"]
    for _ in range(rounds):
        since = time.monotonic()

        def can_start() -> bool:
            listed = inside(cluster, name, "GET /v1/pods")
            fresh = [pod for pod in listed["pods"] if not pod["tried"]]
            return listed["running"] == 0 and len(fresh) > 0

        cluster.wait("a waiting pod and no instance", can_start)
        waits.append(time.monotonic() - since)
        seconds, text, status = timed(cluster, f"http://{address}/cold")
        assert status == "200" and text.startswith("python-"), (text, status)
        calls.append(1000 * seconds)
    ordered = sorted(calls)
    warm = [1000 * timed(cluster, f"http://{address}/alone")[0] for _ in range(rounds)]
    print(
        f"cold start from a waiting pod, {rounds} times: median {statistics.median(calls):.1f} ms, "
        f"{ordered[0]:.1f} to {ordered[-1]:.1f} ms; a warm call {statistics.median(warm):.1f} ms; "
        f"a pod waited again after {statistics.median(waits):.1f} s"
    )
    assert statistics.median(calls) <= 50, ordered


def inside(cluster: Cluster, pod: str, request: str) -> dict:
    """Asks the management API of a cell, over its socket."""
    code = (
        "import socket,sys;s=socket.socket(socket.AF_UNIX);s.connect('/run/mote/mote.sock');"
        f"s.sendall(b'{request} HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n');"
        "print(s.makefile().read().split('\\n\\n',1)[-1])"
    )
    command = ["exec", "-n", NAMESPACE, pod, "-c", "node", "--", "python3", "-c", code]
    return json.loads(cluster.kubectl(*command))


def check_death(cluster: Cluster, address: str) -> None:
    """A pod is killed: a safe invocation runs again in another pod, one that is not fails."""
    first = cluster.http(f"http://{address}/alone")
    url = f"http://{address}/alone/slow"
    command = ["run", "curl", "-sS", "-m", "60", "-w", "%{http_code}", "-o", "/dev/null"]
    post = subprocess.Popen(
        cluster.command(*command, "-d", "x", url),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(1)  # The invocation is under way.
    since = time.monotonic()
    cluster.kubectl(
        "delete", "pod", "-n", PODS, first, "--grace-period=0", "--force", "--wait=false"
    )
    assert (post.communicate(timeout=60)[0]) == "502"
    lost = time.monotonic() - since
    second = cluster.http(f"http://{address}/alone")
    took = time.monotonic() - since
    assert second != first, second
    print(
        f"a pod is killed: its caller has 502 after {lost:.1f} s, the next answer comes after {took:.1f} s"
    )


def check_lost_node(cluster: Cluster, address: str) -> None:
    """The machine of an instance is lost: the cell on the other one goes on in another pod."""

    def runs_on_node2() -> bool:
        name = cluster.http(f"http://{address}/alone")
        found = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods(cluster)}
        if found.get(name) == "node1":
            cluster.kubectl("delete", "pod", "-n", PODS, name, "--grace-period=0", "--force")
        return found.get(name) == "node2"

    cluster.wait("an instance on node2", runs_on_node2, 120)
    cluster.wait(
        "waiting pods on node1",
        lambda: any(pod["spec"].get("nodeName") == "node1" for pod in pods(cluster, "waiting")),
        60,
    )
    # Calls one after the other, from before the loss until some seconds after it.
    loop = (
        "for i in $(seq 1 200); do "
        f"curl -s -m 30 -o /dev/null -w '%{{time_total}} %{{http_code}}\\n' http://{address}/alone; "
        "sleep 0.05; done"
    )
    calls = subprocess.Popen(
        cluster.command("run", "sh", "-c", loop),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(1)  # Calls before the loss.
    since = time.monotonic()
    cluster.call("kill", "node2")

    def is_replaced() -> bool:
        found = [pod for pod in pods(cluster, "waiting") if pod["spec"].get("nodeName") == "node1"]
        return len(found) >= 2

    cluster.wait("two waiting pods on node1", is_replaced)
    print(
        f"a machine is lost: two pods wait on the other one after {time.monotonic() - since:.1f} s"
    )
    lines = [line.split() for line in calls.communicate(timeout=120)[0].splitlines()]
    bad = [line for line in lines if line[1] != "200"]
    slowest = max(float(line[0]) for line in lines)
    print(
        f"a machine is lost: {len(lines)} calls, {len(bad)} failed, the slowest took {slowest:.1f} s"
    )
    assert not bad and len(lines) == 200, bad


def main() -> None:
    parser = argparse.ArgumentParser(description="Tests functions as pods")
    parser.add_argument("--bin", type=Path, required=True, help="folder with mote")
    parser.add_argument("--rounds", type=int, default=20, help="cold starts")
    options = parser.parse_args()
    images = Path(os.environ.get("IMAGES", ROOT / "target" / "images"))
    since = time.monotonic()
    with Cluster("mote-test-pods") as cluster:
        cluster.call("join")
        cluster.call("load", str(images / "controller.tar"), str(images / "cell.tar"))
        try:
            run(options, cluster)
        except BaseException:
            print(cluster.kubectl("get", "pods", "-A", "-o", "wide", "--show-labels"))
            print(cluster.kubectl("get", "functions", "-A", "-o", "yaml"))
            logs = ["logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/part-of=mote", "--tail=60"]
            print(cluster.kubectl(*logs, "--all-containers"))
            print(cluster.kubectl("get", "events", "-n", PODS))
            raise
    print(f"all checks passed in {time.monotonic() - since:.0f} s")


def run(options: argparse.Namespace, cluster: Cluster) -> None:
    done = installer(options.bin, cluster, "install")
    assert done.returncode == 0, done.stderr
    begun = time.monotonic()
    cluster.kubectl("apply", "-f", "-", data=function("alone"))
    cluster.wait("the function", lambda: is_ready(cluster, "alone"))
    print(f"apply until the function is ready on two cells: {time.monotonic() - begun:.1f} s")
    (here,) = [one for one in cells(cluster) if one["spec"]["nodeName"] == "node1"]
    address = f"{here['status']['podIP']}:8080"
    check_refused(cluster)
    check_pod(cluster, address)
    check_policies(cluster)
    cluster.kubectl("apply", "-f", "-", data=function("cold", {"scale": {"idle": "1ms"}}))
    cluster.wait("the function", lambda: is_ready(cluster, "cold"))
    check_cold(cluster, address, options.rounds)
    cluster.kubectl("delete", "function", "cold")
    check_death(cluster, address)
    check_lost_node(cluster, address)
    cluster.kubectl("delete", "node", "node2")
    of_node2 = ["--field-selector=spec.nodeName=node2", "--force", "--grace-period=0"]
    for namespace in (NAMESPACE, PODS):
        cluster.kubectl("delete", "pods", "-n", namespace, *of_node2)
    done = installer(options.bin, cluster, "uninstall", "--functions")
    assert done.returncode == 0, done.stderr
    assert not left_over(cluster), left_over(cluster)


if __name__ == "__main__":
    sys.exit(main())
