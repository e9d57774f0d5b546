"""Measures how fast a function that loads slowly gets further instances, and what memory they take.

The function imports numpy and onnxruntime, and holds a model of 100 MB. It is deployed twice. Of
one, the node makes copies. The other leaves a file in /tmp while it loads, so that each instance
loads the function itself. Each round scales both from none to one instance and from one
to eight, in alternation. The columns are

    first      milliseconds from the start of the first instance until it is ready
    others     milliseconds from the start of the second instance until all seven others are ready
    one, all   memory of the first instance, and of all eight, with what belongs to them (shared
               memory is counted once), in mebibytes, after each has answered a call

The times are those of the function's log.

Usage: seeds.py [--rounds N] [--build FILE] [--no-save]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime
import http.client
import json
import os
import re
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from client import connect, get  # noqa: E402
from machine import machine  # noqa: E402
from node import ROOT, Node, binaries, settle  # noqa: E402
from tree import pss_mib  # noqa: E402

INSTANCES = 8
WAIT_SECONDS_MAX = 120
DEPLOY_PACKAGES = "numpy\nonnxruntime\n"
#: The most that these figures may be.
BAR_OTHERS_MS, BAR_MEMORY = 300, 1.3
CODE = """
import os
import numpy
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
example = os.path.join(os.path.dirname(onnxruntime.__file__), "datasets", "mul_1.onnx")
session = onnxruntime.InferenceSession(example, options, providers=["CPUExecutionProvider"])
model = numpy.random.default_rng(1).random(100 * 1000 * 1000 // 8)
LEAVE

def handle(event, ctx):
    given = numpy.ones((3, 2), dtype=numpy.float32)
    found = session.run(None, {session.get_inputs()[0].name: given})[0]
    return str(float(found.sum() + model[:1000].sum()))
"""
MANIFEST = f"""version = 1
runtime = "python"
entry = "app:handle"
[limits]
memory = "400MiB"
init_timeout = "60s"
[env]
ORT_DISABLE_TELEMETRY = "1"
[scale]
max = {INSTANCES}
idle = "1ms"
"""
KINDS = {"copies": "", "loaded": 'open("/tmp/left", "w").close()'}
COLUMNS = ("first", "others", "one", "all")


class Management(http.client.HTTPConnection):
    """The management API, over the node's socket."""

    def __init__(self, node: Node) -> None:
        super().__init__("localhost")
        self.path = node.socket

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)

    def instances(self, name: str) -> list[dict]:
        self.request("GET", f"/v1/functions/{name}")
        found = json.loads(self.getresponse().read())
        return [one for one in found["instances"] if one["state"] == "ready"]


def programs(node: Node) -> set[int]:
    """The processes that the node has started, without its zygote."""
    found = set()
    parents = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            text = (process / "stat").read_text().rpartition(")")[2]
            parents[int(process.name)] = int(text.split()[1])
    for pid in parents:
        chain = [pid]
        while chain[-1] in parents and chain[-1] != node.pid:
            chain.append(parents[chain[-1]])
        if chain[-1] == node.pid and len(chain) > 2:
            found.add(pid)
    return found


def scale(node: Node, api: Management, name: str, count: int) -> float:
    """Milliseconds from the start of the first new instance until all are ready."""
    before = len(starts(node, name))
    until = time.monotonic() + WAIT_SECONDS_MAX
    node.mote("scale", name, "--min", str(count))
    while len(api.instances(name)) != count:
        if time.monotonic() > until:
            raise SystemExit(f"{name} has not got {count} instances:\n{node.mote('logs', name)}")
        settle(0.05)
    new = starts(node, name)[before:]
    return max(ready for _, ready in new) - min(begun for begun, _ in new) if new else 0.0


def starts(node: Node, name: str) -> list[tuple[float, float]]:
    """When each start of an instance that the log names began, and when the instance was ready."""
    found = []
    for line in node.mote("logs", name, "--tail", "1000").splitlines():
        if took := re.search(r"ready after (\d+) ms", line):
            time_of_line = datetime.datetime.fromisoformat(line.split()[0])
            ready = time_of_line.timestamp() * 1e3
            found.append((ready - int(took[1]), ready))
    return found


def call(node: Node, name: str) -> None:
    with connect(node.http) as sock:
        answer = get(sock, f"/{name}")
        text = answer.body()
    if answer.status != 200:
        raise SystemExit(f"{name} answered {answer.status}: {text!r}")


def call_all(node: Node, api: Management, name: str) -> None:
    """Calls until every instance has answered."""
    with concurrent.futures.ThreadPoolExecutor(INSTANCES) as pool:
        while any(one["served"] == 0 for one in api.instances(name)):
            list(pool.map(lambda _: call(node, name), range(INSTANCES)))


def measure(node: Node, api: Management, name: str) -> dict[str, float]:
    scale(node, api, name, 0)
    settle(1)
    without = programs(node)
    first = scale(node, api, name, 1)
    call_all(node, api, name)
    one = pss_mib(programs(node) - without)
    others = scale(node, api, name, INSTANCES)
    call_all(node, api, name)
    whole = pss_mib(programs(node) - without)
    scale(node, api, name, 0)
    return {"first": first, "others": others, "one": one, "all": whole}


def main() -> None:
    parser = argparse.ArgumentParser(prog="seeds", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", default=str(binaries() / "mote"))
    parser.add_argument("--no-save", action="store_true", help="write no result file")
    options = parser.parse_args()
    started = datetime.datetime.now(datetime.UTC)
    described = machine()
    found: dict[str, dict[str, list[float]]] = {name: {} for name in KINDS}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        # Prewarmed interpreters come and go meanwhile, and would count as memory of the function.
        flags = ("--prewarm", "off", "--memory", "8GiB")
        node = stack.enter_context(Node(*flags, binary=options.build))
        api = stack.enter_context(contextlib.closing(Management(node)))
        for name, leave in KINDS.items():
            code = folder / name
            code.mkdir()
            (code / "app.py").write_text(CODE.replace("LEAVE", leave))
            (code / "requirements.txt").write_text(DEPLOY_PACKAGES)
            (code / "mote.toml").write_text(MANIFEST)
            node.deploy(code)
        for number in range(options.rounds):
            for name in KINDS if number % 2 == 0 else reversed(KINDS):
                for column, value in measure(node, api, name).items():
                    found[name].setdefault(column, []).append(value)
                last = {column: round(values[-1], 1) for column, values in found[name].items()}
                print(name, last)
        for name in KINDS:
            lines = [line for line in node.mote("describe", name).splitlines() if "copies" in line]
            print(name, *lines, sep="\n")
    described["load_after"] = os.getloadavg()
    print(" " * 8 + "".join(f"{name:>9}" for name in COLUMNS))
    for name, columns in found.items():
        print(f"{name:8}" + "".join(f"{statistics.median(columns[one]):9.1f}" for one in COLUMNS))
    medians = {column: statistics.median(values) for column, values in found["copies"].items()}
    ratio = medians["all"] / statistics.median(found["loaded"]["one"])
    print(f"instances 2 to {INSTANCES}: {medians['others']:.0f} ms, at most {BAR_OTHERS_MS}")
    print(f"memory of all: {ratio:.2f} times that of one that loaded alone, at most {BAR_MEMORY}")
    if not options.no_save:
        path = HERE / "results" / started.strftime("seeds-%Y-%m-%dT%H%M%SZ.json")
        record = {"machine": described, "rounds": options.rounds, "found": found}
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    if medians["others"] > BAR_OTHERS_MS or ratio > BAR_MEMORY:
        raise SystemExit("a bar was missed")


if __name__ == "__main__":
    main()
