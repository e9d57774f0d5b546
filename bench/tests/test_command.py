"""The command line of the lab: what it says before, during and after a run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from motelab import catalog
from motelab.__main__ import estimate, name_of, warn_if_busy
from motelab.catalog import ROOT, named, workloads
from motelab.experiments import EXPERIMENTS
from motelab.processes import Failed
from motelab.report import heading, lines

RIGHT = """
title = "a test"
category = "cpu"

[profiles.smoke]
memory_mib = 64
disk_mib = 16

[profiles.edge]
memory_mib = 64
disk_mib = 16

[profiles.paper]
memory_mib = 64
disk_mib = 16
params = { n = "1" }
"""


def test_runs_of_other_workloads_have_other_folders() -> None:
    names = {
        name_of("serial", "smoke", ["mote"]),
        name_of("serial", "smoke", ["mote"], only=named(["dd"])),
        name_of("serial", "smoke", ["mote"], only=named(["pyaes"])),
        name_of("serial", "smoke", ["mote"], "rust", named(["pyaes"])),
        name_of("serial", "smoke", ["mote"], only=list(workloads().values())),
    }
    assert len(names) == 5
    assert max(map(len, names)) < 150


def test_the_list_needs_no_package() -> None:
    # -S leaves out every installed package.
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); sys.argv = ['lab', 'list']; "
    code += "from motelab.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert "closed-sweep" in done.stdout and "pyaes" in done.stdout


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_every_experiment_finds_its_functions(experiment) -> None:
    # Without arguments, the functions themselves fail, and not the search for them.
    for call in (experiment.run, experiment.draw):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            call()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[profiles.edge]", "[profiles.egde]", "profiles.edge is missing"),
        ("memory_mib = 64", "memory = 64", "profiles.smoke.memory_mib is missing"),
        (
            "memory_mib = 64",
            'memory_mib = "64"',
            "profiles.smoke.memory_mib must be a whole number",
        ),
        ("disk_mib = 16", "disk_mib = 16\ncpu = 1", "profiles.smoke.cpu is unknown; the keys are"),
        ('n = "1"', "n = 1", "profiles.paper.params: every value must be text"),
        ('title = "a test"', 'titel = "a test"', "title is missing"),
        ('title = "a test"', "title = a test", "Invalid value"),
        ('category = "cpu"', 'category = "cpu"\nneeds = "objects"', "needs must be a list"),
    ],
)
def test_a_wrong_workload_names_the_file_and_the_key(tmp_path: Path, old, new, said) -> None:
    file = tmp_path / "workload.toml"
    file.write_text(RIGHT)
    assert catalog.read(tmp_path).title == "a test"
    file.write_text(RIGHT.replace(old, new, 1))
    with pytest.raises(Failed) as error:
        catalog.read(tmp_path)
    assert str(error.value).startswith(f"{file}: ") and said in str(error.value)


def test_earlier_runs_give_the_estimate(tmp_path: Path) -> None:
    names = ["serial-smoke-mote", "overhead-smoke-mote"]
    assert estimate([tmp_path], names) == "no estimate: no run of this kind is stored yet"
    (tmp_path / names[0]).mkdir()
    (tmp_path / names[0] / "summary.json").write_text(json.dumps({"seconds": 600.2}))
    assert estimate([tmp_path], names[:1]) == "about 10 min, as long as before"
    assert "1 of 2 experiments without an estimate" in estimate([tmp_path], names)


def test_a_busy_machine_is_said_before_the_run(capsys) -> None:
    warn_if_busy({"busy_before": 0.02})
    assert capsys.readouterr().err == ""
    warn_if_busy({"busy_before": 0.97})
    assert "WARNING: other programs use 97% of the processors" in capsys.readouterr().err


def test_what_is_printed_has_units() -> None:
    rows = [{"function": "dd", "mean": 0.25, "p95_ms": 1.5, "rate": 3.0, "inner_s_low": 0.1}]
    head, row = lines(rows)
    assert head == "function  mean (s)  p95 (ms)  rate (1/s)  inner low (s)"
    assert row.split() == ["dd", "0.25", "1.5", "3", "0.1"]
    assert heading("inner_s_ratio", "s") == "inner s ratio"
    assert lines(rows * 3, most=2)[-1] == "1 more rows in the file"
