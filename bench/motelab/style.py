"""The style of figures: one set of colours that colour-blind readers can distinguish, and one text
size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

mpl.use("Agg")
mpl.rcParams.update(
    {
        "figure.constrained_layout.use": True,
        "figure.dpi": 110,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.hashsalt": "motelab",
    }
)

#: Okabe and Ito's, and Tol's muted ones for runs with many platforms.
CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
CYCLE += ["#882255", "#44AA99", "#999933", "#332288", "#AA4499", "#117733"]
#: Numbers of the papers: measured elsewhere, so never in a colour of ours.
STUDY = {"kubespray": "#bbbbbb", "k3s": "#999999", "microk8s": "#777777"}


def colours(names: Iterable[Any]) -> dict[Any, str]:
    """A colour for each name: ours first, then the others in their order, so that a platform has
    the same in every figure."""
    known = list(dict.fromkeys(names))
    known.sort(key=lambda name: not str(name).startswith(("mote", "auto")))
    return {name: CYCLE[at % len(CYCLE)] for at, name in enumerate(known)}


def lines(names: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """How to draw each of several curves that may coincide: the first is the widest, so that it
    shows on both sides of a later one that lies on it, and every later one has its own dashes."""
    dashes = ["-", (0, (4, 1.5)), (0, (1.5, 1.5)), (0, (4, 1.5, 1.5, 1.5))]
    for at, _ in enumerate(names):
        yield {"linewidth": max(3.2 - 0.7 * at, 1.1), "linestyle": dashes[at % len(dashes)]}


#: Names that fit into a panel.
INSIDE_MAX = 5


def legend(made: Figure, axes: Axes) -> None:
    """The names of the panel's curves: in the panel if they are few, otherwise to its right."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= INSIDE_MAX:
        axes.legend()
    else:
        made.legend(handles, labels, loc="outside right upper")


def figure(width: float = 7.0, height: float = 4.0) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    made = Figure(figsize=(width, height))
    return made, made.subplots()


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure of several."""
    made = Figure(figsize=(width, height))
    return made, made.subplots(rows, columns, squeeze=False)


def note(made: Figure, text: str) -> None:
    """A line below: where the grey numbers come from, what is missing."""
    made.supxlabel(text, fontsize=7, color="#555555", x=0.01, ha="left")


def nothing(text: str) -> Figure:
    """A placeholder for a figure that has no data."""
    made, axes = figure(6, 1.4)
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
    return made


def seconds_text(value: float) -> str:
    """12 ms, 3 s, 40 µs."""
    if value >= 1:
        return f"{value:g} s"
    return f"{value * 1e3:g} ms" if value >= 1e-3 else f"{value * 1e6:g} µs"


def rounded(value: float, digits: int = 2) -> str:
    """A time with few digits."""
    return seconds_text(float(f"{value:.{digits}g}"))


def log_seconds(axes: Axes, which: str = "y") -> None:
    """Logarithmic times, labelled as people write them."""
    getattr(axes, f"set_{which}scale")("log")
    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = axis.get_view_interval()
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value)))
    # Less than a decade has no tick of its own: then the ticks in between speak.
    is_narrow = low > 0 and high / low < 10
    axis.set_minor_formatter(
        FuncFormatter(lambda value, _: rounded(value)) if is_narrow else NullFormatter()
    )


def plain_log2(axes: Axes) -> None:
    """Numbers of clients, doubling."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def grouped_bars(
    axes: Axes, labels: list[str], series: dict[str, list[float]], colour: dict[str, str]
) -> None:
    """Bars side by side per label."""
    width = 0.8 / max(len(series), 1)
    at = np.arange(len(labels))
    for index, (name, values) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * width
        axes.bar(at + shift, values, width, label=name, color=colour[name])
    axes.set_xticks(at, labels)
    if len(labels) > 4:
        slant(axes)
    axes.grid(visible=False, axis="x")


def slant(axes: Axes) -> None:
    """Slants long labels so that they do not overlap."""
    axes.tick_params(axis="x", rotation=40)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")


def legend_above(axes: Axes, columns: int = 4) -> None:
    """Between title and panel."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2)
