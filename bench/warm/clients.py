"""Many clients with an exact number of operations each: every operation is answered in time."""

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
    return [
        *protocol("HTTP", ["bench_http", str(node.http), f"/{FUNCTION}"], "requests"),
        *protocol("CoAP", ["bench_coap", str(node.coap), FUNCTION], "answered"),
    ]


def protocol(name: str, generator: list[str], answered: str) -> list[Outcome]:
    program, *target = generator
    command = [str(binaries() / program), *target, str(CLIENTS), "--operations", str(OPERATIONS)]
    result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    in_time = (result[answered] - result["over_1s"]) / (CLIENTS * OPERATIONS) * 100
    title = f"{name}, {CLIENTS} x {OPERATIONS} within 1 s"
    return [
        Outcome(title, in_time, "%", 100.0, at_least=True, detail=result),
        Outcome("  slowest of them", result["max_ms"], "ms"),
        Outcome("  their throughput", result["per_second"], "1/s"),
    ]
