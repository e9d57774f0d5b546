"""What an experiment stores: raw rows, a summary with the environment, and figures.

A folder per run: `rows.csv.gz`, further tables, `summary.json`, `*.png`. The JSON form only grows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

VERSION = 1
#: Rows that are stored at most; of more, an even sample and the true number.
ROWS_MAX = 400_000
#: Name of the file that a failed run leaves in its folder.
FAILURE = "failure.json"


@dataclass
class Outcome:
    """An experiment that was run, before it is stored."""

    #: By name; `rows` has one row per operation.
    tables: dict[str, Any]
    #: Numbers for people and programs: `groups`, `tests`, and what the experiment adds.
    summary: dict[str, Any] = field(default_factory=dict)
    #: What could not be done and why.
    missing: list[str] = field(default_factory=list)


def nothing(missing: list[str]) -> Outcome:
    """The outcome of an experiment in which no target could take part."""
    return Outcome({}, {"table": []}, missing)


@dataclass(frozen=True)
class Stored:
    """A run as it is stored on disk."""

    folder: Path
    summary: dict[str, Any]
    tables: dict[str, Any]

    @property
    def experiment(self) -> str:
        """Its name."""
        return str(self.summary["experiment"])


def write_failure(folder: Path, head: dict[str, Any], reason: str) -> None:
    """Stores why a run failed, next to the results of an earlier run if there are any."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"version": VERSION, **head, "failed": reason}, indent=1, default=_plain)
    (folder / FAILURE).write_text(text + "\n")


def failures(folder: Path) -> list[dict[str, Any]]:
    """The failed runs below a folder that have not succeeded since, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{FAILURE}"))]


def write(folder: Path, head: dict[str, Any], outcome: Outcome) -> Stored:
    """Stores a run, and returns it as [`read`] would."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.suffix in (".gz", ".png", ".svg", ".json"):
            old.unlink()
    counts = {}
    for name, table in outcome.tables.items():
        counts[name] = len(table)
        if not len(table.columns):
            continue
        kept = table
        if len(table) > ROWS_MAX:
            kept = table.iloc[:: -(-len(table) // ROWS_MAX)]
        # Without a time stamp inside, equal tables are equal files.
        compression = {"method": "gzip", "mtime": 0}
        kept.to_csv(
            folder / f"{name}.csv.gz", index=False, compression=compression, float_format="%.9g"
        )
    summary = {"version": VERSION, **head, "rows": counts, "missing": outcome.missing}
    summary |= outcome.summary
    text = json.dumps(summary, indent=1, allow_nan=False, default=_plain)
    (folder / "summary.json").write_text(text + "\n")
    return read(folder)


def _plain(value: Any) -> Any:
    """Converts numpy's numbers to Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def read(folder: Path) -> Stored:
    """A run from its folder."""
    summary = json.loads((folder / "summary.json").read_text())
    tables = {
        path.name.removesuffix(".csv.gz"): pd.read_csv(path)
        for path in sorted(folder.glob("*.csv.gz"))
    }
    return Stored(folder, summary, tables)


def stored(folder: Path) -> list[Stored]:
    """All runs below a folder, by name."""
    return [read(path.parent) for path in sorted(folder.glob("*/summary.json"))]
