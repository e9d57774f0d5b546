"""Judges the claims by the figures of stored runs, and writes the page. Pure: runs in, text out."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from motelab.catalog import PEERS, PLANES, PLATFORMS, ROOT
from motelab.evidence.claims import CLAIMS, REASONS, Claim
from motelab.evidence.figures import BASELINE, Runs, Summary, short
from motelab.evidence.tables import TABLE_I, UNAVAILABLE
from motelab.papers import PAPERS

#: The servers and platforms of others.
OTHERS = (*PEERS, *PLANES, *PLATFORMS)
#: A peer is ahead if its figure is better by more than this share; less is noise.
AHEAD = 0.05
HOLDS, FAILS, UNCLEAR, NOT_RUN = "holds", "does not hold", "unclear", "not run"
#: In a run of the profile `brief`, which has one short repeat, a figure this near to the limit says
#: nothing.
NEAR = 0.25
#: This many repeats are enough also in that profile.
REPEATS_ENOUGH = 3
TITLES = {
    "000": "Kubernetes at the edge",
    "002": "tinyFaaS",
    "003": "Four platforms, the slides",
    "004": "Four platforms, the article",
}
#: The file with the papers' figures, and the text at the top of the page.
STATED = ROOT / "bench" / "reference" / "papers.csv"
INTRODUCTION = Path(__file__).with_name("introduction.txt").read_text()


@dataclass(frozen=True)
class Judged:
    """A claim with its figures."""

    claim: Claim
    run: Summary | None
    ours: float | None
    peers: dict[str, float]
    verdict: str
    ahead: list[str]


def judge(claim: Claim, runs: Runs) -> Judged:
    """Reads the figures of a claim and applies its rule."""
    run = None
    if claim.experiment:
        run = runs.newest(claim.experiment, claim.runtime, claim.among)
    if run is None or claim.figure is None or claim.rule is None:
        return Judged(claim, run, None, {}, NOT_RUN, [])
    ours = claim.figure(run, claim.ours)
    peers = {}
    for name in _platforms(run):
        found = claim.figure(run, name)
        # Ratios compare with the baseline, whose own is 1.
        is_baseline = name == BASELINE and found == 1
        if found is not None and name != claim.ours and not is_baseline:
            peers[name] = found
    if ours is None:
        return Judged(claim, run, None, peers, NOT_RUN, [])
    is_least, limit = claim.rule[0] == "least", claim.rule[1]
    holds = ours >= limit if is_least else ours <= limit
    better = 1 + AHEAD if is_least else 1 - AHEAD
    ahead = []
    if claim.ours.split(",")[0] not in OTHERS:
        ahead = [
            name
            for name, value in peers.items()
            if _peer_of(name) and (value > ours * better if is_least else value < ours * better)
        ]
    verdict = HOLDS if holds else FAILS
    if _is_unclear(claim, runs, run, ours, limit, holds=holds):
        verdict = UNCLEAR
    return Judged(claim, run, ours, peers, verdict, ahead)


def _is_unclear(
    claim: Claim, runs: Runs, run: Summary, ours: float, limit: float, *, holds: bool
) -> bool:
    """Whether stored runs disagree about a claim, or the only one is too short to decide it."""
    assert claim.experiment is not None and claim.figure is not None and claim.rule is not None
    is_short = run.get("profile") == "brief" and run.get("repeats", 0) < REPEATS_ENOUGH
    if is_short and abs(ours - limit) <= NEAR * limit:
        return True
    others = [
        claim.figure(one, claim.ours)
        for one in runs.all_of(claim.experiment, claim.runtime, claim.among)
    ]
    is_least = claim.rule[0] == "least"
    verdicts = {(one >= limit) if is_least else (one <= limit) for one in others if one is not None}
    return len(verdicts | {holds}) > 1


def _platforms(run: Summary) -> list[str]:
    named = [short(row.get("platform", row.get("policy", ""))) for row in run.get("table", [])]
    return list(dict.fromkeys([*named, *OTHERS]))


def _peer_of(name: str) -> str:
    """The platform of others that a row of a run belongs to, or nothing if that is mote."""
    head = name.split(",")[0]
    return head if head in (*OTHERS, BASELINE) else ""


def number(value: float) -> str:
    """Three digits, as people write them."""
    if math.isinf(value):
        return "never"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 or value == 0 else f"{value:.4f}"


def command(claim: Claim, run: Summary | None) -> str:
    """What repeats a figure."""
    if run is None or claim.experiment is None:
        return ""
    if claim.experiment.startswith("bench-"):
        return f"`make {claim.experiment}`"
    parts = ["./lab run", claim.experiment, "--profile", run["profile"]]
    parts += ["--target", ",".join(run["targets"])]
    if run.get("repeats"):
        parts += ["--repeats", str(run["repeats"])]
    if claim.runtime:
        parts += ["--runtime", claim.runtime]
    if claim.among and run.get("only"):
        parts += ["--only", ",".join(run["only"])]
    if set(run["targets"]) & set(PLANES):
        parts.append("--peer …")
    return f"`{' '.join(parts)}`"


@cache
def _stated() -> list[dict[str, str]]:
    """The figures that the papers print."""
    with STATED.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def figures_of(claim: Claim) -> list[dict[str, str]]:
    """The papers' figures that belong to a claim."""
    if isinstance(claim.theirs, str):
        return []
    return [
        one
        for one in _stated()
        if one["paper"] == claim.paper
        and one["what"] in claim.theirs
        and (
            claim.experiment is None
            or claim.experiment.startswith("bench-")
            or one["experiment"] in (claim.experiment, "related")
        )
        and (not claim.systems or one["system"] in claim.systems)
    ]


