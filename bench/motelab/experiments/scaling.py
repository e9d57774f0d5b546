"""Scaling experiments: on the simulated clock in smoke runs, otherwise on live platforms.

Load is a schedule whose rate is the number of clients, so that the number of requests due is known
and latency counts from their due times; the studies' tool sends fewer requests when answers are
late.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from motelab.catalog import BRIEF, workloads
from motelab.client import Load
from motelab.environment import machine_ticks
from motelab.platforms import Function, NotOffered, Target, Wish
from motelab.processes import Failed
from motelab.results import Outcome, nothing
from motelab.session import Lab
from motelab.statistics import summary

SAMPLE_S = 0.5
#: Length of a step in the profile `brief`, as a share of that in `edge`.
BRIEF_SHARE = 0.5
POLICIES = ("auto", "knative", "hpa", "openfaas")
#: Full length of a step of the study of Kubernetes distributions, and in the profile `edge`.
STEP_S = (10.0, 300.0)


@dataclass(frozen=True)
class Step:
    """Load for a while: clients, calls per second in all (none: as fast as answered)."""

    clients: int
    rate: float | None
    seconds: float


@dataclass(frozen=True)
class Case:
    """The inputs of a live run."""

    workload: str
    #: Beside those of the profile.
    params: Mapping[str, str]
    #: Settings of `[scale]` by the name of the policy in results.
    policies: Mapping[str, Mapping[str, object]]
    #: In the profile `edge` and in full.
    steps: tuple[list[Step], list[Step]]
    max_instances: int = 10
    concurrency: int = 1
    cpu: float | None = None
    queue: int = 50_000
    #: What numbers are about: `load` (mean by clients), `time` (instances over time).
    axis: str = "time"
    shares: bool = False
    note: str = field(default="")


def _clients(levels: list[int]) -> tuple[list[Step], list[Step]]:
    return (
        [Step(clients, clients, STEP_S[0]) for clients in levels],
        [Step(clients, clients, STEP_S[1]) for clients in levels],
    )


def _hpa(levels: list[int]) -> Case:
    return Case(
        "float-operation",
        {"number": "100000"},
        {"auto": {"policy": "auto"}, "hpa": {"policy": "hpa", "target": 100}},
        _clients(levels),
        concurrency=4,
        cpu=0.35,
        axis="load",
    )


def _fetch(policies: dict[str, dict[str, object]], edge: list[Step], paper: list[Step]) -> Case:
    return Case("http-fetch", {}, policies, (edge, paper))


AUTO: dict[str, object] = {"policy": "auto"}
RATE: dict[str, object] = {"policy": "rps", "target": 10}
BURSTS = [Step(10, 10, 10), Step(100, 100, 10)]

CASES: dict[str, Case] = {
    "native-scaling": Case(
        "float-operation",
        {"number": "1000"},
        {"auto": AUTO, "openfaas": {"policy": "openfaas"}},
        ([Step(6, 6, 120)], [Step(6, 6, 800)]),
        max_instances=20,
    ),
    "hpa-ramp2": _hpa(list(range(2, 49, 2))),
    "hpa-down2": _hpa(list(range(40, 1, -2))),
    "hpa-varied": _hpa([8, 1, 20, 4, 40, 24, 1, 4, 16, 1, 36, 32]),
    "hpa-ramp4": _hpa(list(range(4, 49, 4))),
    "scale-workload-steady": _fetch(
        {"auto": AUTO, "rps 10": RATE}, [Step(100, 100, 30)], [Step(100, 100, 60)]
    ),
    "scale-workload-bursty": _fetch({"auto": AUTO, "rps 10": RATE}, BURSTS * 2, BURSTS * 6),
    "scale-resource": Case(
        "float-operation",
        {"number": "100000"},
        {"auto": AUTO, "cpu 50": {"policy": "cpu", "target": 50}},
        ([Step(100, None, 20)], [Step(100, None, 90)]),
    ),
    "keepalive-balance": Case(
        "http-fetch",
        {},
        {"auto": AUTO, "concurrency 10": {"policy": "concurrency", "target": 10}},
        ([Step(100, None, 20)], [Step(100, None, 60)]),
        shares=True,
    ),
    "low-concurrency-high-rate": Case(
        "float-operation",
        {"number": "30000"},
        {"auto": AUTO, "concurrency 10": {"policy": "concurrency", "target": 10}},
        ([Step(9, 400, 20)], [Step(9, 400, 120)]),
        concurrency=16,
    ),
    "dropped-demand": Case(
        "float-operation",
        # A call takes a quarter of a second, so that all of the ramp exceeds two processors.
        {"number": "1000000"},
        {"auto": AUTO, "rps 10": RATE},
        (
            [Step(rate, rate, 3) for rate in range(10, 101, 10)],
            [Step(rate, rate, 9) for rate in range(10, 101, 10)],
        ),
        queue=4,
    ),
}


def run(lab: Lab, name: str) -> Outcome:
    """Runs the experiment with this name."""
    if lab.profile == "smoke":
        return simulated(lab, name)
    missing = []
    targets = []
    for target in lab.targets:
        if "policies" in target.offers or "scales" in target.offers:
            targets.append(target)
        else:
            missing.append(f"{target.name} does not change its number of instances")
    if not targets:
        return nothing(["no target lets the lab choose scaling rules", *missing])
    return live(lab, name, targets, missing)


def rules(target: Target, case: Case) -> Mapping[str, Mapping[str, object]]:
    """The scaling rules to measure on a target, by their name in results."""
    if "policies" in target.offers:
        return case.policies
    # It has one rule of its own, of which the case may set the goal.
    return {"its own": case.policies.get("hpa", {})}


def simulated(lab: Lab, name: str) -> Outcome:
    """The same scenario in `mote simulate`."""
    with tempfile.TemporaryDirectory(prefix="lab-sim-") as folder:
        path = Path(folder, "course.csv")
        command = [str(lab.mote), "simulate", name, "--policy", ",".join(POLICIES)]
        done = subprocess.run(
            [*command, "--csv", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"{' '.join(command)}:\n{done.stderr.strip()}")
        course = pd.read_csv(path)
    samples = pd.DataFrame(
        {
            "policy": course.policy,
            "t_s": course.time_s,
            "instances": course.ready,
            "memory_mib": course.memory_bytes / (1 << 20),
            "offered": course.offered,
            "answered": course.answered,
        }
    )
    table = [_reached(policy, of) for policy, of in samples.groupby("policy", sort=False)]
    case = CASES[name]
    head = {"table": table, "clock": "simulated", "axis": case.axis}
    tables = {"samples": samples}
    if case.axis == "load":
        tables["steps"] = _replicas(samples, case.steps[1])
    return Outcome(tables, head)


def _replicas(samples: Any, steps: list[Step]) -> Any:
    """Instances at the end of each step, by policy."""
    rows = []
    for policy, of in samples.groupby("policy", sort=False):
        end = 0.0
        for at, step in enumerate(steps):
            end += step.seconds
            seen = of[of.t_s <= end]
            replicas = int(seen.instances.iloc[-1]) if len(seen) else 0
            rows.append(
                {"policy": policy, "step": at, "clients": step.clients, "replicas": replicas}
            )
    return pd.DataFrame(rows)


def _reached(policy: object, of: Any) -> dict[str, Any]:
    peak = int(of.instances.max())
    first = of[of.instances >= peak].t_s.iloc[0]
    row = {"policy": policy, "peak": peak, "time_to_peak_s": float(first)}
    ten = of[of.instances >= 10]
    if not ten.empty:
        row["time_to_10_s"] = float(ten.t_s.iloc[0])
    return {**row, "offered": int(of.offered.sum()), "answered": int(of.answered.sum())}


class Sampler:
    """Samples a function's instances and the machine while load runs."""

    def __init__(self, target: Target, function: Function) -> None:
        self.target, self.function = target, function
        self.rows: list[dict[str, Any]] = []
        self.served: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        before = machine_ticks()
        while not self._stop.wait(SAMPLE_S):
            now, ticks = time.monotonic(), machine_ticks()
            instances = self.target.instances(self.function)
            busy = (ticks[0] - before[0]) / max(ticks[1] - before[1], 1)
            before = ticks
            ready = [one for one in instances if one["state"] in ("ready", "draining")]
            memory = sum(one.get("memory_bytes") or 0 for one in instances)
            self.rows.append(
                {"at": now, "instances": len(ready), "memory_mib": memory / (1 << 20), "cpu": busy}
            )
            for one in ready:
                self.served.append({"at": now, "instance": one["id"], "served": one["served"]})

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def live(lab: Lab, name: str, targets: Sequence[Target], missing: Sequence[str] = ()) -> Outcome:
    """The same on real platforms, one policy after the other."""
    case = CASES[name]
    steps = case.steps[1 if lab.profile == "paper" else 0]
    if lab.profile == BRIEF:
        steps = [replace(step, seconds=step.seconds * BRIEF_SHARE) for step in steps]
    tables: dict[str, list[Any]] = {"rows": [], "samples": [], "served": [], "steps": []}
    table = []
    missing = list(missing)
    planned = [
        (target, rule, settings)
        for target in targets
        for rule, settings in rules(target, case).items()
    ]
    for target, rule, settings in planned:
        policy = rule if len(targets) == 1 else f"{target.name}, {rule}"
        lab.say(f"{name}: {policy}, {sum(step.seconds for step in steps):.0f} s")
        try:
            found = _one_policy(lab, target, case, settings, steps)
        except NotOffered as why:
            missing.append(f"{case.workload} on {target.name}: {why}")
            continue
        for key, frame in found.items():
            tables[key].append(frame.assign(policy=policy))
        samples, rows = found["samples"], found["rows"]
        entry = _live_entry(policy, samples, rows, steps)
        if case.shares:
            entry["least_share"] = _least_share(found["served"])
        table.append(entry)
    if not table:
        return nothing(missing)
    joined = {
        key: pd.concat(frames, ignore_index=True)
        for key, frames in tables.items()
        if frames and any(len(frame) for frame in frames)
    }
    head = {"table": table, "clock": "live", "axis": case.axis, "shares": case.shares}
    return Outcome(joined, head, missing)


