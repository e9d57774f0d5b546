"""What the platform adds to a call: t1 to t2 and t3 to t4, as Server-Timing reports them."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time

from client import connect, get
from node import ROOT, Node, binaries
from outcome import Outcome

BAR_MS = 0.06
CALLS = 200
PAUSE_S = 0.02
KINDS = (("idle", PAUSE_S), ("back to back", 0.0))
FUNCTIONS = ("hello-node", "hello-python")


def measure(node: Node) -> list[Outcome]:
    # What two processes and a socket need on this machine, with no program in between.
    outcomes = [floor(kind, pause) for kind, pause in KINDS]
    for name in FUNCTIONS:
        node.deploy(ROOT / "examples" / name)
        call(node, name, 0.0)  # warm up
        for kind, pause in KINDS:
            times = call(node, name, pause)
            detail = {
                "calls": len(times), "pause_s": pause,
                "p50_ms": statistics.median(times),
                "p99_ms": statistics.quantiles(times, n=100)[98],
                "max_ms": max(times),
            }
            outcomes.append(Outcome(f"handover {name}, {kind}", detail["p50_ms"], "ms",
                                    BAR_MS, detail=detail))
    return outcomes


def floor(kind: str, pause: float) -> Outcome:
    command = [str(binaries() / "bench_pair"), str(int(pause * 1e3)), str(CALLS)]
    detail = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return Outcome(f"handover floor, {kind}", detail["p50_ms"], "ms", detail=detail)


def call(node: Node, name: str, pause: float) -> list[float]:
    times = []
    with connect(node.http) as sock:
        for _ in range(CALLS):
            answer = get(sock, f"/{name}")
            answer.body()
            timing = answer.headers["server-timing"]
            times.append(float(re.search(r"handover;dur=([\d.]+)", timing).group(1)))
            time.sleep(pause)
    return times
