"""Measures what a platform adds to a workload's time: the same code runs on it and by hand, call by
call in turn.

Both are restarted several times. The memory layout of a process can make the same work some percent
faster or slower for as long as that process lives, so one process of each, however often it is
called, shows luck rather than the platform. Rounds are therefore many and short.

A virtual processor that has slept is up to 40 % slower for a tenth of a second. When the lab itself
computes between two calls, it keeps one of the two processors awake, and the side that happens to
run there gains some percent in pure computation. So before each call the machine is left alone for
a moment.
"""

from __future__ import annotations

import time
from typing import Any

import pandas as pd

from motelab.catalog import Workload, fourteen
from motelab.client import Client, required
from motelab.environment import machine_ticks, own_ticks
from motelab.experiments.calls import WARM_CALLS, Deployment, row_of, tests_of
from motelab.platforms import Wish
from motelab.processes import Failed
from motelab.results import Outcome, nothing
from motelab.session import Lab
from motelab.statistics import blocked_median

#: Pairs during which others used more of the machine say nothing about a platform.
OTHERS_MAX = 0.25
#: Above this a workload is long enough for its ratio to mean something.
LONG_S = 0.1
OVERHEAD_MAX = 0.02
#: After it no processor is warm from what the lab did.
PAUSE_S = 0.05


def overhead(lab: Lab) -> Outcome:
    """Runs rounds of pairs until the ratio is known more precisely than the bar, or no rounds are
    left."""
    if len(lab.targets) != 2:
        raise Failed("overhead compares two targets: --target mote,native")
    least, most = lab.pick((1, 1), (8, 16), (10, 40))
    ours, theirs = (target.name for target in lab.targets)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    table = []
    for workload in lab.workloads(fourteen()):
        of: list[dict[str, Any]] = []
        found = None
        for at in range(most):
            pairs = _round(lab, workload, at, missing)
            of += pairs
            found = _overhead(pd.DataFrame(of), ours, theirs) if of else None
            is_enough = at + 1 >= least and found is not None and _is_settled(found)
            if not pairs or is_enough:
                break
        if not of:
            continue
        rows += of
        if found is None:
            missing.append(f"{workload.name}: others kept the machine busy during every pair")
            continue
        table.append({"function": workload.name, **found})
        ratio, low, high = (found[f"inner_s_{key}"] for key in ("ratio", "low", "high"))
        text = f"{ratio:.3f} ({low:.3f} to {high:.3f}), {found['verdict']}"
        lab.say(f"{workload.name}: {found['pairs']} pairs, {found['rounds']} rounds, {text}")
    if not rows:
        return nothing(missing)
    raw = _with_inner(pd.DataFrame(rows))
    return Outcome({"rows": raw}, {"table": table, "tests": tests_of(raw, "inner_s")}, missing)


def _round(lab: Lab, workload: Workload, at: int, missing: list[str]) -> list[dict[str, Any]]:
    """A fresh process of each, called in turns; nothing if one of them is not available."""
    seconds, most = lab.pick(1.0, 1.5, 5.0), lab.pick(5, 6, 10)
    deployment, wish = Deployment(lab, missing), Wish(runtime=lab.runtime, instances_min=1)
    there = []
    # Who is started first, and who is called first, changes, so that nobody always runs in the
    # other's wake.
    for target in lab.targets if at % 2 else lab.targets[::-1]:
        function = deployment.on(target, workload, wish)
        if function is None:
            break
        there.append((target, function, Client(function.url, 120)))
    rows: list[dict[str, Any]] = []
    params, seq = lab.params(workload), 0
    if len(there) == len(lab.targets):
        for _, _, client in there * WARM_CALLS:
            required(client.call(params), workload.name)
        begun = time.monotonic()
        while seq < most and time.monotonic() - begun < seconds:
            for target, _, client in there if seq % 2 else there[::-1]:
                before, own = machine_ticks(), own_ticks()
                time.sleep(PAUSE_S)
                done = required(client.call(params), workload.name)
                others = _others(before, machine_ticks(), own_ticks() - own)
                more = {"round": at, "others": others}
                rows.append(row_of(target.name, workload, seq, done, **more))
            seq += 1
    for target, function, client in there:
        client.close()
        target.remove(function)
    return rows


def _others(before: tuple[int, int], after: tuple[int, int], own: int) -> float:
    """The share of the machine used by programs that the lab did not start."""
    return max((after[0] - before[0] - own) / max(after[1] - before[1], 1), 0.0)


def _with_inner(rows: Any) -> Any:
    return rows.assign(inner_s=rows.inner_end_s - rows.inner_start_s)


def _overhead(rows: Any, ours: str, theirs: str) -> dict[str, Any] | None:
    """Ratios of pairs with their intervals; nothing if no pair can be used."""
    pairs = _with_inner(rows).pivot(
        index=["round", "seq"], columns="platform", values=["inner_s", "response_s", "others"]
    )
    is_long = bool(pairs["inner_s"][theirs].median() >= LONG_S)
    made = len(pairs)
    # The kernel counts in hundredths of a second: of short calls it cannot tell.
    if is_long:
        pairs = pairs[(pairs["others"] <= OTHERS_MAX).all(axis=1)]
    if pairs.empty:
        return None
    rounds = pairs.groupby(level="round")
    row: dict[str, Any] = {
        "pairs": len(pairs),
        "rounds": len(rounds),
        "left_out": made - len(pairs),
    }
    row["is_long"] = is_long
    for column in ("inner_s", "response_s"):
        a, b = pairs[column][ours], pairs[column][theirs]
        row |= {f"{column}_{ours}": a.median(), f"{column}_{theirs}": b.median()}
        # Of pairs made one after the other: what the machine did meanwhile is in both.
        blocks = [list(of) for _, of in (a / b).groupby(level="round")]
        ratio, low, high = blocked_median(blocks)
        row |= {f"{column}_ratio": ratio, f"{column}_low": low, f"{column}_high": high}
    row["verdict"] = verdict(row["inner_s_low"], row["inner_s_high"])
    return row


def verdict(low: float, high: float) -> str:
    """What an interval says about the bar."""
    if high <= 1 + OVERHEAD_MAX:
        return "within"
    return "over" if low > 1 + OVERHEAD_MAX else "unclear"


def _is_settled(row: dict[str, Any]) -> bool:
    """Whether more rounds are not worth their time, because the interval is narrower than the bar.
    The position of the interval does not matter, so that stopping favours neither side."""
    return bool(row["inner_s_high"] - row["inner_s_low"] < OVERHEAD_MAX)
