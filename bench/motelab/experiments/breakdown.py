"""Breaks down the time of one call: t1 leaves the engine, t2 and t3 enter and leave the handler,
and at t4 the answer is back."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd

from motelab.catalog import workloads
from motelab.client import Client, server_timing
from motelab.platforms import Mote, NotOffered, Wish
from motelab.processes import Failed
from motelab.results import Outcome
from motelab.session import Lab

PAUSE_S = 0.05
PHASES = ("t1-t2", "t2-t3", "t3-t4")


def breakdown(lab: Lab) -> Outcome:
    """Single calls to an idle, warm instance."""
    rounds = lab.times(3, 20, 20)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    hello = workloads()["hello"]
    for target in lab.targets:
        if not isinstance(target, Mote):
            missing.append(f"{target.name} does not say where the time of a call goes")
            continue
        for runtime in hello.runtimes:
            wish = Wish(runtime=runtime, instances_min=1)
            function, _ = lab.deploy(target, hello, wish)
            platform = f"{target.name}, {runtime}"
            client = Client(function.url, 30)
            for seq in range(rounds):
                time.sleep(PAUSE_S)
                timing = _of_management(target, function.name)
                rows.append({"platform": platform, "way": "management", "seq": seq, **timing})
                time.sleep(PAUSE_S)
                done = client.call({})
                found = {"handover": done.timing["handover"], "t2-t3": done.timing["invoke"]}
                rows.append({"platform": platform, "way": "http", "seq": seq, **found})
            client.close()
            target.remove(function)
    if not rows:
        raise NotOffered("no target tells its phases")
    table = pd.DataFrame(rows)
    means = []
    for platform, of in table.groupby("platform", sort=False):
        parts = of[of.way == "management"][list(PHASES)].mean()
        over_http = of[of.way == "http"].handover.mean()
        means.append({"platform": platform, **parts.to_dict(), "handover over HTTP": over_http})
    return Outcome({"rows": table}, {"table": means, "unit": "ms"}, missing)


def _of_management(target: Mote, name: str) -> dict[str, float]:
    """The management API names both halves of the handover; the fronts their sum alone."""
    status, fields, body = target.node.ask("POST", f"/v1/functions/{name}/invoke")
    if status != 200:
        raise Failed(f"{name}: status {status}: {body[:200]!r}")
    timing = server_timing(fields["server-timing"])
    parts = (timing["to-worker"], timing["invoke"], timing["from-worker"])
    return dict(zip(PHASES, parts, strict=True))
