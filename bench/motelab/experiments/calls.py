"""Experiments of single calls whose answers are read: cold starts, serial, parallel."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd

from motelab import statistics
from motelab.catalog import Workload, fourteen, workloads
from motelab.client import Call, Client, at_once, call, required
from motelab.experiments.base import group_rows
from motelab.platforms import Function, NotOffered, Target, Wish
from motelab.processes import Failed, wait_for
from motelab.results import Outcome, nothing
from motelab.services import MissingService
from motelab.session import Lab

THREADS_OF_STUDY = 4
WARM_CALLS = 2


def row_of(platform: str, workload: Workload, seq: int, done: Call, **more: Any) -> dict[str, Any]:
    """A call for the table of raw rows."""
    return {"platform": platform, "function": workload.name, "seq": seq, **more, **done.row()}


def tests_of(rows: Any, column: str = "response_s", by: str = "platform") -> dict[str, Any]:
    """Per function: do the platforms differ?"""
    found = {}
    for function, of in rows[rows.status == 200].groupby("function", sort=False):
        samples = {str(name): list(values[column]) for name, values in of.groupby(by, sort=False)}
        found[str(function)] = statistics.compare(samples)
    return found


class Deployment:
    """Deploys a workload on each target that can run it, and reports which targets cannot."""

    def __init__(self, lab: Lab, missing: list[str]) -> None:
        self.lab, self.missing = lab, missing

    def on(self, target: Target, workload: Workload, wish: Wish) -> Function | None:
        """The address at which the target answers, or nothing."""
        if wish.runtime not in workload.runtimes:
            line = f"{workload.name}: there is no version in {wish.runtime}"
            if line not in self.missing:
                self.missing.append(line)
            return None
        try:
            return self.lab.deploy(target, workload, wish)[0]
        except (MissingService, NotOffered) as why:
            self.missing.append(f"{workload.name} on {target.name}: {why}")
        except Failed as why:
            # One workload that does not fit a machine must not cost the results of the others.
            self.missing.append(f"{workload.name} on {target.name} failed: {why}")
        return None


def cold_start(lab: Lab) -> Outcome:
    """Scales to zero, waits until the instances are gone, and sends one request; then warm requests
    for comparison."""
    chosen = lab.workloads(lab.pick([workloads()["hello"]], fourteen(), fourteen()))
    rounds, pause = lab.times(3, 10, 100, brief=4), lab.pick(0.25, 1.0, 10.0, brief=0.3)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    deployment = Deployment(lab, missing)
    for target in lab.targets:
        if "zero" not in target.offers:
            missing.append(f"{target.name} keeps no function at zero: no cold starts")
            continue
        for workload in chosen:
            if lab.profile != "smoke":
                target.settle()
            function = deployment.on(target, workload, Wish(runtime=lab.runtime))
            if function is None:
                continue
            lab.say(f"{workload.name} on {target.name}")
            for at in range(rounds):
                target.to_zero(function)
                # What is waiting for the next start is made ready in the background.
                time.sleep(pause)
                for warm in range(1 + WARM_CALLS):
                    if warm == 0:
                        done = target.cold_call(function, lab.params(workload))
                    else:
                        done = call(function.url, lab.params(workload), body=function.body)
                    required(done, workload.name)
                    rows.append(row_of(target.name, workload, at, done, is_cold=warm == 0))
            target.remove(function)
    return _cold_outcome(pd.DataFrame(rows), missing)


def _cold_outcome(rows: Any, missing: list[str]) -> Outcome:
    if rows.empty:
        return Outcome({"rows": rows}, {"table": []}, missing)
    keys = ["platform", "function"]
    warm = rows[~rows.is_cold].groupby(keys).response_s.mean()
    cold = rows[rows.is_cold].copy()
    cold["start_s"] = cold["init_ms"] / 1e3 if "init_ms" in cold else float("nan")
    cold["overhead_s"] = [
        row.response_s - warm[row.platform, row.function] for row in cold.itertuples()
    ]
    table = group_rows(cold, keys, "overhead_s")
    for entry in table:
        of = cold[(cold.platform == entry["platform"]) & (cold.function == entry["function"])]
        # Only mote says how long a start took.
        if of.start_s.notna().any():
            entry["start_mean"] = float(of.start_s.mean())
        entry["response_mean"] = float(of.response_s.mean())
        entry["warm_mean"] = float(warm[entry["platform"], entry["function"]])
    samples = {str(name): list(of.overhead_s) for name, of in cold.groupby("platform", sort=False)}
    summary = {"table": table, "tests": statistics.compare(samples)}
    return Outcome({"rows": rows, "cold": cold}, summary, missing)


def serial(lab: Lab) -> Outcome:
    """One client, the next request after each answer."""
    seconds = lab.pick(1.0, 20.0, 300.0, brief=3.0)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    deployment = Deployment(lab, missing)
    for workload in lab.workloads(fourteen()):
        checks = {}
        # The others first, so that a node needs to wait less.
        for target in reversed(lab.targets):
            if lab.profile != "smoke":
                target.settle()
            function = deployment.on(target, workload, Wish(runtime=lab.runtime, instances_min=1))
            if function is None:
                continue
            client, params = Client(function.url, 120), lab.params(workload)
            begun, count = time.monotonic(), 0
            while time.monotonic() - begun < seconds:
                done = required(client.call(params, function.body), workload.name)
                rows.append(row_of(target.name, workload, count, done))
                checks[target.name] = done.body.get("check")
                count += 1
            client.close()
            target.remove(function)
            lab.say(f"{workload.name} on {target.name}: {count}")
        _same_work(workload, checks)
    if not rows:
        return nothing(missing)
    table = pd.DataFrame(rows)
    groups = group_rows(table, ["function", "platform"])
    return Outcome({"rows": table}, {"table": groups, "tests": tests_of(table)}, missing)


def _same_work(workload: Workload, checks: dict[str, Any]) -> None:
    """Checks that the platforms have produced the same result."""
    distinct = {str(check) for check in checks.values()}
    if len(distinct) > 1:
        raise Failed(f"{workload.name}: platforms disagree on the result: {checks}")


def parallel(lab: Lab) -> Outcome:
    """Many simultaneous requests to one function, from threads of one process or from processes."""
    known = workloads()
    few = [known[name] for name in ("float-operation", "pyaes", "image-processing")]
    count, pause = lab.pick(4, 20, 20), lab.pick(0.0, 2.0, 120.0, brief=0.5)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    deployment = Deployment(lab, missing)
    ways = [
        (f"{target.name}, {THREADS_OF_STUDY} {kind}", target, wish)
        for target in lab.targets
        for kind, wish in _ways(target, lab.runtime)
    ]
    for workload in lab.workloads(lab.pick(few, fourteen(), fourteen())):
        for name, target, wish in ways:
            function = deployment.on(target, workload, wish)
            if function is None:
                continue
            params = lab.params(workload)
            _await_instances(target, function, wish.instances_min)
            for seq in range(3):
                done = required(call(function.url, params), workload.name)
                rows.append(row_of(name, workload, seq, done, kind="serial"))
            time.sleep(pause)
            for seq, done in enumerate(at_once(function.url, params, count, 600)):
                rows.append(row_of(name, workload, seq, done, kind="parallel"))
            target.remove(function)
            lab.say(f"{workload.name}: {name}")
    if not rows:
        return nothing(missing)
    table = pd.DataFrame(rows)
    return Outcome({"rows": table}, {"table": _parallel_table(table)}, missing)


def _ways(target: Target, runtime: str) -> list[tuple[str, Wish]]:
    threads = Wish(runtime=runtime, concurrency=THREADS_OF_STUDY, timeout_s=600)
    if "processes" not in target.offers:
        return [("threads", threads)]
    of = THREADS_OF_STUDY
    processes = Wish(runtime=runtime, instances_min=of, instances_max=of, timeout_s=600)
    return [("threads", threads), ("processes", processes)]


def _await_instances(target: Target, function: Function, wanted: int) -> None:
    if wanted and "instances" in target.offers:

        def are_ready() -> bool:
            states = [one["state"] for one in target.instances(function)]
            return states.count("ready") >= wanted

        wait_for(f"{wanted} instances of {function.name}", 120, are_ready, 0.05)


def _parallel_table(rows: Any) -> list[dict[str, Any]]:
    found = []
    for (function, platform), of in rows.groupby(["function", "platform"], sort=False):
        at_once_rows = of[of.kind == "parallel"]
        good = at_once_rows[at_once_rows.status == 200]
        mean = of[of.kind == "serial"].response_s.mean()
        if good.empty:
            continue
        total = good.response_s.max()
        per_worker = [
            statistics.concurrency(list(zip(w.inner_start_s, w.inner_end_s, strict=True)))
            for _, w in good.groupby("worker")
        ]
        found.append(
            {
                "function": function,
                "platform": platform,
                "n": len(at_once_rows),
                "failed": len(at_once_rows) - len(good),
                "total": total,
                "serial_mean": mean,
                "speedup_vs_serial": len(good) * mean / total,
                "workers": int(good.worker.nunique()),
                "concurrency_per_worker": max(per_worker),
                "hist5": statistics.histogram5(good.response_s),
            }
        )
    return found