def theirs(claim: Claim) -> str:
    """What the paper states, each figure with its system."""
    if isinstance(claim.theirs, str):
        return claim.theirs
    told = []
    for one in figures_of(claim):
        unit = "" if one["unit"] in ("ratio", "count") else f" {one['unit']}"
        told.append(f"{one['system']}: {one['what']} **{number(float(one['value']))}{unit}**")
    return "; ".join(told)


def row(one: Judged) -> str:
    """A claim as a row of its table."""
    claim = one.claim
    if one.ours is None:
        why = claim.note or "no stored run has it"
        cells = [_claim(claim), theirs(claim), "", "", f"{NOT_RUN}: {why}", ""]
        return "| " + " | ".join(cells) + " |"
    assert claim.rule is not None
    unit = f" {claim.unit}" if claim.unit and not math.isinf(one.ours) else ""
    sign = "≥" if claim.rule[0] == "least" else "≤"
    ours = f"**{number(one.ours)}{unit}** {claim.what}"
    told = [
        f"{'*ahead:* ' if name in one.ahead else ''}{_shown(name, one)} {number(value)}"
        for name, value in one.peers.items()
    ]
    whys = dict.fromkeys(_reason(name) for name in one.ahead)
    peers = ", ".join(told) or ""
    if whys:
        peers += f" (why: {'; '.join(whys)})"
    verdict = f"{one.verdict} ({sign} {number(claim.rule[1])})"
    if claim.note:
        verdict += f"; {claim.note}"
    cells = [_claim(claim), theirs(claim), ours, peers, verdict, command(claim, one.run)]
    return "| " + " | ".join(cells) + " |"


def _shown(name: str, one: Judged) -> str:
    """A platform by its name; what else a run compares are scaling rules of mote."""
    is_rule = one.run is not None and any(name == row.get("policy") for row in one.run["table"])
    # With several targets in a run, each name begins with that of the target.
    return f"rule `{name}`" if is_rule and ", " not in name else name


def _claim(claim: Claim) -> str:
    return f"{claim.text} ({claim.section})"


def _reason(name: str) -> str:
    return REASONS.get(_peer_of(name), "no reason known")


def judged(runs: Runs) -> list[Judged]:
    """All claims."""
    return [judge(claim, runs) for claim in CLAIMS]


def verdicts(runs: Runs) -> dict[str, str]:
    """The verdict of each claim, by its text."""
    return {f"{one.claim.paper}: {_claim(one.claim)}": one.verdict for one in judged(runs)}


def page(runs: Runs) -> str:
    """The whole page, in Markdown."""
    rows = judged(runs)
    said_all = (HOLDS, FAILS, UNCLEAR, NOT_RUN)
    counts = {said: sum(one.verdict == said for one in rows) for said in said_all}
    summary = (
        f"Of {len(rows)} claims, {counts[HOLDS]} hold, {counts[FAILS]} do not hold,"
        f" {counts[UNCLEAR]} are unclear, and {counts[NOT_RUN]} were not run.\n"
    )
    parts = [INTRODUCTION, summary]
    for paper, title in TITLES.items():
        parts.append(f"## {title}\n\n{PAPERS[paper].full}.\n")
        parts.append(_table(["Claim", "Theirs", "Ours", "Peers", "Verdict", "Repeat"]))
        parts[-1] += "".join(row(one) + "\n" for one in rows if one.claim.paper == paper)
    parts += [_table_one(), _runs(rows), _unavailable()]
    return "\n".join(parts)


def _table(head: Sequence[str]) -> str:
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"


def _table_one() -> str:
    head, *rows = TABLE_I
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    return (
        "## Table I\n\nThe table of the article (004; 001 prints it again), with four more columns."
        " Nuclio, OpenFaaS, Knative and Kubeless are as printed, for the versions of 2021; the"
        " others were read in their sources in 2026.\n\n" + _table(head) + lines
    )


def _runs(rows: Sequence[Judged]) -> str:
    """The machines and versions behind the figures."""
    found: dict[str, Summary] = {}
    for one in rows:
        if one.run is not None:
            found[one.run["folder"]] = one.run
    lines = []
    for name, run in found.items():
        machine = run.get("environment") or run.get("machine", {})
        busy = machine.get("busy_before")
        average = machine.get("load_before")
        load = "" if average is None else f"load {average[0]:.1f} before"
        load = load if busy is None else f"{busy:.0%} busy before"
        versions = "; ".join(
            told["version"] if target in told["version"] else f"{target} {told['version']}"
            for target, told in run.get("described", {}).items()
            if told["version"]
        )
        # The name of a benchmark's result ends with its time.
        when = str(run.get("at", ""))[:10] or "20" + name.split("-20")[-1][:8]
        cells = [f"`{name}`", when, f"{machine.get('cpu', '')}, {machine.get('cores', '')} cores"]
        lines.append(f"| {' | '.join([*cells, load, versions])} |\n")
    head = ["Run", "Date", "Machine", "Load of others", "Versions of the peers"]
    return (
        "## The runs\n\nLoad, node and peers share one machine, so processor time of the generator"
        " counts against all of them alike.\n\n" + _table(head) + "".join(lines)
    )


def _unavailable() -> str:
    lines = "".join(f"| {system} | {stated} | {why} |\n" for system, stated, why in UNAVAILABLE)
    head = ["System", "The papers' figures", "Why it was not measured"]
    return "## What was not measured\n\n" + _table(head) + lines
