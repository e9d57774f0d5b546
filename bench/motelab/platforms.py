"""The platforms on which workloads run: a target deploys them and says where they answer.

A new platform is a class with `deploy` and a list of what it `offers`; see bench/README.md.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from motelab.assembly import Manifest, assemble
from motelab.catalog import Workload
from motelab.client import Call, call
from motelab.cluster import Controller
from motelab.node import KEEPER, LOOPBACK, Node, free_port
from motelab.processes import READY_S_MAX, Failed, Program, wait_for
from motelab.services import INSIDE, Services

#: Memory of a function in Node. A hundred calls at once that each hold a page of 100 kB exceed
#: 128 MiB, and the node then ends the instance with all of them.
NODE_MIB = 192


class NotOffered(Failed):
    """An experiment needs something that a target does not have; the text says what."""


@dataclass(frozen=True)
class Wish:
    """How a workload should run. A target that cannot fulfil a part of the wish refuses the whole
    wish."""

    runtime: str = "python"
    #: Calls at once in one instance, by threads where the runtime has such.
    concurrency: int = 1
    instances_min: int = 0
    instances_max: int = 1
    scale: Mapping[str, object] = field(default_factory=dict)
    cpu: float | None = None
    timeout_s: float = 120
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Function:
    """A workload at the address where it answers."""

    name: str
    url: str
    coap: str | None = None
    #: JSON that a call must POST, on platforms whose functions take no other call.
    body: str | None = None


class Target(ABC):
    """A platform under test."""

    name: str
    #: What experiments may ask of it: `zero`, `instances`, `phases`, `coap`, `processes`,
    #: `policies` (the lab chooses the scaling rules), `scales` (by its own rule), `programs`.
    offers: frozenset[str] = frozenset()

    @abstractmethod
    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """Makes the workload answer; replaces what answered under its name."""

    def version(self) -> str:
        """The version that the platform reports; empty if the record of the machine has it."""
        return ""

    def note(self) -> str:
        """What a reader must know to judge this target's numbers, in a sentence."""
        return ""

    def remove(self, function: Function) -> None:
        """Removes the function; does nothing if somebody else deployed it."""
        return

    def cold_call(self, function: Function, params: dict[str, str]) -> Call:
        """A call to a function without an instance. A platform starts the instance itself."""
        return call(function.url, params, body=function.body)

    def start(self, function: Function) -> None:
        """Starts what a call to a function at zero needs. A platform does so itself."""
        return

    def to_zero(self, function: Function) -> None:
        """Stops the function's instances and waits until they are gone."""
        raise NotOffered(f"{self.name} cannot stop a function's instances on demand")

    def instances(self, function: Function) -> list[dict[str, Any]]:
        """The function's instances."""
        raise NotOffered(f"{self.name} does not show a function's instances")

    def require(self, *wanted: str) -> None:
        """Raises an error that names what is missing."""
        for offer in wanted:
            if offer not in self.offers:
                raise NotOffered(f"{self.name} does not support `{offer}`")

    def settle(self) -> None:
        """Waits until functions that were removed no longer affect the next one."""
        return

    def close(self) -> None:
        """Ends what the target started, if anything."""
        return


class Deployed(Target):
    """A platform that accepts functions as folders with one of our manifests."""

    services: Services
    #: The contract that the functions are written for.
    contract: str
    #: Whether functions can have a folder on a disk (`/data`).
    has_disk = False
    #: Where the lab's servers are for the platform, and for a function on it.
    outside, inside = "127.0.0.1", INSIDE

    def manifest(self, workload: Workload, profile: str, wish: Wish, name: str) -> Manifest:
        """The settings of a function in addition to its code."""
        of = workload.profiles[profile]
        env, net = self.services.environment(workload, profile, self.inside, self.outside)
        scale = {"max": wish.instances_max, **wish.scale}
        if wish.instances_min:
            scale["min"] = wish.instances_min
        memory = max(of.memory_mib, NODE_MIB if wish.runtime == "node" else 0)
        is_node = wish.runtime == "node" and wish.concurrency == 1
        is_rust = wish.runtime == "rust"
        if wish.runtime in ("rust", "wasm"):
            env |= {"WORKLOAD": workload.name, "THREADS": str(wish.concurrency)}
        disk_mib = of.disk_mib * (1 if wish.runtime == "node" else wish.concurrency)
        data_mib = 0
        if self.has_disk and workload.category == "disk":
            # The workloads write where temporary files belong. Room is left for what an instance
            # that was ended has not removed.
            env |= {"TMPDIR": "/data"}
            data_mib = 64 + 2 * disk_mib
        return Manifest(
            name=name,
            runtime="server" if is_rust else wish.runtime,
            command=("./workload-rs",) if is_rust else (),
            # Threads of one instance work at once, and so need as many times the memory.
            memory_mib=memory if wish.runtime == "node" else memory * wish.concurrency,
            disk_mib=disk_mib,
            data_mib=data_mib,
            timeout_s=wish.timeout_s,
            concurrency=None if is_node else wish.concurrency,
            scale=scale,
            env={**env, **wish.env},
            net=net,
            cpu=wish.cpu,
            compat=None if self.contract == "mote" else self.contract,
        )


