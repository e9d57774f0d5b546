"""Figures of scaling: instances and load over time."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from motelab import style
from motelab.figures.stated import STUDY, papers, study
from motelab.results import Stored
from motelab.study import NAMES

SMOOTH_S = 5.0


def scaling(stored: Stored) -> dict[str, Figure]:
    """Instances and load over time; for steps of load also means by clients."""
    found = {"course": _course(stored)}
    if stored.summary["axis"] == "load" and "steps" in stored.tables:
        found["steps"] = _steps(stored)
    if stored.summary.get("shares") and "served" in stored.tables:
        found["shares"] = _shares(stored)
    return found


def _course(stored: Stored) -> Figure:
    samples = stored.tables["samples"]
    colour = style.colours(samples.policy)
    rows = stored.tables.get("rows")
    lines = [("instances", "instances"), ("memory_mib", "memory in MiB")]
    lines.append(("answered", "answers per second"))
    if "cpu" in samples:
        lines.append(("cpu", "machine busy"))
    made, grid = style.panels(len(lines), 1, 7.5, 1.5 * len(lines) + 1)
    for axes, (column, label) in zip(grid[:, 0], lines, strict=True):
        for (policy, of), line in zip(
            samples.groupby("policy", sort=False), style.lines(colour), strict=True
        ):
            t, values = of.t_s, of.get(column)
            if column == "answered":
                t, values = _rate(of, rows, policy)
            step = "post" if column == "instances" else "mid"
            axes.step(t, values, where=step, color=colour[policy], label=str(policy), **line)
        axes.set_ylabel(label, fontsize=8)
        axes.set_ylim(bottom=0)
    grid[0][0].legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0))
    grid[-1][0].set_xlabel("seconds")
    made.suptitle(f"{stored.experiment}, {stored.summary['clock']} clock")
    stated = papers()
    stated = stated[(stated.experiment == stored.experiment) & (stated.unit == "s")]
    if len(stated):
        text = "; ".join(f"{row.system} {row.value:g} s" for row in stated.itertuples())
        style.note(made, f"papers, {stated.what.iloc[0]}: {text}")
    return made


def _rate(samples: Any, rows: Any, policy: Any) -> tuple[Any, Any]:
    """Answers per second: of the simulator's samples, or of rows second by second."""
    if rows is None or "policy" not in rows:
        # Samples can be shorter than the pause of a caller: the mean of some seconds says more.
        length = float(samples.t_s.diff().median()) or 1.0
        window = max(1, round(SMOOTH_S / length))
        answered = samples.answered.rolling(window, min_periods=1, center=True).mean()
        return samples.t_s, answered / length
    of = rows[(rows.policy == policy) & rows.is_ok]
    counts = of.groupby(of.t_s.astype(int)).size()
    return counts.index, counts


def _steps(stored: Stored) -> Figure:
    steps = stored.tables["steps"]
    is_sorted = stored.experiment != "hpa-varied"
    has_means = "mean_s" in steps
    made, grid = style.panels(1, 2 if has_means else 1, 10 if has_means else 6, 3.6)
    colour = style.colours(steps.policy)
    replicas = grid[0][-1]
    for (policy, of), line in zip(
        steps.groupby("policy", sort=False), style.lines(colour), strict=True
    ):
        x = of.clients if is_sorted else of.step
        # At their own level: the level holds from this step to the next.
        replicas.step(x, of.replicas, where="post", color=colour[policy], label=str(policy), **line)
        if has_means:
            grid[0][0].plot(x, of.mean_s, "o-", color=colour[policy], label=str(policy), ms=4)
    test = stored.experiment.removeprefix("hpa-")
    if has_means and is_sorted:
        _study_means(grid[0][0], test)
    if test == "ramp4":
        for platform, of in study("hpa_replicas_ramp4.csv").groupby("platform", sort=False):
            label = f"{NAMES[platform]} ({STUDY})"
            replicas.step(
                of.load, of.replicas, where="post", color=style.STUDY[platform], label=label
            )
    for axes, label in zip(
        grid[0], ("mean response in s", "instances")[-len(grid[0]) :], strict=True
    ):
        axes.set_xlabel("clients, one call per second each" if is_sorted else "step")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.legend()
    made.suptitle(f"{stored.experiment}, {stored.summary['clock']} clock")
    return made


def _study_means(axes: Axes, test: str) -> None:
    rows = study("hpa_response.csv")
    for platform, of in rows[rows.test == test].groupby("platform", sort=False):
        found = of.sort_values("concurrency")
        axes.plot(
            found.concurrency,
            found["mean"],
            color=style.STUDY[platform],
            linewidth=1,
            label=f"{NAMES[platform]} ({STUDY})",
        )


def _shares(stored: Stored) -> Figure:
    served = stored.tables["served"]
    policies = list(dict.fromkeys(served.policy))
    made, grid = style.panels(1, len(policies), 4.4 * len(policies), 3.4)
    for axes, policy in zip(grid[0], policies, strict=True):
        of = served[served.policy == policy]
        wide = of.pivot_table(index="t_s", columns="instance", values="served").ffill().fillna(0)
        rate = wide.diff().clip(lower=0).fillna(0)
        smooth = rate.rolling(4, min_periods=1).mean()
        axes.stackplot(smooth.index, *(smooth[name] for name in smooth), linewidth=0)
        axes.set_title(str(policy))
        axes.set_xlabel("seconds")
        axes.set_ylabel("calls per look, by instance")
    made.suptitle("Share of calls per instance")
    return made
