"""How a figure is read from the summary of a stored run, without the packages that measure.

A figure is a function of a run's summary and the name of a platform in it; it returns nothing if
the run does not have what the figure needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from motelab.catalog import CLUSTERS

Summary = dict[str, Any]
Figure = Callable[[Summary, str], float | None]
#: The platform without which nothing is compared.
BASELINE = "native"


@dataclass(frozen=True)
class Runs:
    """The summaries of stored runs, and of the benchmarks that store one JSON file per run."""

    lab: list[Summary]
    benchmarks: Path | None = None

    @classmethod
    def below(cls, folder: Path, benchmarks: Path | None = None) -> Runs:
        """The runs of a folder that show something: those of `smoke` only show that the code
        works."""
        found = []
        for path in sorted(folder.glob("*/summary.json")):
            summary = json.loads(path.read_text())
            if summary["table"] and summary["profile"] != "smoke":
                found.append({**summary, "folder": path.parent.name})
        return cls(found, benchmarks)

    def newest(
        self, experiment: str, runtime: str | None = None, among: str | None = None
    ) -> Summary | None:
        """The newest run of an experiment; of a benchmark if the name begins with `bench-`."""
        found = self.all_of(experiment, runtime, among)
        return max(found, key=lambda run: str(run.get("at", "")), default=None)

    def all_of(
        self, experiment: str, runtime: str | None = None, among: str | None = None
    ) -> list[Summary]:
        """All stored runs of an experiment in which a target took part, or without targets on a
        cluster, which use another network. Of a benchmark, the newest result."""
        if experiment.startswith("bench-"):
            newest = self._benchmark(experiment.removeprefix("bench-"))
            return [newest] if newest else []
        return [
            run
            for run in self.lab
            if run["experiment"] == experiment
            and (runtime is None or run.get("runtime", "python") == runtime)
            and _is_among(run.get("targets", []), among)
        ]

    def _benchmark(self, name: str) -> Summary | None:
        if self.benchmarks is None:
            return None
        paths = sorted(self.benchmarks.glob(f"{name}-20*.json"))
        if not paths:
            return None
        found: Summary = json.loads(paths[-1].read_text())
        return {**found, "folder": paths[-1].name}


def _is_among(targets: list[str], among: str | None) -> bool:
    return among in targets if among else not set(targets) & set(CLUSTERS)


def short(platform: str) -> str:
    """The name of a platform without its protocol."""
    return platform.removesuffix(", HTTP")


def cell(run: Summary, platform: str, column: str, **where: object) -> float | None:
    """A number of the one row that belongs to a platform and has these values."""
    rows = [
        row
        for row in run["table"]
        if short(row.get("platform", row.get("policy", ""))) == platform
        and all(row.get(key) == value for key, value in where.items())
    ]
    value = rows[0].get(column) if len(rows) == 1 else None
    return None if value is None else float(value)


def value(column: str, factor: float = 1.0, **where: object) -> Figure:
    """A number of the run's table."""

    def of(run: Summary, platform: str) -> float | None:
        found = cell(run, platform, column, **where)
        return None if found is None else found * factor

    return of


def ratio(column: str, over: str = BASELINE, **where: object) -> Figure:
    """A number divided by that of another platform in the same run."""

    def of(run: Summary, platform: str) -> float | None:
        own, base = cell(run, platform, column, **where), cell(run, over, column, **where)
        return own / base if own is not None and base else None

    return of


def worst(column: str, over: str = BASELINE, key: str = "clients") -> Figure:
    """The smallest of such ratios over all levels."""

    def of(run: Summary, platform: str) -> float | None:
        levels = {row[key] for row in run["table"] if short(row["platform"]) == platform}
        found = [ratio(column, over, **{key: level})(run, platform) for level in levels]
        known = [one for one in found if one is not None]
        return min(known) if known and len(known) == len(levels) else None

    return of


def over_links(column: str, over: str = BASELINE, *, lossy: bool) -> Figure:
    """The smallest of such ratios over all links of a run that lose packets, or that lose none. Of
    the largest number of callers, because one caller makes too few calls."""

    def of(run: Summary, platform: str) -> float | None:
        # Other ways to call the baseline differ by their protocol, which is not the platform's.
        if platform.startswith(f"{over}, "):
            return None
        keys = ("round_trip_ms", "loss", "link", "clients")
        most = max(row["clients"] for row in run["table"])
        links = {
            tuple(row[key] for key in keys)
            for row in run["table"]
            if row["clients"] == most and (row["loss"] > 0) == lossy
        }
        found = [
            ratio(column, over, **dict(zip(keys, link, strict=True)))(run, platform)
            for link in links
        ]
        known = [one for one in found if one is not None]
        return min(known) if known and len(known) == len(found) else None

    return of