class Mote(Deployed):
    """One of our nodes, started by the lab. With `contract`, the node is the same and the functions
    are written for another platform."""

    offers = frozenset({"zero", "instances", "phases", "coap", "processes", "policies", "programs"})
    #: Of the names of its functions, where two targets share a platform.
    ending = ""
    #: How long a function that was called counts as a neighbour. Until then, a node runs long work
    #: of other functions in the background (docs/decisions/0009-neighbours.md).
    NEIGHBOUR_S = 10.0

    def __init__(
        self, node: Node | Controller, services: Services, work: Path, contract: str = "mote"
    ) -> None:
        self.node, self.services, self.work = node, services, work
        self.contract = contract
        self.name = contract
        loops = Path("/dev/loop-control").exists()
        self.has_disk = isinstance(node, Node) and os.geteuid() == 0 and loops
        self.removed_at = -self.NEIGHBOUR_S

    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """Assembles and deploys the workload; the node installs packages, once per list."""
        suffix = "" if wish.runtime == "python" else f"-{wish.runtime}"
        name = f"{workload.name}{suffix}{self.ending}"
        if wish.runtime in ("rust", "wasm") and self.contract != "mote":
            raise NotOffered(f"the Rust workloads are programs, not handlers of {self.contract}")
        if wish.runtime == "python" and workload.packages:
            self._keep_packages(workload)
        manifest = self.manifest(workload, profile, wish, name)
        into = self.work / self.contract / name
        assemble(workload, self.contract, wish.runtime, into, manifest=manifest)
        return self.deploy_folder(name, into)

    def _keep_packages(self, workload: Workload) -> None:
        """Keeps an installation after the workloads that use it are removed."""
        text = "\n".join(workload.packages) + "\n"
        name = KEEPER + hashlib.sha256(text.encode()).hexdigest()[:12]
        if name in self.node.functions():
            return
        folder = self.work / "keepers" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requirements.txt").write_text(text)
        (folder / "app.py").write_text("def handle(event, ctx):\n    return ''\n")
        (folder / "mote.toml").write_text(Manifest(name, scale={"idle": "1ms"}).text())
        self.node.mote("deploy", str(folder), "--name", name)

    def deploy_folder(self, name: str, folder: Path) -> Function:
        """Deploys a folder unchanged."""
        self.node.mote("deploy", str(folder), "--name", name)
        return Function(
            name,
            f"http://127.0.0.1:{self.node.http}/{name}",
            f"coap://127.0.0.1:{self.node.coap}/{name}",
        )

    def remove(self, function: Function) -> None:
        """Removes the function."""
        self.node.mote("remove", function.name, "--yes")
        self.removed_at = time.monotonic()

    def settle(self) -> None:
        """Waits until the function that was removed last is no neighbour any more."""
        time.sleep(max(self.removed_at + self.NEIGHBOUR_S - time.monotonic(), 0.0))

    def to_zero(self, function: Function) -> None:
        """Stops the function's instances and waits until they are gone."""
        self.node.to_zero(function.name)

    def instances(self, function: Function) -> list[dict[str, Any]]:
        """The function's instances."""
        return self.node.instances(function.name)


