"""`--repeats` replaces the number of the profile, and is part of a run's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelab.__main__ import folder_of, parser, run
from motelab.processes import Failed
from motelab.session import Lab


@pytest.mark.parametrize(("asked", "times", "ends"), [(0, 4, "native"), (7, 7, "7-repeats")])
def test_repeats(tmp_path: Path, asked: int, times: int, ends: str) -> None:
    """Without the option, the profile decides."""
    with Lab("brief", cache=tmp_path, repeats=asked, quiet=True) as lab:
        assert lab.times(1, 2, 3, brief=4) == times
        assert folder_of(lab, "cold-start").endswith(ends)
    words = ["run", "cold-start", *(["--repeats", str(asked)] if asked else [])]
    assert parser().parse_args(words).repeats == asked


def test_an_experiment_that_measures_once_is_not_named_after_repeats() -> None:
    """Otherwise its folder and its command on the page of evidence would say what is not true."""
    with pytest.raises(Failed, match="serial: measures once"):
        run(parser().parse_args(["run", "serial", "--repeats", "3"]))


@pytest.mark.parametrize("text", ["0", "-3", "x", "1.5"])
def test_a_wrong_number_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything runs."""
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "serial", f"--repeats={text}"])
    assert f"found '{text}'" in capsys.readouterr().err
