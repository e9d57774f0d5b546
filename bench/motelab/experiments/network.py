"""Calls from another network: throughput, latency and first calls over links with a delay, loss and
a limited rate.

The node and the baseline are in one network namespace, the callers in another one (`network.Link`).
Every way to call a function sees the same losses, counted in packets from the start of its load.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from motelab.catalog import BRIEF, workloads
from motelab.client import Load
from motelab.experiments.calls import Deployment
from motelab.experiments.sweeps import TIMEOUT_S, one_instance
from motelab.network import NEAR, Link
from motelab.node import LOOPBACK
from motelab.platforms import Function, Target, Wish
from motelab.processes import Failed
from motelab.relay import Conditions
from motelab.results import Outcome, nothing
from motelab.session import Lab

#: Targets that can listen where another network reaches them.
REACHABLE = ("mote", "native")
ROUND_TRIPS_MS, LOSSES, CALLERS = (20, 100, 300), (0.0, 0.01, 0.05), (1, 16)
#: A link of this rate has a name in the tables.
SLOW_BIT_S = 1_000_000
LINKS = {"unlimited": None, "1 Mbit/s": SLOW_BIT_S}
#: An answer within this time is shown in a column of its own, because the limit of a call is long.
SOON_S = 1.0
#: How long a load lasts: this many round trips, but not less than this many seconds.
LENGTHS = {"smoke": (2, 0.3), "brief": (12, 1.5), "edge": (30, 6.0), "paper": (200, 20.0)}
WARMUP_S_MIN, WARMUP_ROUND_TRIPS = 0.5, 4
#: `mote bench` connects once before it begins, and gives up after 5 s. With 5 % loss in both
#: directions, one of a thousand attempts fails.
ATTEMPTS = 4
FIRST_KEYS = ["platform", "round_trip_ms", "loss", "link"]
LOAD_KEYS = [*FIRST_KEYS, "clients"]


@dataclass(frozen=True)
class Way:
    """One way to call one function."""

    name: str
    target: Target
    function: Function
    url: str
    closes: bool = False


@dataclass(frozen=True)
class Setting:
    """The link of a load."""

    round_trip_ms: int
    loss: float
    link: str

    def conditions(self, seed: int) -> Conditions:
        """The conditions of each direction."""
        return Conditions(self.round_trip_ms / 2e3, self.loss, LINKS[self.link], seed)

    def row(self) -> dict[str, Any]:
        """The columns that identify it."""
        return {"round_trip_ms": self.round_trip_ms, "loss": self.loss, "link": self.link}


def settings(lab: Lab) -> list[Setting]:
    """The links of this profile."""
    trips = lab.pick([20], ROUND_TRIPS_MS, ROUND_TRIPS_MS, brief=[100])
    losses = lab.pick([0.01], LOSSES, LOSSES, brief=[0.0, 0.05])
    links = lab.pick(["unlimited"], list(LINKS), list(LINKS), brief=["unlimited"])
    return [Setting(*one) for one in product(trips, losses, links)]


def from_outside(url: str) -> str:
    """A URL of this machine, as the far side of the link writes it."""
    return url.replace(LOOPBACK, NEAR, 1)


def network(lab: Lab) -> Outcome:
    """All ways to call a function, over every link."""
    missing = [
        f"{name} listens on loopback alone, where another network does not reach it"
        for name in lab.target_names
        if name not in REACHABLE
    ]
    names = [name for name in lab.target_names if name in REACHABLE]
    if not names:
        return nothing(missing)
    with Link() as link:
        record = link.described()
        # A separate session: its node starts in the network of the link and listens on all
        # addresses of it.
        there = replace(lab, target_names=names, host="0.0.0.0", cache=lab.cache / "network")
        with there:
            runs, rows = _loads(there, link, missing)
            first = _first_calls(there, link, missing)
    if runs.empty:
        return nothing(missing)
    summary = {
        "table": [
            _load_row(dict(zip(LOAD_KEYS, keys, strict=True)), of, rows[rows.run.isin(of.run)])
            for keys, of in runs.groupby(LOAD_KEYS, sort=False)
        ],
        "first": [
            _first_row(dict(zip(FIRST_KEYS, keys, strict=True)), of)
            for keys, of in first.groupby(FIRST_KEYS, sort=False)
        ],
        "link": record,
        "success_within_s": TIMEOUT_S,
        "seconds_of_a_load": {str(trip): _seconds(lab, trip) for trip in ROUND_TRIPS_MS},
    }
    return Outcome({"rows": rows, "runs": runs, "first": first}, summary, missing)


def _seconds(lab: Lab, round_trip_ms: int) -> float:
    trips, least = LENGTHS[lab.profile]
    return max(trips * round_trip_ms / 1e3, least)


def _ways(there: Lab, wish: Wish, missing: list[str]) -> list[Way]:
    deployment, found = Deployment(there, missing), []
    for target in there.targets:
        function = deployment.on(target, workloads()["hello"], wish)
        if function is None:
            continue
        url = from_outside(function.url)
        found.append(Way(f"{target.name}, HTTP", target, function, url))
        found.append(Way(f"{target.name}, HTTP, new connections", target, function, url, True))
        if function.coap:
            coap = from_outside(function.coap)
            found.append(Way(f"{target.name}, CoAP", target, function, coap))
    return found


def _remove(ways: list[Way]) -> None:
    for way in {way.target.name: way for way in ways}.values():
        way.target.remove(way.function)


def _answers(there: Lab, link: Link, way: Way, load: Load) -> tuple[dict[str, Any], Any]:
    """A run of the load engine on the far side."""
    for attempt in range(ATTEMPTS):
        try:
            with link.beyond():
                return there.bench(way.url, load)
        except Failed:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _loads(there: Lab, link: Link, missing: list[str]) -> tuple[Any, Any]:
    """A row per load, with what the link did meanwhile, and a row per operation."""
    ways = _ways(there, one_instance(there, workloads()["hello"]), missing)
    runs: list[dict[str, Any]] = []
    operations = []
    repeats = there.times(1, 1, 3)
    callers = there.pick(CALLERS, CALLERS, CALLERS, brief=CALLERS[1:])
    for setting in settings(there):
        for clients, repeat in product(callers, range(repeats)):
            turn = repeat % len(ways)
            for way in [*ways[turn:], *ways[:turn]]:
                trip_s = setting.round_trip_ms / 1e3
                load = Load(
                    clients,
                    duration_s=_seconds(there, setting.round_trip_ms),
                    warmup_s=max(WARMUP_ROUND_TRIPS * trip_s, WARMUP_S_MIN),
                    timeout_s=TIMEOUT_S,
                    closes=way.closes,
                )
                conditions = setting.conditions(seed=repeat)
                link.change(conditions)
                report, rows = _answers(there, link, way, load)
                counts = _together(link.change(conditions))
                operations.append(rows[["response_s", "is_ok"]].assign(run=len(runs)))
                runs.append(
                    {
                        "run": len(runs),
                        "platform": way.name,
                        **setting.row(),
                        "clients": clients,
                        "repeat": repeat,
                        "rate": report["answered_per_s"],
                        "sent_again": report["generator"]["repeats"],
                        # Of the warm-up too, as are the packets.
                        "calls": report["offered"] + report["warmup"],
                        "packets": sum(counts.values()) - counts.get("late", 0),
                        **counts,
                        "failures": json.dumps(report["failures"]),
                    }
                )
        there.say(" ".join(str(value) for value in setting.row().values()))
    _remove(ways)
    rows = pd.concat(operations, ignore_index=True) if operations else pd.DataFrame()
    return pd.DataFrame(runs), rows


def _together(counts: list[dict[str, int]]) -> dict[str, int]:
    """The counts of both directions."""
    return {name: sum(one[name] for one in counts) for name in (counts[0] if counts else {})}


def _first_calls(there: Lab, link: Link, missing: list[str]) -> Any:
    """Calls to a function without an instance. The time that the baseline's program needs to start
    is added to the time of its call; its caller would have to wait for both."""
    rounds, found = there.times(1, 5, 20, brief=1), []
    if there.profile not in ("smoke", BRIEF):
        for target in there.targets:
            target.settle()
    ways = [way for way in _ways(there, Wish(runtime=there.runtime), missing) if not way.closes]
    for setting in settings(there):
        if setting.link != "unlimited":
            continue
        for seq, way in product(range(rounds), ways):
            # Losses differ from call to call, and are those of the other ways.
            way.target.to_zero(way.function)
            # The next interpreter is prewarmed in the background.
            time.sleep(there.pick(0.1, 0.3, 1.0))
            begun = time.monotonic()
            way.target.start(way.function)
            start_s = time.monotonic() - begun
            link.change(setting.conditions(seed=seq))
            load = Load(1, operations=1, timeout_s=TIMEOUT_S)
            _, rows = _answers(there, link, way, load)
            done = rows.iloc[0]
            found.append(
                {
                    "platform": way.name,
                    **setting.row(),
                    "seq": seq,
                    "start_s": start_s,
                    "response_s": start_s + done.response_s,
                    "is_ok": bool(done.is_ok),
                }
            )
    _remove(ways)
    return pd.DataFrame(found)


def percentile_ms(rows: Any, share: float) -> float | None:
    """A percentile of the response times, with failures longer than any answer; nothing if it falls
    on a failure."""
    times = np.sort(np.where(rows.is_ok, rows.response_s, math.inf))
    value = float(times[max(math.ceil(share * len(times)) - 1, 0)])
    return None if math.isinf(value) else value * 1e3


def _load_row(head: dict[str, Any], runs: Any, rows: Any) -> dict[str, Any]:
    """The repeats of a load in numbers."""
    packets = runs.packets.sum()
    row = {
        **head,
        "operations": len(rows),
        "rate": float(runs.rate.mean()),
        "success": float(rows.is_ok.mean()),
        "within_1s": float((rows.is_ok & (rows.response_s <= SOON_S)).mean()),
        "p50_ms": percentile_ms(rows, 0.5),
        "p95_ms": percentile_ms(rows, 0.95),
        "p99_ms": percentile_ms(rows, 0.99),
        "sent_again": int(runs.sent_again.sum()),
    }
    if packets:
        row |= {
            "packets_per_call": float(packets / runs.calls.sum()),
            "lost": float(runs.lost.sum() / packets),
            "late": float(runs.late.sum() / packets),
            "refused": int(runs.refused.sum()),
        }
    return row


def _first_row(head: dict[str, Any], of: Any) -> dict[str, Any]:
    return {
        **head,
        "n": len(of),
        "success": float(of.is_ok.mean()),
        "p50_ms": percentile_ms(of, 0.5),
        "longest_ms": percentile_ms(of, 1.0),
    }
