"""Figures of calls from another network."""

from __future__ import annotations

from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from motelab import style
from motelab.results import Stored


def network(stored: Stored) -> dict[str, Figure]:
    """Throughput, the slowest answers, and first calls, each over the round trip."""
    table = pd.DataFrame(stored.summary["table"])
    found = {"throughput": _throughput(table), "latency": _latency(table)}
    first = pd.DataFrame(stored.summary["first"])
    if len(first):
        found["first"] = _first(first)
    return found


def _curves(axes: Axes, of: Any, column: str, colour: dict[Any, str]) -> None:
    """A curve for each way over the round trip."""
    groups = list(of.groupby("platform", sort=False))
    for (name, rows), look in zip(groups, style.lines(groups), strict=True):
        axes.plot(
            rows.round_trip_ms, rows[column], "o", ls=look["linestyle"], lw=look["linewidth"],
            color=colour[name], label=name, markersize=4,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xscale("log")
    trips = sorted(of.round_trip_ms.unique())
    axes.set_xticks(trips, [f"{trip:g}" for trip in trips])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _grid(table: Any, rows: list[tuple[str, int]]) -> tuple[Figure, Any, list[float]]:
    losses = sorted(table.loss.unique())
    width, height = 2.8 * len(losses) + 2.6, 2.3 * len(rows) + 0.5
    made, grid = style.panels(len(rows), len(losses), width, height)
    for (row, (link, clients)), (column, loss) in product(enumerate(rows), enumerate(losses)):
        callers = "1 caller" if clients == 1 else f"{clients} callers"
        rate = "" if link == "unlimited" else f", {link}"
        grid[row][column].set_title(f"{callers}{rate}, loss {loss:.0%}")
    for axes in grid[-1]:
        axes.set_xlabel("round trip in ms")
    return made, grid, losses


def _finish(made: Figure, grid: Any) -> None:
    """Panels of a row have the same scale; the names of the curves are to the right of all."""
    for row in grid:
        lows, highs = zip(*(axes.get_ylim() for axes in row), strict=True)
        # Less than a decade would have no label.
        low, high = min(lows), max(highs)
        for axes in row:
            axes.set_ylim(min(low, high / 12), high)
    made.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right upper")


def _throughput(table: Any) -> Figure:
    rows = [(link, n) for link in table.link.unique() for n in table.clients.unique()]
    made, grid, losses = _grid(table, rows)
    colour = style.colours(table.platform)
    for (row, (link, clients)), (column, loss) in product(enumerate(rows), enumerate(losses)):
        of = table[(table.link == link) & (table.clients == clients) & (table.loss == loss)]
        _curves(grid[row][column], of, "rate", colour)
        if column == 0:
            grid[row][column].set_ylabel("answers per second")
    _finish(made, grid)
    return made


def _latency(table: Any) -> Figure:
    """Half of the calls, and all but the slowest 1 %, of the largest number of callers."""
    clients = int(table.clients.max())
    made, grid, losses = _grid(table, [("unlimited", clients)] * 2)
    colour = style.colours(table.platform)
    of = table[(table.link == "unlimited") & (table.clients == clients)]
    for (row, column), (at, loss) in product(enumerate(["p50_ms", "p99_ms"]), enumerate(losses)):
        axes = grid[row][at]
        _curves(axes, of[of.loss == loss], column, colour)
        if at == 0:
            axes.set_ylabel(f"{column.removesuffix('_ms')} in ms")
    _finish(made, grid)
    style.note(made, "no point: more than this share of the calls was not answered in time")
    return made


def _first(first: Any) -> Figure:
    of = first[first.loss == first.loss.min()]
    made, axes = style.figure(6.5, 3.6)
    platforms = list(dict.fromkeys(of.platform))
    grid = of.pivot(index="round_trip_ms", columns="platform", values="p50_ms")
    series = {name: list(grid[name]) for name in platforms}
    labels = [f"{trip:g} ms" for trip in grid.index]
    style.grouped_bars(axes, labels, series, style.colours(platforms))
    axes.set_xlabel("round trip")
    axes.set_ylabel("median in ms")
    axes.set_title("First call to a function without an instance, no loss")
    style.legend(made, axes)
    return made
