"""The papers whose experiments the lab repeats, by the numbers that stored results use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper's name: a short form for figures, and the full form."""

    short: str
    full: str


PAPERS = {
    "000": Paper(
        "Kjorveziroski 2022",
        "Kjorveziroski, Filiposka: Kubernetes Distributions for the Edge: Serverless Performance"
        " Evaluation, 2022",
    ),
    "002": Paper(
        "Pfandzelter 2020",
        "Pfandzelter, Bermbach: tinyFaaS: A Lightweight FaaS Platform for Edge Environments, 2020",
    ),
    "003": Paper("Li 2019", "Li et al.: Understanding Open Source Serverless Platforms, 2019"),
    "004": Paper(
        "Li 2021",
        "Li et al.: Analyzing Open-Source Serverless Platforms: Characteristics and Performance,"
        " 2021",
    ),
}


def cited(reference: str) -> str:
    """`000 4.1` as people write it: `Kjorveziroski 2022, 4.1`; unknown keys stay as they are."""
    if reference == "ours":
        return "this project"
    key, _, section = reference.partition(" ")
    short = PAPERS[key].short if key in PAPERS else key
    return f"{short}, {section}" if section else short
