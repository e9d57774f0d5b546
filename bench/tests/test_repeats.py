"""`--repeats` replaces the number of the profile, and is part of a run's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelab.__main__ import folder_of, parser
from motelab.session import Lab


@pytest.mark.parametrize(("asked", "times", "ends"), [(0, 4, "native"), (7, 7, "7-repeats")])
def test_repeats(tmp_path: Path, asked: int, times: int, ends: str) -> None:
    """Without the option, the profile decides."""
    with Lab("brief", cache=tmp_path, repeats=asked, quiet=True) as lab:
        assert lab.times(1, 2, 3, brief=4) == times
        assert folder_of(lab, "cold-start").endswith(ends)
    words = ["run", "cold-start", *(["--repeats", str(asked)] if asked else [])]
    assert parser().parse_args(words).repeats == asked
