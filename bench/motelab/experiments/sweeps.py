"""Experiments with the load engine: throughput and latency by clients, sizes, workers and ways to
call."""

from __future__ import annotations

import statistics as plain
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from motelab import statistics
from motelab.assembly import Manifest, assemble
from motelab.catalog import Workload, workloads
from motelab.client import Load
from motelab.experiments.calls import Deployment
from motelab.node import free_function_port
from motelab.platforms import Function, Mote, Target, Wish
from motelab.results import Outcome, nothing
from motelab.session import Lab

#: Everywhere the same in what the studies call fair: a queue that refuses nobody, 10 s to answer.
QUEUE, TIMEOUT_S = 50_000, 10.0
SUCCESS_WITHIN_S = 1.0
#: A server of Node takes many at once in one process, here and without a platform. One of Python
#: has one thread, and more for work that waits.
AT_ONCE, PYTHON_WAITING = 256, 16
#: Programs of one function that run at once. Node has eleven threads, which a sandbox limits.
PROGRAMS_AT_ONCE = 4
CDF_POINTS = 200


@dataclass(frozen=True)
class Contestant:
    """One way to reach one function."""

    name: str
    url: str
    body: str | None = None


def node_wish(**scale: object) -> Wish:
    """One instance of a function in Node, a long queue."""
    settings = {"queue": QUEUE, **scale}
    return Wish(runtime="node", concurrency=AT_ONCE, instances_min=1, scale=settings)


def one_instance(lab: Lab, workload: Workload) -> Wish:
    """One instance of a workload in the session's language, a long queue."""
    if lab.runtime != "python":
        return replace(node_wish(), runtime=lab.runtime)
    at_once = PYTHON_WAITING if workload.needs else 1
    return replace(node_wish(), runtime="python", concurrency=at_once)


def cdf_rows(rows: Any, **names: object) -> Any:
    """The distribution of a run in some points, failures in the denominator."""
    good = rows[rows.is_ok].response_s
    x, share = statistics.cdf(good, len(rows) - len(good))
    if len(x) > CDF_POINTS:
        at = np.unique(np.linspace(0, len(x) - 1, CDF_POINTS).astype(int))
        x, share = x[at], share[at]
    return pd.DataFrame({**names, "response_s": x, "share": share})


