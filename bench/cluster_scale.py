"""Scales from one instance to ten under load: in a cell, across two cells, and as pods with a plain
HPA.

The measurement uses the lab's targets, on one cluster whose second machine joins in the middle of
the run. See bench/README.md.

Usage: cluster_scale.py [--rounds N] [--workload wait|float-operation] [--no-save], with the lab's
Python packages
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from motelab import environment  # noqa: E402
from motelab.catalog import workloads  # noqa: E402
from motelab.client import call, required  # noqa: E402
from motelab.cluster import SYSTEM, images, until  # noqa: E402
from motelab.platforms import Function, Target, Wish  # noqa: E402
from motelab.session import Lab  # noqa: E402


@dataclass(frozen=True)
class Load:
    """The function that the callers call, and its address."""

    workload: str
    params: dict[str, str]
    targets: tuple[str, ...]


INSTANCES = 10
LEVELS = (2, 5, INSTANCES)
#: Callers that send the next call after each answer: twice as many as there may be instances.
CLIENTS = 20
LOOK_S = 0.05
#: After a deploy, in which the cell prepares interpreters in the background, with little processor.
SETTLE_S = 10.0
GIVE_UP_S = 240.0
LOADS = (
    # The HPA measures processor time, of which this uses almost none, so it would add no pod.
    Load("wait", {"milliseconds": "90"}, ("mote-cluster",)),
    Load("float-operation", {"number": "100000"}, ("mote-cluster", "kubernetes-hpa")),
)
#: metrics-server and the HPA controller look every 15 s.
METRIC_S_MAX = 120.0


def metric_is_known(lab: Lab, name: str) -> bool:
    """Whether an HPA has read the processor time of its pods, which takes up to half a minute."""
    path = f"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/{name}"
    metrics = lab.cluster.get(path).get("status", {}).get("currentMetrics") or []
    current = [one.get("resource", {}).get("current", {}) for one in metrics]
    return any("averageUtilization" in one for one in current)


def ready(target: Target, function: Function) -> int:
    return sum(one["state"] == "ready" for one in target.instances(function))


def measure(lab: Lab, target: Target, kind: Load) -> dict[str, Any]:
    """The time from the first call of the load until this many instances are ready."""
    workload = workloads()[kind.workload]
    wish = Wish(instances_min=1, instances_max=INSTANCES, scale={"queue": 1_000})
    function = target.deploy(workload, "smoke", wish)
    required(call(function.url, kind.params), target.name)
    if target.name == "kubernetes-hpa":
        until("the HPA's metric", METRIC_S_MAX, lambda: metric_is_known(lab, function.name))
    until("one instance", 60, lambda: ready(target, function) == 1)
    time.sleep(SETTLE_S)
    url = f"{function.url}?{urlencode(kind.params)}"
    command = [str(lab.mote), "bench", url, "-c", str(CLIENTS), "--timeout", "30", "-q"]
    command += ["--warmup", "0", "--duration", f"{GIVE_UP_S:.0f}s"]
    quiet = subprocess.DEVNULL
    begun, reached = time.monotonic(), {}
    load = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        while len(reached) < len(LEVELS) and time.monotonic() < begun + GIVE_UP_S:
            count, now = ready(target, function), time.monotonic() - begun
            reached |= {level: now for level in LEVELS if count >= level and level not in reached}
            time.sleep(LOOK_S)
        homes = {one["id"].rpartition("/")[0] for one in target.instances(function)}
    finally:
        load.terminate()
        load.wait()
        target.remove(function)
    return {
        "reached_s": {str(level): reached.get(level) for level in LEVELS},
        "cells": len(homes) if target.name == "mote-cluster" else None,
        "load_1min": os.getloadavg()[0],
    }


def cells_live(lab: Lab) -> int:
    path = f"/apis/mote.dev/v1alpha1/namespaces/{SYSTEM}/cells"
    items = lab.cluster.get(path)["items"]
    return sum(bool(one.get("status", {}).get("synced")) for one in items)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workload", choices=[one.workload for one in LOADS])
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    loads = [one for one in LOADS if options.workload in (None, one.workload)]
    at = environment.now()
    found: dict[str, list[dict[str, Any]]] = {}
    with Lab(target_names=["mote-cluster", "kubernetes-hpa"], quiet=True) as lab:
        described = environment.record(lab.mote)
        targets = lab.targets
        for machines in (1, 2):
            if machines == 2:
                lab.cluster.script("join")
                lab.cluster.script("load", str(images() / "cell.tar"))
                until("the second cell", 120, lambda: cells_live(lab) == 2)
            for kind, number in product(loads, range(options.rounds)):
                for target in targets if number % 2 == 0 else targets[::-1]:
                    if target.name not in kind.targets:
                        continue
                    what = "cells" if target.name == "mote-cluster" else "pods with an HPA"
                    name = f"{kind.workload}, {what}, {machines} machine{'s' * (machines > 1)}"
                    one = measure(lab, target, kind)
                    found.setdefault(name, []).append(one)
                    print(f"{name}: {one}", flush=True)
    for name, runs in found.items():
        for level in LEVELS:
            times = [run["reached_s"][str(level)] for run in runs]
            known = [one for one in times if one is not None]
            middle = f"{statistics.median(known):8.2f} s" if known else "   never"
            print(f"{name:45} 1 to {level:2}: {middle}  ({len(known)} of {len(times)})")
    if options.no_save:
        return 0
    described_loads = [asdict(one) for one in loads]
    result = {"environment": described, "clients": CLIENTS, "loads": described_loads, "runs": found}
    path = HERE / "results" / f"cluster-scale-{at.replace(':', '')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