def at_most_clients(column: str, over: str = BASELINE) -> Figure:
    """The ratio at the largest number of clients of the run."""

    def of(run: Summary, platform: str) -> float | None:
        most = max(row["clients"] for row in run["table"])
        return ratio(column, over, clients=most)(run, platform)

    return of


def within(ours: str, over: str, column: str = "rate", **where: object) -> Figure:
    """Two rows of the same platform, whose names begin with the platform's unless it is mote."""

    def of(run: Summary, platform: str) -> float | None:
        head = "" if platform == "mote" else f"{platform}, "
        own = cell(run, head + ours, column, **where)
        base = cell(run, head + over, column, **where)
        return own / base if own is not None and base else None

    return of


def within_best(ours: str, over: tuple[str, ...], column: str = "rate") -> Figure:
    """Like `within`, with the largest of several rows as the divisor."""

    def of(run: Summary, platform: str) -> float | None:
        head = "" if platform == "mote" else f"{platform}, "
        own = cell(run, head + ours, column)
        bases = [cell(run, head + one, column) for one in over]
        known = [one for one in bases if one]
        return own / max(known) if own is not None and known else None

    return of


def mean_of_functions(column: str) -> Figure:
    """The mean over the functions of a run."""

    def of(run: Summary, platform: str) -> float | None:
        rows = [row for row in run["table"] if row["platform"] == platform]
        known = [float(row[column]) for row in rows if row.get(column) is not None]
        return fmean(known) if known and len(known) == len(rows) else None

    return of


def share_of_functions(column: str, least: float, over: str = BASELINE) -> Figure:
    """The share of the functions whose ratio to the baseline is at least this much."""

    def of(run: Summary, platform: str) -> float | None:
        names = sorted({row["function"] for row in run["table"]})
        found = [ratio(column, over, function=name)(run, platform) for name in names]
        known = [one for one in found if one is not None]
        return sum(one >= least for one in known) / len(known) if known else None

    return of


def least_of(functions: tuple[str, ...], column: str) -> Figure:
    """The smallest number of a column over some functions."""

    def of(run: Summary, platform: str) -> float | None:
        found = [cell(run, platform, column, function=name) for name in functions]
        known = [one for one in found if one is not None]
        return min(known) if len(known) == len(functions) else None

    return of


def growth(key: str, column: str = "rate") -> Figure:
    """The number of a column in the row with the largest key, divided by that in the row with the
    smallest key."""

    def of(run: Summary, platform: str) -> float | None:
        rows = [row for row in run["table"] if row["platform"] == platform]
        if not rows:
            return None
        rows.sort(key=lambda row: float(row[key]))
        return float(rows[-1][column]) / float(rows[0][column])

    return of


def time_to_ten(run: Summary, policy: str) -> float | None:
    """Seconds until 10 instances were ready; infinite if they never were."""
    if cell(run, policy, "peak") is None:
        return None
    found = cell(run, policy, "time_to_10_s")
    return math.inf if found is None else found


def peak_after_refusals(run: Summary, policy: str) -> float | None:
    """The most instances of a run in which calls were refused."""
    return cell(run, policy, "peak") if cell(run, policy, "refused_or_failed") else None


def served_share(run: Summary, policy: str) -> float | None:
    """The share of the offered calls that were answered."""
    answered, offered = cell(run, policy, "answered"), cell(run, policy, "offered")
    return answered / offered if answered is not None and offered else None


def least_warm(*names: str) -> Figure:
    """The smallest ratio of some rows in a result of bench-warm."""

    def of(run: Summary, platform: str) -> float | None:
        by_name = {row["name"]: float(row["value"]) for row in run["rows"]}
        known = [by_name[name] for name in names if name in by_name]
        return min(known) if platform == "mote" and len(known) == len(names) else None

    return of


def on_the_wire(column: str, way: str, over: str) -> Figure:
    """Bytes or packets of a first or further call, compared with another protocol, in a result of
    bench-wire."""

    def of(run: Summary, platform: str) -> float | None:
        by_way = {row["way"]: float(row[column]) for row in run["rows"]}
        if platform != "mote" or way not in by_way or over not in by_way:
            return None
        return by_way[way] / by_way[over]

    return of
