"""The figures, drawn from stored results: the shapes of the papers, with their numbers in grey next
to ours."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from motelab.results import Stored


def save(stored: Stored, figures: dict[str, Figure]) -> list[Path]:
    """Writes the figures of a run beside it."""
    paths = []
    for name, made in figures.items():
        path = stored.folder / f"{name}.png"
        made.savefig(path, dpi=130)
        paths.append(path)
    return paths
