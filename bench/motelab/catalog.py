"""The workloads, as their folders describe them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from motelab.processes import Failed

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "workloads"
PROFILES = ("smoke", "edge", "paper")
#: The sizes of `edge` with shorter loads and fewer repeats: for a look at everything.
BRIEF = "brief"
#: Whole platforms of others, which the lab installs into a cluster; and all targets on a cluster.
PLATFORMS = ("knative",)
CLUSTERS = ("mote-cluster", "kubernetes", "kubernetes-hpa", *PLATFORMS)
#: Peers that the lab can install, and those whose folder a user names; `peers` has their classes.
PEERS = ("deno", "bun", "workerd", "uvicorn", "granian", "go", "runc", "docker")
PLANES = ("openwhisk", "fission", "nuclio", "of-watchdog", "classic-watchdog", "tinyfaas")
TARGETS = ("mote", "native", "openfaas", "http", *CLUSTERS, *PEERS, *PLANES)


def cache_folder() -> Path:
    """The folder that is kept from run to run; MOTE_LAB_CACHE names another folder."""
    return Path(os.environ.get("MOTE_LAB_CACHE", ROOT / ".cache" / "lab"))


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
        """The path of the folder."""
        return FOLDER / self.name


class Table:
    """A table of a file, whose errors name the file and the key."""

    def __init__(self, file: Path, path: str, raw: object) -> None:
        if not isinstance(raw, Mapping):
            raise Failed(f"{file}: {path}: must be a table")
        self.file, self.path, self.raw = file, path, raw
        self.read: set[str] = set()

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of this kind; required unless there is a default."""
        self.read.add(key)
        value = self.raw.get(key, default)
        if value is None:
            raise Failed(f"{self.file}: {self._name(key)} is missing")
        if not isinstance(value, kind) or isinstance(value, bool):
            what = {str: "text", int: "a whole number", list: "a list", dict: "a table"}[kind]
            raise Failed(f"{self.file}: {self._name(key)} must be {what}, not {value!r}")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of texts."""
        values = self.get(key, list, list(default))
        if not all(isinstance(value, str) for value in values):
            raise Failed(f"{self.file}: {self._name(key)} must be a list of text")
        return tuple(values)

    def table(self, key: str) -> Table:
        """A nested table."""
        return Table(self.file, self._name(key), self.get(key, dict))

    def end(self) -> None:
        """Refuses keys that nothing has read, which are usually misspelled."""
        for key in self.raw:
            if key not in self.read:
                known = ", ".join(sorted(self.read))
                raise Failed(f"{self.file}: {self._name(key)} is unknown; the keys are {known}")


def _profile(table: Table) -> Profile:
    params = table.get("params", dict, {})
    if not all(isinstance(value, str) for value in params.values()):
        raise Failed(f"{table.file}: {table.path}.params: every value must be text")
    found = Profile(params, table.get("memory_mib", int), table.get("disk_mib", int))
    table.end()
    return found


def read(folder: Path) -> Workload:
    """A workload from its folder."""
    path = folder / "workload.toml"
    try:
        with path.open("rb") as file:
            raw = Table(path, "", tomllib.load(file))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failed(f"{path}: {error}") from None
    sizes = raw.table("profiles")
    profiles = {name: _profile(sizes.table(name)) for name in PROFILES}
    sizes.end()
    found = Workload(
        name=folder.name,
        title=raw.get("title", str),
        category=raw.get("category", str),
        number=raw.get("number", int, 0),
        needs=raw.texts("needs"),
        packages=raw.texts("packages"),
        modules=raw.texts("modules"),
        runtimes=raw.texts("runtimes", ("python",)),
        profiles=profiles,
    )
    raw.end()
    return found


@cache
def workloads() -> dict[str, Workload]:
    """All workloads: first the study's fourteen in the study's order."""
    found = [read(path.parent) for path in FOLDER.glob("*/workload.toml")]
    found.sort(key=lambda workload: (workload.number or 99, workload.name))
    return {workload.name: workload for workload in found}


def fourteen() -> list[Workload]:
    """The fourteen workloads of the study."""
    return [workload for workload in workloads().values() if workload.number]


def named(names: list[str]) -> list[Workload]:
    """The workloads with these names."""
    known = workloads()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise LookupError(f"no workload {', '.join(unknown)}; choose from {', '.join(known)}")
    return [known[name] for name in names]
