"""The load that mote puts on an API server and its controller: idle functions, and a change.

The API server, the controller, the cells' nodes and their agents are real processes on loopback
(scripts/apiserver.sh); there are no pods, and so no kubelets. See bench/README.md.

Usage: control_plane.py --bin FOLDER [--cells N] [--functions N] [--seconds N] [--no-save]
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import ROOT  # noqa: E402
from outcome import Outcome, exit_status  # noqa: E402

SCRIPT = ROOT / "scripts" / "apiserver.sh"
SYSTEM = "mote-system"
#: The bar of the specification: requests per second of all of mote's processes at rest.
REQUESTS_BAR = 1.0
#: Resources that its processes use. The API server itself has a few watches of them as well.
MINE = ("functions", "functionrevisions", "cells", "secrets", "pods", "leases", "events")
#: How long nothing may have been reconciled before the cluster counts as at rest.
CALM_S = 10
READY_S_MAX = 1800


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ticks(pid: int) -> int:
    """Processor time of a process in hundredths of a second."""
    # The name of the program is in parentheses and may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def memory_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.M).group(1)) / 1024


def received(pid: int) -> dict[str, int]:
    """Bytes that the TCP connections of a process have received, by their addresses."""
    said = subprocess.run(["ss", "-Htnpi"], capture_output=True, text=True, check=True).stdout
    # Each connection has a second line with its counters.
    lines = said.splitlines()
    found_all = {}
    for first, second in itertools.pairwise(lines):
        if f"pid={pid}," in first and (found := re.search(r"bytes_received:(\d+)", second)):
            found_all[" ".join(first.split()[3:5])] = int(found.group(1))
    return found_all


def parse(text: str, name: str) -> Counter:
    """The values of a counter by its labels."""
    found: Counter = Counter()
    for line in text.splitlines():
        if match := re.match(rf"{name}(?:\{{(.*)\}})? (\S+)$", line):
            found[match.group(1) or ""] += float(match.group(2))
    return found


def label(labels: str, name: str) -> str:
    found = re.search(rf'(?:^|,){name}="([^"]*)"', labels)
    return found.group(1) if found else ""


class Plane:
    """An API server with a controller and cells. Use as a context manager."""

    def __init__(self, binaries: Path) -> None:
        self.bin = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="mote-plane-"))
        self.folder.chmod(0o755)
        self.environment = {**os.environ, "APISERVER_DIR": str(self.folder / "api")}
        self.processes: list[subprocess.Popen] = []
        self.nodes: list[subprocess.Popen] = []
        self.agents: list[subprocess.Popen] = []

    def script(self, *args: str, data: str = "", seconds: int = 600) -> str:
        done = subprocess.run(
            [SCRIPT, *args],
            env=self.environment,
            input=data,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"apiserver.sh {' '.join(args)}: {done.stderr}")
        return done.stdout

    def kubectl(self, *args: str, data: str = "", seconds: int = 600) -> str:
        return self.script("kubectl", *args, data=data, seconds=seconds)

    def __enter__(self) -> Plane:
        self.script("up", "--here")
        for file in ("crds.yaml", "objects.yaml"):
            path = ROOT / "deploy" / "kustomize" / file
            self.kubectl("apply", "--server-side", "-f", str(path))
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.kill()
        for process in self.processes:
            process.wait()
        self.script("down")
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, command: list, **environment: str) -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def kubeconfig(self, account: str) -> str:
        """The credentials of a service account, as its pods receive them."""
        token = self.script("token", f"{SYSTEM}/{account}").strip()
        text = (self.folder / "api" / "kubeconfig").read_text()
        path = self.folder / f"{account}.kubeconfig"
        path.write_text(re.sub(r"token: \w+", f"token: {token}", text))
        return str(path)

    def key(self, secret: str, name: str) -> str:
        said = self.kubectl(
            "get",
            "secret",
            "-n",
            SYSTEM,
            secret,
            "--ignore-not-found",
            "-o",
            f"go-template={{{{.data.{name}|base64decode}}}}",
        )
        return said.strip()

    def start_controller(self) -> None:
        self.port = free_port()
        command = [self.bin / "mote-cluster", "controller", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--data", self.folder / "archives"]
        self.controller = self.start(
            "controller",
            command,
            KUBECONFIG=self.kubeconfig("mote-controller"),
            POD_NAME="controller",
            POD_IP="127.0.0.1",
        )
        self.wait("the keys", lambda: self.key("mote-keys", "cell"))
        self.cell_key = self.folder / "cell.key"
        self.cell_key.write_text(self.key("mote-keys", "cell"))
        self.cell_key.chmod(0o600)
        self.token = self.key("mote-api", "token")

    def start_cells(self, count: int) -> None:
        kubeconfig = self.kubeconfig("mote-agent")
        for number in range(count):
            name, here = f"cell-{number}", self.folder / f"cell-{number}"
            here.mkdir()
            listen, cell = free_port(), free_port()
            node = [self.bin / "mote", "up", "--data", here / "data", "--socket", here / "s"]
            node += ["--http", f"127.0.0.1:{free_port()}", "--coap", "off", "--prewarm", "off"]
            node += ["--cell", f"127.0.0.1:{cell}", "--cell-key", self.cell_key]
            self.nodes.append(self.start(f"node-{number}", node))
            agent = [self.bin / "mote-cluster", "agent", "--socket", here / "s"]
            agent += ["--listen", f"127.0.0.1:{listen}", "--cell-port", cell]
            self.agents.append(
                self.start(
                    f"agent-{number}",
                    agent,
                    KUBECONFIG=kubeconfig,
                    POD_NAME=name,
                    POD_IP="127.0.0.1",
                    NODE_NAME=name,
                )
            )
        path = "jsonpath={.items[*].status.synced}"
        self.wait(
            "the cells",
            lambda: self.kubectl("get", "cells", "-n", SYSTEM, "-o", path).count("true") == count,
        )

    def wait(self, what: str, is_so, seconds: float = 120, pause: float = 0.5) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            for process in self.processes:
                if process.poll() is not None:
                    raise SystemExit(f"{process.args[:2]} has ended; see {self.folder}")
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not after {seconds} s; see {self.folder}")
            time.sleep(pause)

    def own(self) -> str:
        """The metrics of the controller."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/metrics",
            headers={"authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def requests(self) -> Counter:
        """Requests to the API server by verb and resource, without those for this list itself."""
        text = self.kubectl("get", "--raw", "/metrics")
        found: Counter = Counter()
        for labels, value in parse(text, "apiserver_request_total").items():
            resource = label(labels, "resource")
            if resource:
                what = f"{label(labels, 'verb')} {resource}"
                sub = label(labels, "subresource")
                found[f"{what}/{sub}" if sub else what] += int(value)
        return found

    def watches(self) -> int:
        text = self.kubectl("get", "--raw", "/metrics")
        found = parse(text, "apiserver_longrunning_requests")
        return int(
            sum(
                value
                for labels, value in found.items()
                if label(labels, "verb") == "WATCH" and label(labels, "resource") in MINE
            )
        )

    def serving(self) -> int:
        return int(parse(self.own(), "mote_cluster_functions")['state="Serving"'])


def function(number: int, text: str = "ok") -> dict:
    """A function whose deploy starts no interpreter."""
    return {
        "apiVersion": "mote.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": f"f{number:04}"},
        "spec": {
            "runtime": "exec",
            "command": ["sh", "run.sh"],
            "files": {"run.sh": f"echo {text}\n"},
        },
    }


