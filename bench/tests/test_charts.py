"""The charts of README.md are drawn from the stored results, and are fresh."""

import re
from pathlib import Path

import charts


def test_the_stored_charts_are_drawn_from_the_newest_results() -> None:
    for name, draw in (
        ("throughput.svg", charts.throughput),
        ("cold-start.svg", charts.cold_start),
    ):
        stored = (charts.IMAGES / name).read_text()
        assert stored == draw(), f"{name} is older than bench/results/: make charts"


def test_a_chart_follows_its_result(tmp_path: Path, monkeypatch) -> None:
    """A changed result changes the chart: no number is written into the drawing code."""
    before = charts.throughput()
    newest = max((charts.BENCH / "results").glob("warm-*.json"))
    (tmp_path / "results").mkdir()
    text = re.sub(r'"per_second": (\d)', r'"per_second": 9\1', newest.read_text())
    (tmp_path / "results" / newest.name).write_text(text)
    monkeypatch.setattr(charts, "BENCH", tmp_path)
    after = charts.throughput()
    numbers = [set(re.findall(r">([\d,]{6,})", drawing)) for drawing in (before, after)]
    assert numbers[0] and not numbers[0] & numbers[1]
