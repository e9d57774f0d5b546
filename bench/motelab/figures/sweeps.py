"""Figures of the load engine's runs."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from motelab import style
from motelab.papers import PAPERS
from motelab.results import Stored


def closed_sweep(stored: Stored) -> dict[str, Figure]:
    """Distributions in a panel per number of clients; means, rates and successes over clients."""
    cdf = stored.tables["cdf"]
    levels = sorted(cdf.clients.unique())
    colour = style.colours(cdf.platform)
    columns = min(3, len(levels))
    rows = -(-len(levels) // columns)
    made, grid = style.panels(rows, columns, 3.2 * columns + 0.4, 2.5 * rows + 0.6)
    for at, axes in enumerate(grid.flat):
        if at >= len(levels):
            axes.axis("off")
            continue
        for platform, of in cdf[cdf.clients == levels[at]].groupby("platform", sort=False):
            axes.step(of.response_s, of.share, where="post", color=colour[platform], label=platform)
        style.log_seconds(axes, "x")
        axes.tick_params(axis="x", labelsize=7, which="both")
        axes.set_ylim(0, 1.03)
        axes.set_title(f"{levels[at]} clients")
    style.legend(made, grid[0][0])
    made.suptitle("Share of all operations answered within a time; failures never are")
    found = {"cdf": made, "lines": _closed_lines(stored, colour)}
    if stored.summary.get("ratios"):
        found["ratios"] = _closed_ratios(stored, colour)
    return found


def _closed_lines(stored: Stored, colour: dict[Any, str]) -> Figure:
    table = pd.DataFrame(stored.summary["table"])
    made, grid = style.panels(1, 3, 10.5, 3.2)
    for axes, column, label in zip(
        grid[0],
        ("mean_s", "rate", "success"),
        ("mean latency of successes", "answers per second", "share answered within 1 s"),
        strict=True,
    ):
        for platform, of in table.groupby("platform", sort=False):
            axes.plot(of.clients, of[column], "o-", color=colour[platform], label=platform)
        style.plain_log2(axes)
        axes.set_xlabel("clients")
        axes.set_title(label)
        if column == "success":
            axes.set_ylim(0, 1.05)
        elif column == "mean_s":
            style.log_seconds(axes)
    style.legend(made, grid[0][0])
    return made


def _closed_ratios(stored: Stored, colour: dict[Any, str]) -> Figure:
    table = pd.DataFrame(stored.summary["ratios"])
    made, axes = style.figure(6.5, 3.6)
    for platform, of in table.groupby("platform", sort=False):
        axes.plot(of.clients, of.rate_ratio, "o-", color=colour[platform], label=platform)
    axes.axhline(1, color="#555555", linewidth=0.8)
    theirs = PAPERS["002"].short
    axes.plot([16], [1.59], "D", color="#777777", label=f"tinyFaaS, board, 16 clients ({theirs})")
    axes.axhline(
        1 / 1.33,
        color="#777777",
        linestyle="--",
        linewidth=1,
        label=f"tinyFaaS, server, high load ({theirs})",
    )
    style.plain_log2(axes)
    axes.set_xlabel("clients")
    axes.set_ylabel("throughput / native's over HTTP")
    axes.set_ylim(bottom=0)
    style.legend(made, axes)
    axes.set_title("The platform beside the same code without one")
    return made


def sweep(stored: Stored) -> dict[str, Figure]:
    """Throughput over concurrency with deviations; the distribution at one level."""
    table = pd.DataFrame(stored.summary["table"])
    colour = style.colours(table.platform)
    made, axes = style.figure()
    for platform, of in table.groupby("platform", sort=False):
        axes.errorbar(
            of.clients,
            of.rate,
            yerr=of.rate_sd,
            fmt="o-",
            capsize=3,
            color=colour[platform],
            label=platform,
            markersize=4,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("clients")
    axes.set_ylabel("answers per second")
    style.legend(made, axes)
    axes.set_title("Throughput by concurrency; bars are standard deviations of the repeats")
    found = {"throughput": made}
    if "cdf" in stored.tables:
        shown = stored.summary.get("shown", "")
        cdf = stored.tables["cdf"]
        found["latency"] = _cdf(cdf, "platform", f"Latency at {shown} clients")
    return found


def _cdf(cdf: Any, key: str, title: str) -> Figure:
    made, axes = style.figure()
    colour = style.colours(cdf[key])
    for name, of in cdf.groupby(key, sort=False):
        axes.step(of.response_s, of.share, where="post", color=colour[name], label=str(name))
    style.log_seconds(axes, "x")
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("share of all operations")
    style.legend(made, axes)
    axes.set_title(title)
    return made


def sizes(stored: Stored) -> dict[str, Figure]:
    """Bars by size, and the distribution at 1 KB."""
    table = pd.DataFrame(stored.summary["table"])
    found = {"throughput": _bars_by(table, "bytes", "bytes of the page")}
    cdf = stored.tables["cdf"]
    one = cdf[cdf["bytes"] == 1_000]
    if len(one):
        found["latency"] = _cdf(one, "platform", "Latency at 1 KB")
    return found


def _bars_by(table: Any, key: str, label: str, value: str = "rate") -> Figure:
    made, axes = style.figure(6, 3.6)
    grid = table.pivot(index=key, columns="platform", values=value)
    platforms = list(dict.fromkeys(table.platform))
    series = {name: list(grid[name]) for name in platforms}
    labels = [f"{index:g}" for index in grid.index]
    style.grouped_bars(axes, labels, series, style.colours(platforms))
    axes.set_xlabel(label)
    axes.set_ylabel("answers per second" if value == "rate" else "median latency in ms")
    style.legend(made, axes)
    return made


def workers(stored: Stored) -> dict[str, Figure]:
    """Two panels of bars."""
    table = pd.DataFrame(stored.summary["table"])
    return {
        "throughput": _bars_by(table, "workers", "workers"),
        "latency": _bars_by(table, "workers", "workers", "p50_ms"),
    }


def modes(stored: Stored) -> dict[str, Figure]:
    """Bars by mode."""
    table = pd.DataFrame(stored.summary["table"])
    made, axes = style.figure(7.5, 1.2 + 0.3 * len(table))
    colour = ["#0072B2" if kept else "#D55E00" for kept in table.kept]
    bars = axes.barh(table.platform, table.rate, color=colour, xerr=table.rate_sd, capsize=3)
    axes.bar_label(bars, [f"{rate:,.0f}/s" for rate in table.rate], padding=2)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(right=table.rate.max() * 5)
    axes.set_xlabel("answers per second")
    axes.set_title(f"A kept process and a process per request, {stored.summary['clients']} clients")
    style.note(made, f"{PAPERS['004'].short}: a kept process has about ten times the throughput")
    return {"throughput": made}


def exports(stored: Stored) -> dict[str, Figure]:
    """Paired bars over concurrency."""
    table = pd.DataFrame(stored.summary["table"])
    return {
        "throughput": _bars_by(table, "clients", "clients"),
        "latency": _bars_by(table, "clients", "clients", "p50_ms"),
    }
