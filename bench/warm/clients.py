"""Many clients, an exact number of operations each: every one is answered, and in time."""

from __future__ import annotations

import json
import subprocess

from node import ROOT, Node, binaries
from outcome import Outcome

CLIENTS = 1024
OPERATIONS = 500
FUNCTION = "hello-node"


def measure(node: Node) -> list[Outcome]:
    node.deploy(ROOT / "examples" / FUNCTION)
    command = [str(binaries() / "bench_http"), str(node.http), f"/{FUNCTION}", str(CLIENTS),
               "--operations", str(OPERATIONS)]
    result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    in_time = (result["requests"] - result["over_1s"]) / (CLIENTS * OPERATIONS) * 100
    name = f"{CLIENTS} clients x {OPERATIONS} within 1 s"
    return [
        Outcome(name, in_time, "%", 100.0, at_least=True, detail=result),
        Outcome("  slowest of them", result["max_ms"], "ms"),
        Outcome("  their throughput", result["per_second"], "1/s"),
    ]