def closed_sweep(lab: Lab) -> Outcome:
    """This many clients, each of which sends its next request after an answer; an answer within a
    second is a success."""
    levels = lab.pick([1, 4], [1, 4, 16, 64], [1, 4, 16, 64, 256, 1024])
    operations, repeats = lab.pick(20, 500, 500, brief=200), lab.times(1, 5, 3, brief=3)
    missing: list[str] = []
    deployment = Deployment(lab, missing)
    contestants, functions = _contestants(lab, deployment, workloads()["sieve"], missing)
    runs: list[dict[str, Any]] = []
    best: dict[tuple[str, int], list[tuple[float, dict[str, Any], Any]]] = {}
    for clients in levels:
        for repeat in range(repeats):
            # In turn, and not always the same one first.
            turn = repeat % len(contestants)
            for contestant in [*contestants[turn:], *contestants[:turn]]:
                within = SUCCESS_WITHIN_S
                load = Load(clients, operations=operations, timeout_s=within, body=contestant.body)
                report, rows = lab.bench(contestant.url, load)
                run = _run(contestant.name, clients, repeat, report)
                runs.append(run)
                at = (contestant.name, clients)
                best.setdefault(at, []).append((run["mean_s"], run, rows))
        lab.say(f"{clients} clients x {operations}: {repeats} times {len(contestants)} ways")
    _remove(functions)
    if not runs:
        return nothing(missing)
    table, tables = [], []
    for (name, clients), found in best.items():
        found.sort(key=lambda one: one[0])
        # Of the repeats, the one whose mean is the median.
        _, run, rows = found[len(found) // 2]
        table.append(run)
        tables.append(cdf_rows(rows, platform=name, clients=clients))
    ratios = _ratios(table)
    summary = {
        "table": table,
        "ratios": ratios,
        "operations_per_client": operations,
        "success_within_s": SUCCESS_WITHIN_S,
    }
    cdf = pd.concat(tables, ignore_index=True)
    return Outcome({"runs": pd.DataFrame(runs), "cdf": cdf}, summary, missing)


def _contestants(
    lab: Lab, deployment: Deployment, workload: Workload, missing: list[str]
) -> tuple[list[Contestant], list[tuple[Target, Function]]]:
    """Each target over HTTP, and over CoAP if the target speaks it."""
    contestants, functions = [], []
    for target in lab.targets:
        function = deployment.on(target, workload, one_instance(lab, workload))
        if function is None:
            continue
        functions.append((target, function))
        contestants.append(Contestant(f"{target.name}, HTTP", function.url, function.body))
        if function.coap:
            contestants.append(Contestant(f"{target.name}, CoAP", function.coap))
        else:
            missing.append(f"{target.name} does not speak CoAP")
    return contestants, functions


def _remove(functions: Sequence[tuple[Target, Function]]) -> None:
    for target, function in functions:
        target.remove(function)


def _run(name: str, clients: int, repeat: int, report: dict[str, Any]) -> dict[str, Any]:
    latency = report["latency"]
    offered = max(report["offered"], 1)
    return {
        "platform": name,
        "clients": clients,
        "repeat": repeat,
        "offered": report["offered"],
        "answered": report["answered"],
        "success": report["answered"] / offered,
        "rate": report["answered_per_s"],
        "mean_s": latency["mean_ms"] / 1e3,
        "p50_ms": latency["p50_ms"],
        "p95_ms": latency["p95_ms"],
        "p99_ms": latency["p99_ms"],
        "generator_busiest": report["generator"]["busiest_thread"],
        "machine_busy": report["generator"]["machine_busy"],
        "failures": ", ".join(f"{count} {kind}" for kind, count in report["failures"].items()),
    }


def _ratios(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Throughput and mean latency of each way divided by those of native at the same number of
    clients."""
    native = {row["clients"]: row for row in table if row["platform"].startswith("native")}
    found = []
    for row in table:
        base = native.get(row["clients"])
        if base is None or row is base or not base["rate"] or not base["mean_s"]:
            continue
        found.append(
            {
                "platform": row["platform"],
                "clients": row["clients"],
                "rate_ratio": row["rate"] / base["rate"],
                "mean_ratio": row["mean_s"] / base["mean_s"],
                "success_difference": row["success"] - base["success"],
            }
        )
    return found


def _sweep(lab: Lab, workload: Workload) -> Outcome:
    """Throughput by concurrency, and the latency at the highest concurrency."""
    levels = lab.pick([1, 10], [1, 10, 50, 100], [1, *range(10, 101, 10), 200], brief=[1, 10, 100])
    return _levels(lab, workload, levels, lab.pick(10, 100, 100))


def _durations(lab: Lab) -> tuple[float, float]:
    """Seconds of warming up and of measuring."""
    warmup, seconds = lab.pick((0.2, 0.5), (1.0, 3.0), (60.0, 60.0), brief=(0.4, 1.2))
    return warmup, seconds


def _levels(lab: Lab, workload: Workload, levels: list[int], shown: int) -> Outcome:
    warmup, seconds = _durations(lab)
    repeats = lab.times(1, 3, 20, brief=1)
    missing: list[str] = []
    deployment = Deployment(lab, missing)
    functions = [
        (target, function)
        for target in lab.targets
        if (function := deployment.on(target, workload, one_instance(lab, workload)))
    ]
    runs, distributions = [], []
    for clients in levels:
        for repeat in range(repeats):
            for target, function in functions if repeat % 2 else functions[::-1]:
                load = Load(
                    clients,
                    duration_s=seconds,
                    warmup_s=warmup,
                    timeout_s=TIMEOUT_S,
                    body=function.body,
                )
                report, rows = lab.bench(function.url, load)
                runs.append(_run(target.name, clients, repeat, report))
                if clients == shown and repeat == 0:
                    distributions.append(cdf_rows(rows, platform=target.name, clients=clients))
        lab.say(f"{clients} clients")
    _remove(functions)
    if not runs:
        return nothing(missing)
    table = pd.DataFrame(runs)
    tables = {"runs": table}
    if distributions:
        tables["cdf"] = pd.concat(distributions, ignore_index=True)
    return Outcome(tables, {"table": _means(table, "clients"), "shown": shown}, missing)


def _means(runs: Any, key: str) -> list[dict[str, Any]]:
    """Throughput with its deviation, and latency percentiles, over the repeats."""
    found = []
    for (platform, value), of in runs.groupby(["platform", key], sort=False):
        rates = list(of.rate)
        row = {
            "platform": platform,
            key: value,
            "repeats": len(of),
            "rate": plain.fmean(rates),
            "rate_sd": plain.stdev(rates) if len(rates) > 1 else 0.0,
            "success": float(of.answered.sum() / max(of.offered.sum(), 1)),
        }
        for name in ("p50_ms", "p95_ms", "p99_ms"):
            values = [value for value in of[name] if value is not None and value == value]
            if values:
                row[name] = plain.median(values)
        found.append(row)
    return found


def hello_sweep(lab: Lab) -> Outcome:
    """What a platform costs when the function costs nothing."""
    return _sweep(lab, workloads()["hello"])


def http_sweep(lab: Lab) -> Outcome:
    """A function that waits for another server."""
    return _sweep(lab, workloads()["http-fetch"])


def _contest(lab: Lab, contestants: Sequence[tuple[str, float, str]], key: str) -> Outcome:
    """The same load on several ways in turn; name, value and URL of each."""
    if not contestants:
        return nothing([])
    clients = lab.pick(10, 100, 100)
    warmup, seconds = _durations(lab)
    runs, distributions = [], []
    for repeat in range(lab.times(1, 3, 20, brief=1)):
        for name, value, url in contestants if repeat % 2 else contestants[::-1]:
            load = Load(clients, duration_s=seconds, warmup_s=warmup, timeout_s=TIMEOUT_S)
            report, rows = lab.bench(url, load)
            runs.append({**_run(name, clients, repeat, report), key: value})
            if repeat == 0:
                distributions.append(cdf_rows(rows, platform=name, **{key: value}))
    table = pd.DataFrame(runs)
    cdf = pd.concat(distributions, ignore_index=True)
    summary = {"table": _means(table, key), "clients": clients}
    return Outcome({"runs": table, "cdf": cdf}, summary)


def http_sizes(lab: Lab) -> Outcome:
    """Pages of several sizes through a function that fetches them."""
    sizes = {"4": 4, "1k": 1_000, "10k": 10_000, "100k": 100_000}
    chosen = lab.pick(["4", "1k"], list(sizes), list(sizes), brief=["4", "100k"])
    missing: list[str] = []
    deployment, contestants, functions = Deployment(lab, missing), [], []
    for target in lab.targets:
        fetch = workloads()["http-fetch"]
        function = deployment.on(target, fetch, one_instance(lab, fetch))
        if function and function.body is not None:
            missing.append(f"{target.name} passes no query, so it cannot choose a page")
            target.remove(function)
        elif function:
            functions.append((target, function))
            for name in chosen:
                contestants.append((target.name, sizes[name], f"{function.url}?page={name}"))
    outcome = _contest(lab, contestants, "bytes")
    _remove(functions)
    outcome.missing = missing
    return outcome


def workers_sweep(lab: Lab) -> Outcome:
    """More workers for one function: threads of one instance, and instances."""
    counts = lab.pick([1, 2], [1, 2, 4, 8], [1, 2, 4, 8], brief=[1, 4])
    missing: list[str] = []
    deployment = Deployment(lab, missing)
    outcomes = []
    hello = workloads()["hello"]
    for target in lab.targets:
        for kind in ("threads", "processes"):
            if kind == "processes" and "processes" not in target.offers:
                missing.append(f"{target.name} has one process per function")
                continue
            for count in counts:
                scale = {"queue": QUEUE}
                wish = Wish(concurrency=count, instances_min=1, scale=scale)
                if kind == "processes":
                    wish = Wish(instances_min=count, instances_max=count, scale=scale)
                function = deployment.on(target, hello, wish)
                if function is None:
                    continue
                name = f"{target.name}, {kind}"
                outcomes.append(_contest(lab, [(name, count, function.url)], "workers"))
                target.remove(function)
            lab.say(f"{target.name}: {kind}")
    if not outcomes:
        return nothing(missing)
    table = [row for one in outcomes for row in one.summary["table"]]
    return Outcome(_joined(outcomes), {"table": table}, missing)


#: What of-watchdog calls its ways to run a program for each call.
STREAMS = ("streaming", "serializing")
WATCHDOG_MODES = {"of-watchdog": ("http", *STREAMS), "classic-watchdog": ("per request",)}


def process_modes(lab: Lab) -> Outcome:
    """Compares a process that is kept with a process per request: handlers, programs, and programs
    under the contract of of-watchdog's modes; on of-watchdog too, if it is a target.

    Each way has its platform to itself: a node runs long work in the background while another
    function works, and two of-watchdogs want the same port.
    """
    missing: list[str] = []
    outcomes = []
    for target in lab.targets:
        if isinstance(target, Mote):
            ways = _modes_of_mote(lab, target)
        elif target.name in WATCHDOG_MODES:
            ways = _modes_of_watchdog(lab, target)
        else:
            missing.append(f"{target.name} runs no program per request")
            continue
        for name, is_kept, deploy in ways:
            if lab.profile != "smoke":
                target.settle()
            function = deploy()
            outcomes.append(_contest(lab, [(name, float(is_kept), function.url)], "kept"))
            target.remove(function)
        lab.say(target.name)
    if not outcomes:
        return nothing(missing)
    table = [row for one in outcomes for row in one.summary["table"]]
    head = {"table": table, "clients": outcomes[0].summary["clients"]}
    return Outcome(_joined(outcomes), head, missing)


def _joined(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The tables of several contests."""
    return {
        name: pd.concat([one.tables[name] for one in outcomes], ignore_index=True)
        for name in ("runs", "cdf")
    }


#: The name of a way, whether its process is kept, and what deploys it.
Way = tuple[str, bool, Callable[[], Function]]


def _modes_of_mote(lab: Lab, target: Mote) -> list[Way]:
    hello, node = workloads()["hello"], ["node", "program.mjs"]
    python = Wish(instances_min=1, scale={"queue": QUEUE})
    ways: list[Way] = [
        ("kept, Node", True, lambda: lab.deploy(target, hello, node_wish())[0]),
        ("kept, Python", True, lambda: lab.deploy(target, hello, python)[0]),
    ]
    programs: list[tuple[str, list[str], str | None]] = [
        ("per request, shell", ["sh", "-c", "printf hello"], None),
        ("per request, Python", ["python3", "-SE", "-c", "print('hello', end='')"], None),
        ("per request, Node", node, None),
        *((f"{mode}, Node", node, mode) for mode in STREAMS),
    ]
    return [
        *ways,
        *(
            (name, False, partial(_program, target, name, command, mode))
            for name, command, mode in programs
        ),
    ]


def _modes_of_watchdog(lab: Lab, target: Target) -> list[Way]:
    def deploy(mode: str) -> Function:
        wish = replace(node_wish(), env={"mode": mode})
        return lab.deploy(target, workloads()["hello"], wish)[0]

    return [
        (
            f"{target.name}, {'kept' if mode == 'http' else mode}, Node",
            mode == "http",
            partial(deploy, mode),
        )
        for mode in WATCHDOG_MODES[target.name]
    ]


def _program(target: Mote, title: str, command: list[str], mode: str | None = None) -> Function:
    name = "hello-" + title.replace(", ", "-").replace(" ", "-").lower()
    folder = target.work / "programs" / name
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        name,
        # Each of the programs that run at once needs memory.
        memory_mib=128 * PROGRAMS_AT_ONCE,
        runtime="exec",
        command=tuple(command),
        concurrency=PROGRAMS_AT_ONCE,
        scale={"max": 1, "queue": QUEUE},
        env={"mode": mode} if mode else {},
        compat="openfaas" if mode else None,
    )
    assemble(workloads()["hello"], "program", "node", folder, manifest=manifest)
    return target.deploy_folder(name, folder)


def export_modes(lab: Lab) -> Outcome:
    """The same function by its name at the node's front and on a port of its own, as a server and
    as a handler; and the same server without a sandbox."""
    by_name = {target.name: target for target in lab.targets}
    mote, native = by_name.get("mote"), by_name.get("native")
    if not isinstance(mote, Mote) or native is None:
        return nothing(["needs the targets mote and native"])
    hello = workloads()["hello"]
    bare, _ = lab.deploy(native, hello, node_wish())
    server, server_port = _exported(mote, hello, is_server=True)
    handler, handler_port = _exported(mote, hello, is_server=False)
    ways = [
        ("server without a sandbox", bare.url),
        ("server, own port", server_port),
        ("server, through the gateway", server.url),
        ("handler, own port", handler_port),
        ("handler, through the gateway", handler.url),
    ]
    levels = lab.pick([1, 10], [1, 10, 50, 100], [1, *range(10, 101, 10), 200], brief=[1, 10, 100])
    warmup, seconds = _durations(lab)
    runs = []
    for clients in levels:
        for repeat in range(lab.times(1, 3, 20, brief=1)):
            for name, url in ways if repeat % 2 else ways[::-1]:
                load = Load(clients, duration_s=seconds, warmup_s=warmup, timeout_s=TIMEOUT_S)
                report, _ = lab.bench(url, load)
                runs.append(_run(name, clients, repeat, report))
    _remove([(native, bare), (mote, server), (mote, handler)])
    table = pd.DataFrame(runs)
    return Outcome({"runs": table}, {"table": _means(table, "clients")})


def _exported(target: Mote, workload: Workload, *, is_server: bool) -> tuple[Function, str]:
    """A function, and its address on a port of its own."""
    name = f"{workload.name}-{'server' if is_server else 'handler'}"
    folder: Path = target.work / "exports" / name
    port = free_function_port()
    manifest = Manifest(
        name,
        memory_mib=128,
        runtime="server" if is_server else "node",
        command=("node", "server.mjs") if is_server else (),
        concurrency=AT_ONCE,
        scale={"min": 1, "max": 1, "queue": QUEUE},
        node_port=port,
    )
    assemble(workload, "native" if is_server else "mote", "node", folder, manifest=manifest)
    return target.deploy_folder(name, folder), f"http://127.0.0.1:{port}/"