class Native(Target):
    """The same code behind its language's own HTTP server, one process per workload."""

    name = "native"
    offers = frozenset({"threads", "zero"})
    #: By runtime. A program that is given port 0 prints the port that it chose.
    commands: Mapping[str, Sequence[str]] = {
        "python": (sys.executable, "-B", "server.py"),
        "node": ("node", "server.mjs"),
        "go": ("./server",),
        "rust": ("./workload-rs",),
    }
    #: The rows of `assembly.ADAPTERS` that this target uses.
    adapter = "native"
    #: Whether the lab chooses the port, because the program does not print it.
    is_told_port = False

    #: The address at which the program listens. Only the programs of this class can be told
    #: another one.
    host = LOOPBACK

    def __init__(self, services: Services, work: Path, logs: Path) -> None:
        self.services, self.work, self.logs = services, work / self.name, logs
        self.running: dict[str, Started] = {}

    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """Restarts the workload's server."""
        if wish.instances_max > 1:
            raise NotOffered(f"{self.name} is one process and has no further instances")
        # Without a platform, the program runs as machine code.
        runtime = "rust" if wish.runtime == "wasm" else wish.runtime
        if runtime not in self.commands:
            raise NotOffered(f"{self.name} does not run {runtime}")
        # Watchdogs have modes, and one function may run in several at once.
        parts = [workload.name, runtime, wish.env.get("mode", "")]
        name = "-".join(part for part in parts if part)
        if name in self.running:
            self.running.pop(name).stop()
        into = assemble(workload, self.adapter, runtime, self.work / name)
        env, _ = self.services.environment(workload, profile, "127.0.0.1")
        # Functions of mote have their temporary folder in memory, and those that measure a disk on
        # the disk: so does this one.
        scratch = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
        if workload.category == "disk":
            scratch = str(into / "scratch")
            Path(scratch).mkdir()
        env |= {"THREADS": str(wish.concurrency), "TMPDIR": scratch, **wish.env}
        env["WORKLOAD"] = workload.name
        if self.host != LOOPBACK:
            env["HOST"] = self.host
        # Nothing of this machine's environment reaches a function of mote: settings of a library
        # that only one side sees would be measured as if they were the platform.
        env |= {"PATH": os.environ.get("PATH", os.defpath), "HOME": scratch, "LANG": "C.UTF-8"}
        log = self.logs / f"{self.name}-{name}.log"
        self.running[name] = Started(self, into, runtime, env, log)
        port = self.running[name].start()
        return self.function(name, port)

    def function(self, name: str, port: int) -> Function:
        """The address of a function whose program listens on this port."""
        return Function(name, f"http://127.0.0.1:{port}/")

    def port(self) -> int:
        """The port that the program should listen on; 0 if the program chooses one."""
        return free_port() if self.is_told_port else 0

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Writes what the program needs besides the workload, and returns its arguments in addition
        to the command."""
        return []

    def programs(self, into: Path, runtime: str, env: dict[str, str], log: Path) -> list[Program]:
        """Starts the programs that serve the workload on `PORT`; the first one listens there."""
        command = [*self.commands[runtime], *self.prepare(into, env, int(env["PORT"]))]
        return [Program(command, log, env=env, cwd=into, inherits=False)]

    def specialize(self, into: Path, env: Mapping[str, str], port: int) -> None:
        """Gives a generic runtime its function, after it listens."""
        return

    def stop(self, programs: Sequence[Program], into: Path) -> None:
        """Ends the programs of one workload."""
        for program in programs:
            program.stop()

    def remove(self, function: Function) -> None:
        """Ends the workload's server."""
        if function.name in self.running:
            self.running.pop(function.name).stop()

    def start(self, function: Function) -> None:
        """Starts the workload's server on its port and waits until it listens."""
        self.running[function.name].start()

    def to_zero(self, function: Function) -> None:
        """Ends the workload's server and waits until it is gone."""
        self.running[function.name].stop()

    def cold_call(self, function: Function, params: dict[str, str]) -> Call:
        """Starts the server on its port and calls it as soon as it listens."""
        begun = time.monotonic()
        self.start(function)
        done = super().cold_call(function, params)
        return replace(done, begun=begun)

    def close(self) -> None:
        """Ends all servers."""
        for started in self.running.values():
            started.stop()
        self.running.clear()


class Started:
    """The programs of one workload, which can be stopped and started again on the same port."""

    def __init__(
        self, target: Native, into: Path, runtime: str, env: Mapping[str, str], log: Path
    ) -> None:
        self.target, self.into, self.runtime, self.log = target, into, runtime, log
        self.env = {"PORT": str(target.port()), **env}
        self.programs: list[Program] = []

    def start(self) -> int:
        """Starts the programs and waits until they listen; the port."""
        # A target may give its programs other variables than those of the function.
        env = dict(self.env)
        self.programs = self.target.programs(self.into, self.runtime, env, self.log)
        try:
            if self.env["PORT"] == "0":
                self.env["PORT"] = self.programs[0].first_line()
            port = int(self.env["PORT"])
            self.await_port(port)
            self.target.specialize(self.into, env, port)
        except Failed as why:
            text = self.log.read_text(errors="replace")[-600:]
            self.stop()
            raise Failed(f"{why}\n{text}".rstrip()) from None
        return port

    def await_port(self, port: int) -> None:
        """Waits until one of the programs listens on a port."""

        def listens() -> bool:
            for program in self.programs:
                if program.process.poll() is not None:
                    raise Failed(f"{program.name} ended with status {program.process.returncode}")
            return is_listening(port)

        wait_for(f"{self.target.name}: listening on port {port}", READY_S_MAX, listens, 0.001)

    def stop(self) -> None:
        """Ends the programs."""
        self.target.stop(self.programs, self.into)
        self.programs = []


def is_listening(port: int) -> bool:
    """Whether a program of this machine accepts connections on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Remote(Target):
    """Functions that somebody has already deployed, each at its name below a URL: any platform, or
    an OpenFaaS gateway with `/function`. Their packages, limits and endpoints cannot be changed
    here."""

    def __init__(self, name: str, base: str) -> None:
        self.name, self.base = name, base.rstrip("/")

    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """The address where the function should answer."""
        suffix = "" if wish.runtime == "python" else f"-{wish.runtime}"
        name = f"{workload.name}{suffix}"
        return Function(name, f"{self.base}/{name}")
