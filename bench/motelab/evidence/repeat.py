"""`lab evidence`: the runs behind the page in the profile `brief`, a page of their own, and the
verdicts that have changed."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from motelab.catalog import BRIEF, PEERS
from motelab.evidence import page
from motelab.evidence.figures import Runs
from motelab.experiments import EXPERIMENTS
from motelab.processes import Failed

#: Longest time of everything. An experiment that would begin later is skipped and named.
SECONDS_MAX = 20 * 60
#: Servers in Python cannot run JavaScript, and the others cannot run Python.
PYTHON_PEERS = ("uvicorn", "granian")
FIRST = ("mote", "native")


def plan(folders: dict[str, Path]) -> list[tuple[str, str | None, list[str]]]:
    """The experiments with their language and targets; the most telling ones first."""
    servers = [name for name in PEERS if name not in (*PYTHON_PEERS, "runc")]
    planes = [name for name in folders if name != "classic-watchdog"]
    every = [*FIRST, *servers, *planes]
    watchdogs = [name for name in folders if name.endswith("watchdog")]
    return [
        ("closed-sweep", None, every),
        ("latency-breakdown", None, ["mote"]),
        ("process-modes", None, ["mote", *watchdogs]),
        ("hello-sweep", None, every),
        ("hello-sweep", "python", [*FIRST, *PYTHON_PEERS]),
        ("http-sweep", None, every),
        ("scale-workload-steady", None, ["mote"]),
        ("scale-resource", None, ["mote"]),
        ("low-concurrency-high-rate", None, ["mote"]),
        ("keepalive-balance", None, ["mote"]),
        ("dropped-demand", None, ["mote"]),
        ("export-modes", None, list(FIRST)),
        ("workers-sweep", None, list(FIRST)),
        ("scale-workload-bursty", None, ["mote"]),
        ("http-sizes", None, [*FIRST, *servers]),
        ("native-scaling", None, ["mote"]),
        ("cold-start", None, [*FIRST, "runc"]),
        ("serial", None, list(FIRST)),
        ("parallel-20", None, list(FIRST)),
    ]


def repeat(into: Path, stored: Runs, folders: dict[str, Path]) -> int:
    """Runs the plan, writes the page and compares the verdicts; 1 if a verdict is worse."""
    from motelab.__main__ import run_one
    from motelab.session import Lab

    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    end, skipped = time.monotonic() + SECONDS_MAX, []
    for name, runtime, targets in plan(folders):
        left = end - time.monotonic()
        if left <= 0:
            skipped.append(f"{name}: the {SECONDS_MAX // 60} minutes are over")
            continue
        print(f"{name} ({', '.join(targets)}), {left / 60:.0f} minutes left", flush=True)
        language = runtime or EXPERIMENTS[name].runtime
        try:
            with Lab(BRIEF, targets, runtime=language, peers=folders, quiet=True) as lab:
                missing = run_one(lab, EXPERIMENTS[name], into).summary["missing"]
        except Failed as why:
            missing = [str(why)]
        skipped += [f"{name}: {line}" for line in missing]
    now = Runs.below(into, stored.benchmarks)
    (into / "evidence.md").write_text(page.page(now))
    for line in skipped:
        print(f"SKIPPED {line}")
    print(into / "evidence.md")
    return compare(page.verdicts(stored), page.verdicts(now))


def compare(before: dict[str, str], now: dict[str, str]) -> int:
    """Prints each verdict that has changed; 1 if a claim that held does not hold."""
    same = sum(before[claim] == verdict for claim, verdict in now.items())
    print(f"{same} of {len(now)} verdicts are those of the stored page")
    worse = 0
    for claim, verdict in now.items():
        if before[claim] != verdict:
            print(f"  {before[claim]} -> {verdict}: {claim}")
            worse += before[claim] == page.HOLDS and verdict == page.FAILS
    if worse:
        print(f"{worse} claims of the stored page did not hold", file=sys.stderr)
    return 1 if worse else 0
