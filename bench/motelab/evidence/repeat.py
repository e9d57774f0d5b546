"""`lab evidence`: the runs behind the page in the profile `brief`, a page of their own, and the
verdicts that have changed."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from motelab.catalog import BRIEF, PEERS, PLANES, named
from motelab.evidence import page
from motelab.evidence.claims import BOUND
from motelab.evidence.figures import Runs
from motelab.experiments import EXPERIMENTS
from motelab.processes import Failed

#: Servers in Python cannot run JavaScript, and the others cannot run Python.
PYTHON_PEERS = ("uvicorn", "granian")
FIRST, CONTAINERS = ("mote", "native"), ("runc", "docker")
#: Workloads of a few milliseconds to a second without packages that take long to install.
QUICK = ("float-operation", "pyaes", "gzip-compression", "dd")


@dataclass(frozen=True)
class Step:
    """A run behind the page."""

    experiment: str
    targets: Sequence[str]
    #: How long it takes on two cores.
    seconds: float
    runtime: str | None = None
    only: Sequence[str] = ()


def plan(planes: Collection[str]) -> list[Step]:
    """The runs, the most telling ones first."""
    servers = [name for name in PEERS if name not in (*PYTHON_PEERS, *CONTAINERS)]
    # The classic watchdog starts a program for each call, which is compared in process-modes.
    every = [*FIRST, *servers, *(name for name in planes if name != "classic-watchdog")]
    watchdogs = [name for name in planes if name.endswith("watchdog")]
    return [
        Step("closed-sweep", every, 10 + 7 * len(every)),
        Step("latency-breakdown", ["mote"], 10),
        Step("hello-sweep", every, 10 + 7 * len(every)),
        Step("http-sweep", every, 10 + 7 * len(every)),
        Step("process-modes", ["mote", *watchdogs], 100 + 15 * len(watchdogs)),
        Step("hello-sweep", [*FIRST, *PYTHON_PEERS], 30, "python"),
        Step("scale-workload-steady", ["mote"], 40),
        Step("low-concurrency-high-rate", ["mote"], 30),
        Step("keepalive-balance", ["mote"], 30),
        Step("dropped-demand", ["mote"], 40),
        Step("export-modes", FIRST, 40),
        Step("cold-start", [*FIRST, *CONTAINERS], 130, only=QUICK),
        Step("serial", FIRST, 80, only=QUICK),
        Step("parallel-20", FIRST, 90, only=BOUND),
        Step("workers-sweep", FIRST, 30),
        Step("http-sizes", [*FIRST, *servers], 30),
        Step("scale-workload-bursty", ["mote"], 50),
        Step("network", FIRST, 45),
        Step("native-scaling", ["mote"], 130),
    ]


def repeat(into: Path, stored: Runs, folders: dict[str, Path], minutes: float) -> int:
    """Runs the plan, writes the page and compares the verdicts; 1 if a verdict is worse."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    end = time.monotonic() + minutes * 60
    skipped = [f"{name}: no --peer {name}=FOLDER" for name in PLANES if name not in folders]
    for step in plan(folders):
        left = end - time.monotonic()
        if left < step.seconds:
            skipped.append(
                f"{step.experiment}: it takes {step.seconds:.0f} s, {left:.0f} s are left"
            )
            continue
        print(
            f"{step.experiment} ({', '.join(step.targets)}), {left / 60:.0f} min left", flush=True
        )
        skipped += [f"{step.experiment}: {line}" for line in _run(step, into, folders)]
    now = Runs.below(into, stored.benchmarks)
    (into / "evidence.md").write_text(page.page(now))
    for line in skipped:
        print(f"SKIPPED {line}")
    print(into / "evidence.md")
    return compare(page.verdicts(stored), page.verdicts(now))


def _run(step: Step, into: Path, folders: dict[str, Path]) -> list[str]:
    """Makes a run, and returns what was missing in it."""
    from motelab.__main__ import run_one
    from motelab.session import Lab

    language = step.runtime or EXPERIMENTS[step.experiment].runtime
    only = named(list(step.only)) or None
    try:
        with Lab(BRIEF, list(step.targets), None, only, language, folders, quiet=True) as lab:
            missing: list[str] = run_one(lab, EXPERIMENTS[step.experiment], into).summary["missing"]
    except Failed as why:
        # One run that fails must not cost the others.
        return [str(why)]
    return missing


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
