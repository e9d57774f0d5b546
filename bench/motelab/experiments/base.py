"""What an experiment is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

# The list of experiments is shown without the packages that measure and draw.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from motelab.results import Outcome, Stored
    from motelab.session import Lab


def later(path: str, **fixed: Any) -> Callable[..., Any]:
    """The function at a path below `motelab`; its module is imported when it is first called."""
    module, _, name = path.rpartition(".")

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(f"motelab.{module}"), name)(*args, **fixed)

    return call


@dataclass(frozen=True)
class Experiment:
    """A named experiment: how it is run, and how its figures are drawn from the stored results."""

    name: str
    title: str
    #: A key of `papers.PAPERS` and the section, or `ours`.
    paper: str
    run: Callable[[Lab], Outcome]
    draw: Callable[[Stored], dict[str, Figure]]
    #: What is done with which load, in a sentence.
    about: str
    #: Targets that take part unless others are named.
    targets: tuple[str, ...] = ("mote", "native")
    #: Language of the workloads unless another one is named.
    runtime: str = "python"
    #: Whether it repeats measurements, so that somebody may choose how often.
    repeats: bool = False

    def figures(self, stored: Stored) -> dict[str, Figure]:
        """Its figures, or one figure that says why there is nothing to draw."""
        if not stored.summary["table"]:
            from motelab import style

            return {
                "nothing": style.nothing("not measured: " + "; ".join(stored.summary["missing"]))
            }
        return self.draw(stored)


def group_rows(rows: Any, keys: list[str], column: str = "response_s") -> list[dict[str, Any]]:
    """A summary per group, as a table."""
    from motelab.statistics import summary

    if rows.empty:
        return []
    found = []
    for values, of in rows.groupby(keys, sort=False):
        names = dict(zip(keys, values, strict=True))
        found.append({**names, **summary(of[column]).as_dict()})
    return found
