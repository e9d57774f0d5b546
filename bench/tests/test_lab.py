"""The lab itself, end to end on a node and in miniature: runs, stores, draws, reports, redraws."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbclient
import nbformat
import pandas as pd
import pytest
from conftest import require

from motelab import client, environment, results
from motelab.__main__ import main as command_line
from motelab.__main__ import run_one
from motelab.catalog import ROOT
from motelab.experiments import EXPERIMENTS, overhead
from motelab.report import write as write_report

NOTEBOOK = ROOT / "bench" / "lab.ipynb"


@pytest.fixture(scope="module")
def folder(lab_cache) -> Path:
    return lab_cache / "results"


def run(lab, folder, mote, name) -> results.Stored:
    lab.target_names = list(EXPERIMENTS[name].targets)
    lab.runtime = EXPERIMENTS[name].runtime
    return run_one(lab, EXPERIMENTS[name], folder)


def test_cold_starts_are_cold(lab, folder, mote) -> None:
    stored = run(lab, folder, mote, "cold-start")
    rows = stored.tables["rows"]
    cold, warm = rows[rows.is_cold], rows[~rows.is_cold]
    assert (len(cold), len(warm)) == (3, 6)
    assert (cold.init_ms > 0).all() and (warm.init_ms == 0).all()
    assert {path.name for path in stored.folder.glob("*.png")} >= {"means.png", "heat.png"}
    environment = stored.summary["environment"]
    assert environment["cores"] > 0 and environment["versions"]["mote"].startswith("mote ")


def test_a_closed_sweep_counts_all_operations_of_every_way(lab, folder, mote) -> None:
    stored = run(lab, folder, mote, "closed-sweep")
    table = pd.DataFrame(stored.summary["table"])
    assert set(table.platform) == {"mote, HTTP", "mote, CoAP", "native, HTTP"}
    assert list(table.offered) == [20, 20, 20, 80, 80, 80]
    assert (table.success == 1).all()
    assert stored.summary["missing"] == ["native does not speak CoAP"]
    ends = stored.tables["cdf"].groupby(["platform", "clients"]).share.max()
    assert (ends == 1).all()


def test_a_breakdown_has_all_phases(lab, folder, mote) -> None:
    stored = run(lab, folder, mote, "latency-breakdown")
    for row in stored.summary["table"]:
        assert all(row[phase] > 0 for phase in ("t1-t2", "t2-t3", "t3-t4")), row


@pytest.mark.parametrize("name", ["hpa-ramp4", "native-scaling"])
def test_scaling_runs_on_the_simulated_clock(lab, folder, mote, name) -> None:
    stored = run(lab, folder, mote, name)
    assert stored.summary["clock"] == "simulated"
    peaks = {row["policy"]: row["peak"] for row in stored.summary["table"]}
    # The study's finding: the rule of OpenFaaS goes to the maximum under constant load.
    assert peaks["openfaas"] == (20 if name == "native-scaling" else 10)
    assert peaks["auto"] < 20


def test_the_report_has_every_run_and_fetches_nothing(folder, mote) -> None:
    page = write_report(folder, folder / "report.html").read_text()
    for name in ("cold-start", "closed-sweep", "latency-breakdown", "hpa-ramp4"):
        assert f"Experiment <b>{name}</b>" in page
    assert 'src="http' not in page and "<script" not in page
    assert "955803.5" in page, "the study's statistics"


def test_the_notebook_redraws_the_runs_it_is_pointed_at(folder, mote, monkeypatch) -> None:
    monkeypatch.setenv("LAB_RESULTS", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "bench"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    drawn = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(drawn) >= 8
    saved = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in saved.cells), "stored without outputs"


def test_a_target_that_lacks_something_is_said(lab, folder, mote) -> None:
    lab.target_names, lab.url = ["http"], "http://127.0.0.1:1"
    stored = run_one(lab, EXPERIMENTS["cold-start"], folder / "lacking")
    assert stored.summary["missing"] == ["http keeps no function at zero: no cold starts"]
    assert stored.summary["table"] == []


def test_stored_runs_are_what_was_written(tmp_path) -> None:
    table = pd.DataFrame({"a": [1.5, 2.25], "b": ["x", "y"]})
    outcome = results.Outcome({"rows": table}, {"table": [{"n": 2}]}, ["nothing"])
    stored = results.write(tmp_path / "run", {"experiment": "serial"}, outcome)
    pd.testing.assert_frame_equal(stored.tables["rows"], table)
    assert stored.summary["rows"] == {"rows": 2}
    first = (tmp_path / "run" / "rows.csv.gz").read_bytes()
    results.write(tmp_path / "run", {"experiment": "serial"}, outcome)
    assert (tmp_path / "run" / "rows.csv.gz").read_bytes() == first
    text = (tmp_path / "run" / "summary.json").read_text()
    assert json.loads(text)["version"] == 1


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.99, 1.02, "within"), (1.021, 1.04, "over"), (1.01, 1.03, "unclear")],
)
def test_a_ratio_is_judged_by_its_interval(low, high, said) -> None:
    assert overhead.verdict(low, high) == said


def test_own_ticks_count_what_was_started() -> None:
    before = environment.own_ticks()
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert environment.own_ticks() - before >= 25
        child.communicate(b"\n")


def test_server_timing_is_read_by_name() -> None:
    found = client.server_timing('queue;dur=0.012, init;dur=0, db;desc="x";dur=2.5, cache')
    assert found == {"queue": 0.012, "init": 0.0, "db": 2.5}


def test_binaries_are_named_when_missing(tmp_path) -> None:
    with pytest.raises(pytest.skip.Exception, match="mote is not built"):
        require(tmp_path / "mote", "build it")


class Elsewhere:
    """A session in which the services of workloads are not available."""

    def __init__(self, lab, tmp_path: Path) -> None:
        self.lab, self.binaries = lab, lab.services.binaries
        self.empty = tmp_path

    def __enter__(self):
        self.lab.services.binaries = self.empty
        return self.lab

    def __exit__(self, *_: object) -> None:
        self.lab.services.binaries = self.binaries


@pytest.mark.parametrize("name", ["http-sweep", "http-sizes"])
def test_a_missing_service_is_named_and_ends_nothing(lab, folder, mote, tmp_path, name) -> None:
    lab.target_names = list(EXPERIMENTS[name].targets)
    lab._targets.clear()
    with Elsewhere(lab, tmp_path) as elsewhere:
        stored = run_one(elsewhere, EXPERIMENTS[name], folder / "without-services")
    assert stored.summary["table"] == []
    assert len(stored.summary["missing"]) == 2, "one line per target"
    for line in stored.summary["missing"]:
        assert "bench_static is missing: cargo build --profile " in line, line
    page = write_report(folder / "without-services", tmp_path / "report.html").read_text()
    assert "bench_static is missing" in page


def test_a_failed_experiment_is_named_and_the_others_run(tmp_path, monkeypatch, capsys) -> None:
    def broken(_: object) -> results.Outcome:
        raise KeyError("platform")

    first, second = EXPERIMENTS["hello-sweep"], EXPERIMENTS["http-sweep"]
    ran = []
    monkeypatch.setitem(EXPERIMENTS, first.name, replace(first, run=broken))

    def fine(_: object) -> results.Outcome:
        ran.append(second.name)
        return results.nothing(["nothing to measure in this test"])

    monkeypatch.setitem(EXPERIMENTS, second.name, replace(second, run=fine))
    argv = ["lab", "--results", str(tmp_path), "run", first.name, second.name]
    monkeypatch.setattr(sys, "argv", argv)
    assert command_line() == 1
    assert ran == ["http-sweep"]
    errors = capsys.readouterr().err
    assert "FAILED: KeyError: 'platform'" in errors and "failed: hello-sweep" in errors
    page = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert "Runs that failed" in page and "hello-sweep (smoke" in page

    # A later run with success takes the failure off the page.
    monkeypatch.setitem(EXPERIMENTS, first.name, replace(first, run=fine))
    assert command_line() == 0
    page = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert "Runs that failed" not in page
