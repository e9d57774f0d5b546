"""The page of evidence: it is what the stored runs say, and its rules are applied as stated."""

import json
from dataclasses import replace

import pytest

from motelab.__main__ import EVIDENCE, PUBLISHED
from motelab.catalog import PLANES, TARGETS
from motelab.evidence import figures, page, repeat
from motelab.evidence.claims import CLAIMS, REASONS
from motelab.evidence.figures import Runs
from motelab.experiments import EXPERIMENTS
from motelab.papers import PAPERS


@pytest.fixture(scope="module")
def stored() -> Runs:
    return Runs.below(PUBLISHED, PUBLISHED.parent)


def test_the_page_is_what_the_stored_runs_say(stored: Runs) -> None:
    assert EVIDENCE.read_text() == page.page(stored), "./lab evidence --page writes it"


def test_every_figure_of_the_papers_belongs_to_a_claim() -> None:
    used = [tuple(one.values()) for claim in CLAIMS for one in page.figures_of(claim)]
    stated = [tuple(one.values()) for one in page._stated() if one["what"] != "t2-t3"]
    assert sorted(set(used)) == sorted(stated)
    for claim in CLAIMS:
        assert page.theirs(claim), f"{claim.text}: no figure of this name"


def test_claims_name_experiments_and_papers() -> None:
    for claim in CLAIMS:
        assert claim.paper in PAPERS
        assert (
            claim.experiment is None
            or claim.experiment.startswith("bench-")
            or (claim.experiment in EXPERIMENTS)
        ), claim.text
        assert claim.experiment or claim.note, f"{claim.text}: why it is not shown"
    assert len({(claim.paper, claim.text) for claim in CLAIMS}) == len(CLAIMS)


def test_a_peer_that_is_ahead_has_a_reason(stored: Runs) -> None:
    for one in page.judged(stored):
        for name in one.ahead:
            assert page._peer_of(name) in REASONS, f"{name} is ahead in: {one.claim.text}"


def run_of(**rates: float) -> Runs:
    table = [
        {"platform": f"{name}, HTTP", "clients": 16, "rate": rate} for name, rate in rates.items()
    ]
    head = {"experiment": "closed-sweep", "at": "2026", "folder": "f", "profile": "edge"}
    return Runs([{**head, "targets": list(rates), "table": table}])


@pytest.mark.parametrize(
    ("mote", "bun", "said", "ahead"),
    [
        (160, 150, page.HOLDS, []),
        (159, 166, page.HOLDS, []),
        (158.9, 180, page.FAILS, ["bun"]),
        (50, 40, page.FAILS, []),
    ],
)
def test_a_verdict_follows_from_the_figures(mote, bun, said, ahead) -> None:
    claim = next(one for one in CLAIMS if one.text.startswith("Ahead of the native server"))
    one = page.judge(claim, run_of(mote=mote, native=100, bun=bun))
    assert (one.verdict, one.ahead) == (said, ahead)
    assert one.peers == {"bun": bun / 100}, "the baseline is no peer"
    assert "holds (≥ 1.59)" in page.row(one) or "does not hold (≥ 1.59)" in page.row(one)
    assert ("ahead" in page.row(one)) == bool(ahead)
    # Less is better: the other way round.
    less = page.judge(replace(claim, rule=("most", 1.59)), run_of(mote=mote, native=100, bun=bun))
    assert (less.verdict == page.HOLDS) == (mote <= 159)


def test_what_was_not_run_is_said() -> None:
    claim = next(one for one in CLAIMS if one.experiment == "closed-sweep")
    assert page.judge(claim, Runs([])).verdict == page.NOT_RUN
    assert page.judge(claim, run_of(native=100)).verdict == page.NOT_RUN


def test_the_newest_run_counts_and_smoke_never(tmp_path) -> None:
    for name, profile, at in (
        ("a", "edge", "2026-01-02"),
        ("b", "paper", "2026-01-01"),
        ("c", "smoke", "2026-01-03"),
    ):
        (tmp_path / name).mkdir()
        summary = {"experiment": "serial", "profile": profile, "at": at, "table": [{"n": 1}]}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    found = Runs.below(tmp_path).newest("serial")
    assert found is not None and found["folder"] == "a"


def test_runs_on_a_cluster_are_only_for_claims_that_name_a_platform_on_it() -> None:
    head = {"experiment": "closed-sweep", "profile": "edge", "table": [{"clients": 1}]}
    plain = {**head, "at": "1", "targets": ["mote", "native"]}
    cluster = {**head, "at": "2", "targets": ["mote", "mote-cluster", "knative"]}
    runs = Runs([plain, cluster])
    assert runs.newest("closed-sweep") is plain
    assert runs.newest("closed-sweep", among="knative") is cluster
    assert runs.newest("closed-sweep", among="openwhisk") is None


def test_a_platform_that_is_the_subject_of_a_claim_is_not_ahead_of_itself() -> None:
    claim = next(one for one in CLAIMS if one.ours == "knative")
    table = [
        {"platform": name, "clients": 16, "mean_s": mean}
        for name, mean in (("mote", 0.001), ("knative", 0.02), ("native", 0.0005))
    ]
    head = {"experiment": "closed-sweep", "at": "2026", "folder": "f", "profile": "edge"}
    one = page.judge(claim, Runs([{**head, "targets": ["mote", "knative"], "table": table}]))
    assert (one.ours, one.verdict, one.ahead) == (20, page.HOLDS, [])
    assert one.peers["native"] == 0.5


def test_a_claim_that_no_longer_holds_fails_the_repetition(capsys) -> None:
    before = {"a": page.HOLDS, "b": page.FAILS, "c": page.HOLDS}
    assert repeat.compare(before, before) == 0
    assert repeat.compare(before, {**before, "b": page.HOLDS, "c": page.NOT_RUN}) == 0
    assert repeat.compare(before, {**before, "a": page.FAILS}) == 1
    assert "holds -> does not hold: a" in capsys.readouterr().out


def test_the_repetition_runs_what_the_page_needs() -> None:
    planned = {step.experiment for step in repeat.plan([])}
    needed = {one.experiment for one in CLAIMS if one.experiment}
    needed = {name for name in needed if not name.startswith("bench-")}
    assert planned == needed
    steps = repeat.plan(PLANES)
    for step in steps:
        assert set(step.targets) <= set(TARGETS)
    assert sum(step.seconds for step in steps) < 20 * 60
    assert set(REASONS) <= {*page.OTHERS, figures.BASELINE}