def as_list(items: list[dict]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def rest(plane: Plane, seconds: float) -> dict:
    """Measures what happens while nobody requests anything."""
    pids = {
        "controller": [plane.controller.pid],
        "agents": [process.pid for process in plane.agents],
        "nodes": [process.pid for process in plane.nodes],
        "API server": [int((plane.folder / "api" / "apiserver.pid").read_text())],
        "store": [int((plane.folder / "api" / "etcd.pid").read_text())],
    }
    before = plane.requests()
    used = {name: sum(map(ticks, of)) for name, of in pids.items()}
    bytes_before, since = received(plane.controller.pid), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - since
    bytes_after = received(plane.controller.pid)
    busy = {name: (sum(map(ticks, of)) - used[name]) / took for name, of in pids.items()}
    requests = plane.requests() - before
    # Those that lived through the whole time: each pulse, and watches without news.
    grown = sum(
        count - bytes_before[key] for key, count in bytes_after.items() if key in bytes_before
    )
    return {
        "seconds": took,
        "requests": dict(requests.most_common()),
        "cpu_percent_of_a_core": {name: round(one, 2) for name, one in busy.items()},
        "memory_mib": {name: [round(memory_mib(p), 1) for p in of] for name, of in pids.items()},
        "controller_receives_bytes_per_s": grown / took,
        "watches": plane.watches(),
    }


def bare(plane: Plane, seconds: float) -> dict:
    """Requests that the API server sends to itself."""
    before, since = plane.requests(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - since
    requests = plane.requests() - before
    return {"seconds": took, "requests": dict(requests.most_common())}


def rate(of: dict, mine: bool = False) -> float:
    """Requests per second, or only those for resources that mote uses."""
    requests = of["requests"].items()
    found = sum(count for what, count in requests if not mine or resource_of(what) in MINE)
    return found / of["seconds"]


def resource_of(what: str) -> str:
    return what.split()[1].split("/")[0]


def calm(plane: Plane) -> None:
    """Waits until nothing has been reconciled for a while."""
    last, since = -1.0, time.monotonic()

    def is_calm() -> bool:
        nonlocal last, since
        now = parse(plane.own(), "mote_cluster_reconciles_total")[""]
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > CALM_S

    plane.wait("a rest", is_calm, 600)


def change(plane: Plane) -> dict:
    """Changes one function, and measures the cost until every cell serves the change."""
    before, reconciles = plane.requests(), parse(plane.own(), "mote_cluster_reconciles_total")[""]
    since = time.monotonic()
    plane.kubectl("apply", "--server-side", "-f", "-", data=json.dumps(function(0, "new")))
    path = "jsonpath={.status.split} {.status.conditions[0].status}"
    plane.wait(
        "the change",
        lambda: plane.kubectl("get", "function", "f0000", "-o", path) == "@2 100 % True",
        pause=0.1,
    )
    took = time.monotonic() - since
    calm(plane)
    requests = plane.requests() - before
    # Those of kubectl.
    for name in ("GET functions", "PATCH functions", "APPLY functions"):
        requests.pop(name, None)
    after = parse(plane.own(), "mote_cluster_reconciles_total")[""]
    return {
        "seconds": took,
        "requests": dict(requests.most_common()),
        "reconciles": after - reconciles,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder with mote")
    parser.add_argument("--cells", type=int, default=10)
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120, help="length of the rest")
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    described = {**machine(), "binary": options.bin.name}
    described["store"] = os.environ.get("APISERVER_STORE", "etcd")
    started = datetime.datetime.now(datetime.UTC)
    with Plane(options.bin) as plane:
        itself = bare(plane, min(options.seconds, 30))
        watches_before = plane.watches()
        plane.start_controller()
        plane.start_cells(options.cells)
        calm(plane)
        empty = rest(plane, min(options.seconds, 60))
        print(f"{options.cells} cells are ready", flush=True)
        before, since = plane.requests(), time.monotonic()
        for first in range(0, options.functions, 100):
            some = range(first, min(first + 100, options.functions))
            text = as_list([function(number) for number in some])
            plane.kubectl("apply", "--server-side", "-f", "-", data=text)
        applied_s = time.monotonic() - since
        plane.wait("the functions", lambda: plane.serving() == options.functions, READY_S_MAX)
        ready_s = time.monotonic() - since
        deployed = plane.requests() - before
        print(f"{options.functions} functions serve after {ready_s:.0f} s", flush=True)
        calm(plane)
        full = rest(plane, options.seconds)
        one = change(plane)
        own = plane.own()
    busy, memory = full["cpu_percent_of_a_core"], full["memory_mib"]
    agents, nodes = len(memory["agents"]), len(memory["nodes"])
    outcomes = [
        Outcome("requests at rest, all", rate(full), "1/s"),
        Outcome("requests at rest, API server alone", rate(itself), "1/s"),
        Outcome(
            "requests at rest, of mote", rate(full, True) - rate(itself, True), "1/s", REQUESTS_BAR
        ),
        Outcome("watches of mote", full["watches"] - watches_before, ""),
        Outcome("controller: processor", busy["controller"], "%"),
        Outcome("controller: memory", memory["controller"][0], "MiB"),
        Outcome("controller: memory, no functions", empty["memory_mib"]["controller"][0], "MiB"),
        Outcome("an agent: processor", busy["agents"] / agents, "%"),
        Outcome("an agent: memory", sum(memory["agents"]) / agents, "MiB"),
        Outcome("a node: processor", busy["nodes"] / nodes, "%"),
        Outcome("API server: processor", busy["API server"], "%"),
        Outcome("pulse: controller receives", full["controller_receives_bytes_per_s"], "B/s"),
        Outcome("all functions serve after", ready_s, "s", detail={"applied_s": applied_s}),
        Outcome("requests for each function", sum(deployed.values()) / options.functions, ""),
        Outcome("a change: until all cells serve it", one["seconds"], "s"),
        Outcome("a change: requests", sum(one["requests"].values()), ""),
    ]
    for outcome in outcomes:
        print(outcome.line())
    if options.no_save:
        return exit_status(outcomes)
    result = {
        "machine": {**described, "load_after": os.getloadavg()},
        "cells": options.cells,
        "functions": options.functions,
        "outcomes": [outcome.as_json() for outcome in outcomes],
        "api_server_alone": itself,
        "no_functions": empty,
        "at_rest": full,
        "deploy": dict(deployed.most_common()),
        "change": one,
        "own_requests": parse(own, "mote_cluster_api_requests_total"),
    }
    path = HERE / "results" / f"control-plane-{started:%Y-%m-%dT%H%M%SZ}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path)
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
