"""One session of the lab: where things are, what runs, and which targets take part."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from motelab import knative, kubernetes, peers
from motelab.catalog import (
    BRIEF,
    PEERS,
    PLANES,
    PLATFORMS,
    ROOT,
    TARGETS,
    Workload,
    cache_folder,
)
from motelab.client import Call, Load, bench, call, required
from motelab.cluster import Cluster
from motelab.node import LOOPBACK, Node
from motelab.platforms import Function, Mote, Native, Remote, Target, Wish
from motelab.processes import Failed
from motelab.services import Services

PROFILE_SIZES = {"smoke": 0, "edge": 1, "paper": 2}


def binary_folder() -> Path:
    """Where cargo puts the measured binaries; MOTE_BENCH_PROFILE names a profile other than
    release."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / os.environ.get("MOTE_BENCH_PROFILE", "release")


@dataclass
class Lab:
    """Use as a context manager: everything that the lab started ends with it."""

    profile: str = "smoke"
    target_names: list[str] = field(default_factory=lambda: ["mote", "native"])
    #: Of platforms that run elsewhere.
    url: str | None = None
    only: list[Workload] | None = None
    #: Language of the workloads.
    runtime: str = "python"
    #: Folders of other platforms' data planes, by their name.
    peers: dict[str, Path] = field(default_factory=dict)
    #: How often each measurement is repeated; 0 for the profile's number.
    repeats: int = 0
    cache: Path = field(default_factory=cache_folder)
    binaries: Path = field(default_factory=binary_folder)
    quiet: bool = False
    #: The address at which the node and `native` listen. Other targets listen on loopback.
    host: str = LOOPBACK

    def __post_init__(self) -> None:
        self._targets: dict[str, Target] = {}
        self.logs = self.cache / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.services = Services(self.cache, self.binaries, self.logs)
        # Everything else starts in the network of the cluster, and so after it.
        is_wanted = any(name in kubernetes.NAMES for name in self.target_names)
        self.cluster = Cluster(self.binaries) if is_wanted else None

    @property
    def mote(self) -> Path:
        """The binary: node and load engine."""
        return self.binaries / "mote"

    @cached_property
    def node(self) -> Node:
        """One of our nodes, started on first use."""
        return Node(self.mote, self.cache / "node", self.logs, host=self.host)

    @property
    def targets(self) -> list[Target]:
        """The targets that take part."""
        return [self.target(name) for name in self.target_names]

    def target(self, name: str) -> Target:
        """A target by its name."""
        if name not in self._targets:
            self._targets[name] = self._made(name)
        return self._targets[name]

    def _made(self, name: str) -> Target:
        work = self.cache / "functions"
        if name == "mote" or (name == "openfaas" and not self.url):
            # Without a gateway, OpenFaaS's handlers run on a node of ours.
            return Mote(self.node, self.services, work, name)
        if name == "native":
            native = Native(self.services, work, self.logs)
            native.host = self.host
            return native
        if name in kubernetes.NAMES:
            if self.cluster is None:
                raise Failed(f"{name} must be among the lab's targets from the start")
            if name in PLATFORMS:
                return knative.Knative(self.cluster, self.services, work)
            return kubernetes.target(name, self.cluster, self.mote, self.services, work)
        if name in PEERS or name in PLANES:
            return peers.target(name, self.peers, self.services, work, self.logs)
        if name in TARGETS and self.url:
            return Remote(name, f"{self.url}/function" if name == "openfaas" else self.url)
        if name in TARGETS:
            raise Failed(f"--target {name} needs --url, the URL of the functions")
        raise Failed(f"no target {name}; choose from {', '.join(TARGETS)}")

    @property
    def sizes(self) -> str:
        """The profile whose sizes the workloads have."""
        return "edge" if self.profile == BRIEF else self.profile

    def pick(self, smoke: Any, edge: Any, paper: Any, brief: Any = None) -> Any:
        """The value for this profile; that of `edge` for `brief` unless there is another one."""
        if self.profile == BRIEF and brief is not None:
            return brief
        return (smoke, edge, paper)[PROFILE_SIZES[self.sizes]]

    def times(self, smoke: int, edge: int, paper: int, brief: int | None = None) -> int:
        """How often something is measured: as asked for, otherwise the number for this profile."""
        return self.repeats or int(self.pick(smoke, edge, paper, brief))

    def workloads(self, default: list[Workload]) -> list[Workload]:
        """The workloads that were asked for, otherwise the experiment's own."""
        return self.only or default

    def params(self, workload: Workload) -> dict[str, str]:
        """The parameters of this profile."""
        return workload.profiles[self.sizes].params

    def deploy(self, target: Target, workload: Workload, wish: Wish) -> tuple[Function, Call]:
        """Deploys a workload, and checks with one call that it works; that call also makes it
        warm."""
        function = target.deploy(workload, self.sizes, wish)
        first = call(function.url, self.params(workload), wish.timeout_s, function.body)
        return function, required(first, f"{workload.name} on {target.name}")

    def bench(self, url: str, load: Load) -> tuple[dict[str, Any], Any]:
        """A run of the load engine."""
        return bench(self.mote, url, load)

    def described(self) -> dict[str, dict[str, str]]:
        """The versions of the targets so far, and what a reader must know about each of them."""
        found = {}
        for name, target in self._targets.items():
            told = {"version": target.version(), "note": target.note()}
            if any(told.values()):
                found[name] = told
        return found

    def say(self, text: str) -> None:
        """Prints progress for whoever waits."""
        if not self.quiet:
            print(f"  {text}", flush=True)

    def close(self) -> None:
        """Ends what was started."""
        for target in self._targets.values():
            target.close()
        self._targets.clear()
        if "node" in self.__dict__:
            self.node.stop()
            del self.__dict__["node"]
        self.services.stop()
        if self.cluster:
            self.cluster.close()
            self.cluster = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
