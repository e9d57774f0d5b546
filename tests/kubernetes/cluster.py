"""mote on a real cluster with two nodes: installation, changes under load, and the loss of a node.
`make test-cluster` runs it after cell.py.

Usage: cluster.py --bin FOLDER [--long]

--long repeats each disturbance 20 times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cell import NAMESPACE, ROOT, Cluster, installer, left_over

LOAD = str(Path(__file__).with_name("load.py"))
#: Callers of load.py.
CALLERS = 8
CELLS = ["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=mote-cell"]


def function(name: str, text: str, more: dict | None = None) -> bytes:
    code = f"def handle(event, ctx):\n    return {text!r}\n"
    spec = {"files": {"app.py": code}, **(more or {})}
    return json.dumps(
        {
            "apiVersion": "mote.dev/v1alpha1",
            "kind": "Function",
            "metadata": {"name": name},
            "spec": spec,
        }
    ).encode()


def tell(cluster: Cluster) -> None:
    """What helps to understand a failure."""
    print(cluster.kubectl("get", "functions,cells,pods", "-A", "-o", "wide"))
    print(cluster.kubectl("get", "cells", "-A", "-o", "jsonpath={.items[*].status}"))
    print(cluster.kubectl("describe", "function", "hello"))
    for pod in cluster.get("pods", "-n", NAMESPACE)["items"]:
        name = pod["metadata"]["name"]
        container = "agent" if "mote-cell" in name else "controller"
        print(f"== {name}", cluster.kubectl("logs", "-n", NAMESPACE, name, "-c", container))


def applied(cluster: Cluster, text: bytes) -> bool:
    command = cluster.command("kubectl", "apply", "-f", "-")
    return not subprocess.run(
        command, env=cluster.environment, input=text, capture_output=True, timeout=60, check=False
    ).returncode


def is_ready(cluster: Cluster, name: str, split: str) -> bool:
    command = cluster.command("kubectl", "get", "function", name, "-o", "json")
    asked = subprocess.run(
        command, env=cluster.environment, capture_output=True, timeout=60, check=False
    )
    if asked.returncode:
        return False
    status = json.loads(asked.stdout).get("status", {})
    (ready,) = [one for one in status.get("conditions", []) if one["type"] == "Ready"] or [{}]
    return ready.get("status") == "True" and status.get("split") == split


def live_cells(cluster: Cluster) -> dict[str, str]:
    """The pods of cells that are ready, and their nodes."""
    found = {}
    for pod in cluster.get(*CELLS)["items"]:
        conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
        if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
            found[pod["metadata"]["name"]] = pod["spec"]["nodeName"]
    return found


class Load:
    """The callers, which run on node1, and a watch of the pods that they may call."""

    def __init__(self, cluster: Cluster, path: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mote-load"))
        self.say("warm-up", 1)
        slices = ["endpointslices", "-n", NAMESPACE, "-l", "kubernetes.io/service-name=mote"]
        watch = cluster.command("kubectl", "get", *slices, "--watch", "-o", "json")
        self.watch = subprocess.Popen(
            watch, env=cluster.environment, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self.follow, daemon=True).start()
        command = cluster.command("run", "python3", LOAD, "steady", path, str(self.folder))
        self.process = subprocess.Popen(command, env=cluster.environment)

    def follow(self) -> None:
        """Keeps the file with the endpoints that are ready."""
        held, decoder = "", json.JSONDecoder()
        for line in self.watch.stdout or []:
            held += line
            try:
                found, _ = decoder.raw_decode(held)
            except json.JSONDecodeError:
                continue
            held = ""
            if not any(port["name"] == "http" for port in found.get("ports") or []):
                continue
            ready = [
                f"{one['addresses'][0]}:8080"
                for one in found.get("endpoints") or []
                if one["conditions"].get("ready")
            ]
            self.put("endpoints", " ".join(ready))

    def put(self, name: str, text: str) -> None:
        part = self.folder / f"{name}.new"
        part.write_text(text)
        part.replace(self.folder / name)

    def say(self, stage: str, newest: int) -> None:
        self.put("stage", stage)
        self.put("newest", str(newest))

    def stop(self) -> dict:
        (self.folder / "stop").touch()
        self.process.wait(timeout=60)
        self.watch.terminate()
        return json.loads((self.folder / "result.json").read_text())


def measured(times: list[float]) -> str:
    return f"median {statistics.median(times):.2f} s, {min(times):.2f} to {max(times):.2f} s"


def check_install(binaries: Path, cluster: Cluster, url_of: Callable[[str], str]) -> None:
    since = time.monotonic()
    done = installer(binaries, cluster, "install", "--no-wait")
    assert done.returncode == 0, done.stderr
    cluster.kubectl("apply", "-f", "-", data=function("hello", "1"))
    assert cluster.call("run", "python3", LOAD, "first", url_of("hello")).strip() == "1"
    print(f"install to first answer: {time.monotonic() - since:.1f} s")
    cluster.wait("two cells", lambda: len(live_cells(cluster)) == 2)
    times = []
    for number in range(5):
        name = f"new{number}"
        since = time.monotonic()
        cluster.kubectl("apply", "-f", "-", data=function(name, "x"))
        cluster.call("run", "python3", LOAD, "first", url_of(name))
        times.append(time.monotonic() - since)
    print(f"apply to first answer: {measured(times)}")
    for number in range(5):
        cluster.kubectl("delete", "function", f"new{number}")


def check_changes(cluster: Cluster, rounds: int) -> None:
    load = Load(cluster, "/hello")
    number = 1

    def change(stage: str) -> None:
        nonlocal number
        number += 1
        load.say(stage, number - 1)
        # The API server may not have found its store again.
        text = function("hello", str(number))
        cluster.wait("the change", lambda: applied(cluster, text))
        split = f"@{number} 100 %"
        cluster.wait(f"revision {number}", lambda: is_ready(cluster, "hello", split))
        load.say(stage, number)

    def rollout() -> None:
        cluster.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/mote-cell")
        status = ["rollout", "status", "--timeout=170s", "-n", NAMESPACE, "daemonset/mote-cell"]
        cluster.kubectl(*status)

    def drain() -> None:
        before = [pod for pod, node in live_cells(cluster).items() if node == "node2"]
        drain = [
            "drain",
            "node2",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=120s",
        ]
        cluster.kubectl(*drain)
        cluster.kubectl("delete", "pod", "-n", NAMESPACE, "--wait=false", *before)
        cluster.kubectl("uncordon", "node2")

        def is_back() -> bool:
            now = live_cells(cluster)
            return len(now) == 2 and not set(before) & set(now)

        cluster.wait("the cell of node2", is_back, 120)

    def kill_controller() -> None:
        selector = ["-n", NAMESPACE, "-l", "app.kubernetes.io/name=mote-controller"]
        cluster.kubectl("delete", "pod", *selector, "--grace-period=0", "--force")

    def freeze() -> None:
        seconds = 60 if rounds > 5 else 10
        cluster.call("run", "pkill", "-STOP", "-x", "kube-apiserver")
        time.sleep(seconds)  # The absence is what is tested.
        cluster.call("run", "pkill", "-CONT", "-x", "kube-apiserver")

    stages: list[tuple[str, Callable[[], None], int]] = [
        ("upgrade of cells", rollout, rounds),
        ("drain", drain, rounds),
        ("kill of the controller", kill_controller, rounds),
        ("restart of etcd", lambda: cluster.call("restart-etcd") and None, 1),
        ("API server away", freeze, 1),
    ]
    for stage, disturb, times in stages:
        took = []
        for _ in range(times):
            load.say(stage, number)
            since = time.monotonic()
            disturb()
            change(stage)
            took.append(time.monotonic() - since)
        print(f"{stage}: {times} times with a new revision each, {measured(took)}", flush=True)
    result = load.stop()
    counts = result["counts"]
    failed = sum(count for stage, count in counts.items() if stage.startswith("failed"))
    total = sum(counts.values()) - failed
    slowest = {stage: round(took, 2) for stage, took in result["slowest"].items()}
    print(f"{total} calls, {failed} failed or older; slowest by stage: {slowest}")
    assert not failed, result["failures"][:20]


def check_loss(cluster: Cluster) -> None:
    """node2 fails. What its cell had in hand may fail; the others must go on at once."""
    load = Load(cluster, "/hello")
    number = int(cluster.get("function", "hello")["status"]["revision"])
    load.say("before", number)
    cluster.wait("some calls", lambda: load.process.poll() is None)
    time.sleep(2)  # Calls under way on both nodes.
    load.say("loss", number)
    since = time.monotonic()
    cluster.call("kill", "node2")
    lost = [pod for pod, node in live_cells(cluster).items() if node == "node2"]
    cluster.wait("the cell to leave the Service", lambda: not set(lost) & set(live_cells(cluster)))
    print(f"loss of a node: noticed after {time.monotonic() - since:.1f} s")
    load.say("after", number)
    time.sleep(5)  # Calls on the node that is left.
    result = load.stop()
    counts, slowest = result["counts"], result["slowest"]
    failed = counts.get("failed in loss", 0)
    print(
        f"loss of a node: {failed} of {counts['loss']} calls failed, slowest {slowest['loss']:.1f} s"
    )
    for failure in result["failures"][:5]:
        print(f"  {failure}")
    # Each caller had at most one call in hand when the node failed.
    assert counts.get("failed in before", 0) <= CALLERS, result
    assert not counts.get("failed in after"), result


def main() -> None:
    parser = argparse.ArgumentParser(description="Tests mote on a cluster with two nodes")
    parser.add_argument("--bin", type=Path, required=True, help="folder with mote")
    parser.add_argument("--long", action="store_true", help="20 rounds of each disturbance")
    options = parser.parse_args()
    images = Path(os.environ.get("IMAGES", ROOT / "target" / "images"))
    since = time.monotonic()
    with Cluster("mote-test-cluster") as cluster:
        cluster.call("join")
        cluster.call("load", str(images / "controller.tar"), str(images / "cell.tar"))
        print(
            f"a cluster with two nodes and the images: {time.monotonic() - since:.1f} s", flush=True
        )

        def url_of(name: str) -> str:
            # The address is known as soon as the Service is.
            found = cluster.get("service", "-n", NAMESPACE, "mote")
            return f"http://{found['spec']['clusterIP']}/{name}"

        try:
            check_install(options.bin, cluster, url_of)
            check_changes(cluster, 20 if options.long else 2)
            check_loss(cluster)
        except BaseException:
            tell(cluster)
            raise
        # Kubernetes waits for the kubelet of a lost machine until somebody says that it is gone.
        cluster.kubectl("delete", "node", "node2")
        of_node2 = ["--field-selector=spec.nodeName=node2", "--force", "--grace-period=0"]
        cluster.kubectl("delete", "pods", "-n", NAMESPACE, *of_node2)
        done = installer(options.bin, cluster, "uninstall", "--functions")
        assert done.returncode == 0, done.stderr
        assert not left_over(cluster), left_over(cluster)
    print(f"all checks passed in {time.monotonic() - since:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
