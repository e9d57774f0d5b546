"""What papers state and the study measured, for drawing next to our results."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from motelab.papers import PAPERS
from motelab.study import FOLDER

STUDY = PAPERS["000"].short
STUDY_NOTE = f"grey: platforms on the cluster of {STUDY}; compare shapes, not values"


@cache
def papers() -> Any:
    """Numbers that papers state."""
    return pd.read_csv(FOLDER.parent / "papers.csv", dtype={"paper": str})


@cache
def study(name: str) -> Any:
    """A table of the study."""
    return pd.read_csv(FOLDER / name)