def _least_share(served: Any) -> float:
    """The calls of the instance that answered the fewest, over the mean of the instances."""
    calls = served.groupby("instance").served.max()
    return float(calls.min() / calls.mean())


def _live_entry(policy: str, samples: Any, rows: Any, steps: list[Step]) -> dict[str, Any]:
    entry = _reached(policy, samples.assign(offered=0, answered=0))
    entry |= {"offered": len(rows), "answered": int(rows.is_ok.sum())}
    entry["refused_or_failed"] = entry["offered"] - entry["answered"]
    entry["rate"] = entry["answered"] / sum(step.seconds for step in steps)
    entry["instance_seconds"] = float(samples.instances.sum() * SAMPLE_S)
    good = rows[rows.is_ok]
    if len(good):
        entry |= {
            key: value
            for key, value in summary(good.response_s).as_dict().items()
            if key in ("mean", "p95")
        }
    return entry


def _one_policy(
    lab: Lab,
    target: Target,
    case: Case,
    settings: Mapping[str, object],
    steps: list[Step],
) -> dict[str, Any]:
    workload = workloads()[case.workload]
    wish = Wish(
        concurrency=case.concurrency,
        instances_min=1,
        instances_max=case.max_instances,
        scale={"queue": case.queue, **settings},
        cpu=case.cpu,
    )
    function, _ = lab.deploy(target, workload, wish)
    query = "&".join(f"{key}={value}" for key, value in case.params.items())
    url = f"{function.url}?{query}" if query else function.url
    loads, numbers = [], []
    with Sampler(target, function) as sampler:
        begun = time.monotonic()
        for at, step in enumerate(steps):
            load = Load(step.clients, duration_s=step.seconds, rate=step.rate, timeout_s=10)
            report, rows = lab.bench(url, load)
            loads.append(rows.assign(step=at, clients=step.clients))
            entry = {"step": at, "clients": step.clients, "offered": report["offered"]}
            # Of nothing answered there is no mean; a zero would look like the best of all.
            mean_ms = report["latency"]["mean_ms"] if report["answered"] else None
            entry |= {"answered": report["answered"], "mean_s": (mean_ms or float("nan")) / 1e3}
            entry["p95_s"] = (report["latency"]["p95_ms"] or float("nan")) / 1e3
            entry["replicas"] = sampler.rows[-1]["instances"] if sampler.rows else 0
            entry["sent"] = report["offered"] - report["failures"].get("not sent in time", 0)
            numbers.append(entry)
    target.remove(function)
    rows = pd.concat(loads, ignore_index=True)
    samples = pd.DataFrame(sampler.rows)
    samples["t_s"] = samples["at"] - begun
    served = pd.DataFrame(sampler.served)
    served["t_s"] = served["at"] - begun
    rows["t_s"] = rows.end_s - begun
    keep = ["t_s", "response_s", "is_ok", "outcome", "step", "clients"]
    return {
        "rows": rows[keep],
        "samples": samples.drop(columns="at"),
        "served": served.drop(columns="at"),
        "steps": pd.DataFrame(numbers),
    }
