"""The workloads: what their folders say about them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "workloads"
PROFILES = ("smoke", "edge", "paper")


@dataclass(frozen=True)
class Profile:
    """Sizes of one workload."""

    params: dict[str, str]
    memory_mib: int
    disk_mib: int


@dataclass(frozen=True)
class Workload:
    """One folder of `workloads/`."""

    name: str
    title: str
    category: str
    #: Of the study's fourteen; 0 for those the other papers need.
    number: int
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    runtimes: tuple[str, ...]
    profiles: dict[str, Profile]

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / self.name


def read(folder: Path) -> Workload:
    """A workload from its folder."""
    with (folder / "workload.toml").open("rb") as file:
        raw = tomllib.load(file)
    profiles = {
        name: Profile(of.get("params", {}), of["memory_mib"], of["disk_mib"])
        for name, of in raw["profiles"].items()
    }
    if set(profiles) != set(PROFILES):
        raise ValueError(f"{folder}: the profiles {', '.join(PROFILES)} are required")
    return Workload(
        name=folder.name,
        title=raw["title"],
        category=raw["category"],
        number=raw.get("number", 0),
        needs=tuple(raw.get("needs", ())),
        packages=tuple(raw.get("packages", ())),
        modules=tuple(raw.get("modules", ())),
        runtimes=tuple(raw.get("runtimes", ("python",))),
        profiles=profiles,
    )


@cache
def workloads() -> dict[str, Workload]:
    """All, the study's fourteen first and in its order."""
    found = [read(path.parent) for path in FOLDER.glob("*/workload.toml")]
    found.sort(key=lambda workload: (workload.number or 99, workload.name))
    return {workload.name: workload for workload in found}


def fourteen() -> list[Workload]:
    """The study's."""
    return [workload for workload in workloads().values() if workload.number]


def named(names: list[str]) -> list[Workload]:
    """Workloads by their names."""
    known = workloads()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise LookupError(f"no workload {', '.join(unknown)}; choose from {', '.join(known)}")
    return [known[name] for name in names]
