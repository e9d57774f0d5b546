"""Figures of single calls: cold starts, serial, parallel, overhead, breakdown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from motelab import style
from motelab.figures.stated import STUDY, STUDY_NOTE, papers, study
from motelab.papers import PAPERS
from motelab.results import Stored
from motelab.study import NAMES, PLATFORMS


def cold_start(stored: Stored) -> dict[str, Figure]:
    """Bars of means, boxes, and a heat map of functions by platforms."""
    cold = stored.tables["cold"]
    means = {name: float(of.overhead_s.mean()) for name, of in cold.groupby("platform")}
    starts = study("cold_start_e2e.csv")
    theirs = {name: starts[starts.platform == name].overhead_mean.mean() for name in PLATFORMS}
    made, axes = style.figure(6.5, 3.6)
    ours = style.colours(means)
    names = [*means, *(NAMES[name] for name in theirs)]
    values = [*means.values(), *theirs.values()]
    bars = axes.bar(names, values, color=[*ours.values(), *(style.STUDY[n] for n in theirs)])
    axes.bar_label(bars, [style.rounded(value, 3) for value in values], fontsize=8)
    # Bars begin at zero: on a logarithmic axis their lengths would say nothing.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.seconds_text(value)))
    axes.set_ylabel("mean response less warm mean")
    axes.set_title("Cold starts: what a caller waits beyond a warm call")
    style.note(made, STUDY_NOTE)
    return {"means": made, "boxes": _cold_boxes(cold), "heat": _cold_heat(cold)}


def _cold_boxes(cold: Any) -> Figure:
    functions = list(dict.fromkeys(cold.function))
    colour = style.colours(cold.platform)
    made, axes = style.figure(max(5.0, 1.2 + 0.62 * len(functions) * len(colour)), 4)
    width = 0.8 / len(colour)
    for index, (platform, of) in enumerate(cold.groupby("platform", sort=False)):
        at = np.arange(len(functions)) + (index - (len(colour) - 1) / 2) * width
        samples = [of[of.function == name].overhead_s for name in functions]
        boxes = axes.boxplot(
            samples,
            positions=list(at),
            widths=width * 0.8,
            patch_artist=True,
            flierprops={"markersize": 3},
        )
        for box in boxes["boxes"]:
            box.set_facecolor(colour[platform])
        axes.plot([], [], "s", color=colour[platform], label=platform)
    axes.set_xticks(range(len(functions)), functions, rotation=30 if len(functions) > 3 else 0)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right" if len(functions) > 3 else "center")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.seconds_text(value)))
    if cold.overhead_s.min() > 0:
        style.log_seconds(axes)
    axes.set_ylabel("response less warm mean")
    axes.legend()
    axes.set_title("Cold starts by function")
    return made


def _cold_heat(cold: Any) -> Figure:
    grid = cold.pivot_table(index="function", columns="platform", values="overhead_s", sort=False)
    starts = study("cold_start_e2e.csv").pivot(
        index="function", columns="platform", values="overhead_mean"
    )
    for name in PLATFORMS:
        grid[NAMES[name]] = [starts[name].get(function, np.nan) for function in grid.index]
    made, axes = style.figure(6.5, 1.4 + 0.3 * len(grid))
    values = np.log10(grid.to_numpy(dtype=float).clip(min=1e-5))
    axes.imshow(values, aspect="auto", cmap="viridis_r")
    axes.set_xticks(range(len(grid.columns)), list(grid.columns))
    axes.set_yticks(range(len(grid)), list(grid.index))
    middle = np.nanmean(values)
    for y, row in enumerate(grid.to_numpy(dtype=float)):
        for x, value in enumerate(row):
            text = "-" if np.isnan(value) else style.rounded(value, 2)
            is_dark = not np.isnan(value) and np.log10(max(value, 1e-5)) > middle
            axes.text(
                x,
                y,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color="white" if is_dark else "black",
            )
    axes.grid(visible=False)
    axes.set_title("Mean cold start beyond a warm call")
    style.note(made, f"the last three columns: platforms of {STUDY}")
    return made


def serial(stored: Stored) -> dict[str, Figure]:
    """Executions, and mean responses in a panel per function."""
    table = pd.DataFrame(stored.summary["table"])
    functions, platforms = list(dict.fromkeys(table.function)), list(dict.fromkeys(table.platform))
    colour = style.colours(platforms)
    made, axes = style.figure(9, 4)
    counts = table.pivot(index="function", columns="platform", values="n").reindex(functions)
    style.grouped_bars(axes, functions, {name: list(counts[name]) for name in platforms}, colour)
    axes.set_yscale("log")
    axes.set_ylabel("executions")
    style.legend_above(axes)
    axes.set_title("Serial executions by one client", pad=22)
    # Other profiles have smaller parameters: the study's times are of other work than ours.
    is_comparable = stored.summary["profile"] == "paper"
    return {"counts": made, "means": _serial_panels(table, functions, colour, is_comparable)}


def _serial_panels(
    table: Any, functions: list[str], colour: dict[Any, str], is_comparable: bool
) -> Figure:
    columns = 4
    rows = -(-len(functions) // columns)
    made, grid = style.panels(rows, columns, 10, 2.1 * rows + 0.3)
    theirs = study("serial.csv").set_index(["function", "platform"])["mean"]
    for at, axes in enumerate(grid.flat):
        if at >= len(functions):
            axes.axis("off")
            continue
        function = functions[at]
        of = table[table.function == function]
        names = [str(name) for name in of.platform]
        values = list(of["mean"])
        error = [values - of.low, of.high - values]
        axes.bar(
            names,
            values,
            color=[colour[name] for name in names],
            yerr=np.clip(np.array(error), 0, None),
            capsize=2,
        )
        for name in PLATFORMS if is_comparable else ():
            value = theirs.get((function, name))
            if value is not None:
                axes.bar(NAMES[name], value, color=style.STUDY[name])
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.rounded(value, 3)))
        axes.set_title(function)
        axes.tick_params(axis="x", rotation=35, labelsize=7)
        axes.tick_params(axis="y", labelsize=7, which="both")
        axes.grid(visible=False, axis="x")
    made.suptitle("Mean response of serial calls")
    if is_comparable:
        style.note(made, f"grey: platforms of {STUDY}, with the same parameters")
    else:
        style.note(made, f"values of {STUDY} are drawn in profile paper, which has its parameters")
    return made


def parallel(stored: Stored) -> dict[str, Figure]:
    """Totals and speed-ups as bars, and when answers came."""
    table = pd.DataFrame(stored.summary["table"])
    rows = stored.tables["rows"]
    functions, platforms = list(dict.fromkeys(table.function)), list(dict.fromkeys(table.platform))
    colour = style.colours(platforms)
    found = {}
    for value, label, title in (
        ("total", "seconds until the last answer", "Requests at once: total time"),
        ("speedup_vs_serial", "requests x serial mean / total", "Requests at once: speed-up"),
    ):
        made, axes = style.figure(max(6.0, 0.75 * len(functions) + 2), 4)
        grid = table.pivot(index="function", columns="platform", values=value).reindex(functions)
        style.grouped_bars(axes, functions, {name: list(grid[name]) for name in platforms}, colour)
        if value == "total":
            axes.set_yscale("log")
        else:
            axes.axhline(1, color="#555555", linewidth=0.8)
            theirs = study("parallel20.csv").set_index(["function", "platform"])[value]
            marks = [theirs.get((function, "k3s"), np.nan) for function in functions]
            axes.plot(range(len(functions)), marks, "D", color="#777777", label=f"K3s ({STUDY})")
        axes.set_ylabel(label)
        style.legend_above(axes, 3)
        axes.set_title(title, pad=36)
        found[value] = made
    return found | {"histograms": _parallel_histograms(rows, functions, platforms, colour)}


def _parallel_histograms(
    rows: Any, functions: list[str], platforms: list[Any], colour: dict[Any, str]
) -> Figure:
    made, grid = style.panels(
        len(functions), len(platforms), 2.9 * len(platforms) + 0.6, 1.5 * len(functions) + 0.6
    )
    is_good = (rows.kind == "parallel") & (rows.status == 200)
    for y, function in enumerate(functions):
        for x, platform in enumerate(platforms):
            axes = grid[y][x]
            of = rows[is_good & (rows.function == function) & (rows.platform == platform)]
            if len(of):
                axes.hist(of.response_s, bins=5, color=colour[platform], edgecolor="white")
            axes.tick_params(labelsize=7)
            axes.xaxis.set_major_locator(MaxNLocator(3))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: style.rounded(t, 4)))
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
            if y == 0:
                axes.set_title(str(platform), fontsize=8)
            if x == 0:
                axes.set_ylabel(function, fontsize=7)
    made.supxlabel("response, five equal bins", fontsize=8)
    return made


def overhead(stored: Stored) -> dict[str, Figure]:
    """Ratios with their intervals, by workload."""
    table = pd.DataFrame(stored.summary["table"])
    made, axes = style.figure(7.5, 1.2 + 0.34 * len(table))
    at = np.arange(len(table))[::-1]
    for column, shift, colour, label in (
        ("inner_s", 0.12, style.CYCLE[0], "time in the function"),
        ("response_s", -0.12, style.CYCLE[1], "whole request"),
    ):
        value = table[f"{column}_ratio"]
        error = [value - table[f"{column}_low"], table[f"{column}_high"] - value]
        axes.errorbar(
            value,
            at + shift,
            xerr=np.clip(np.array(error), 0, None),
            fmt="o",
            color=colour,
            label=label,
            capsize=2,
            markersize=4,
        )
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.axvspan(1 - 0.02, 1 + 0.02, color="#009E73", alpha=0.15, label="within 2 %")
    time = table[next(name for name in table if name.startswith("inner_s_nat"))]
    # Of short ones the ratio says little; the bar is not for them.
    labels = [
        f"{row.function}, {style.rounded(value, 2)}: {row.verdict if row.is_long else 'short'}"
        for row, value in zip(table.itertuples(), time, strict=True)
    ]
    axes.set_yticks(at, labels)
    low = min(table.inner_s_low.min(), table.response_s_low.min())
    high = max(table.inner_s_high.max(), table.response_s_high.max())
    axes.set_xlim(max(low - 0.02, 0.5), min(high + 0.02, 2.0))
    axes.set_xlabel("on the platform / by hand, medians of alternated pairs, 95 %")
    style.legend_above(axes, 3)
    return {"ratios": made}


PHASES = {
    "t1-t2": "t1 to t2: to the handler",
    "t2-t3": "t2 to t3: in the handler",
    "t3-t4": "t3 to t4: back",
}


def breakdown(stored: Stored) -> dict[str, Figure]:
    """Stacked bars of ours and the papers' platforms."""
    rows = [
        {"system": row["platform"], "is_ours": True, **{phase: row[phase] for phase in PHASES}}
        for row in stored.summary["table"]
    ]
    stated = papers()
    stated = stated[stated.experiment == "latency-breakdown"]
    theirs = PAPERS["003"].short
    for system, of in stated.groupby("system", sort=False):
        rows.append(
            {"system": system, "is_ours": False, **dict(zip(of.what, of.value, strict=True))}
        )
    made, axes = style.figure(7.5, 1.2 + 0.38 * len(rows))
    at = np.arange(len(rows))[::-1]
    left = np.zeros(len(rows))
    colour = style.colours(PHASES)
    for phase, label in PHASES.items():
        values = np.array([row[phase] for row in rows])
        bars = axes.barh(at, values, left=left, color=colour[phase], label=label)
        for bar, row in zip(bars, rows, strict=True):
            bar.set_alpha(1.0 if row["is_ours"] else 0.45)
        left += values
    for y, total in zip(at, left, strict=True):
        axes.text(total, y, f" {total:.3f} ms", va="center", fontsize=8)
    axes.set_yticks(
        at, [f"{row['system']}{'' if row['is_ours'] else f' ({theirs})'}" for row in rows]
    )
    axes.set_xlim(right=left.max() * 1.18)
    axes.set_xlabel("milliseconds, means of single calls on an idle warm instance")
    axes.grid(visible=False, axis="y")
    style.legend_above(axes, 3)
    return {"phases": made}
