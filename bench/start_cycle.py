"""Measures what a whole start of an instance costs in processor time.

One cycle: a function that has no instance is called, an instance starts, answers and is stopped
again, everything that belonged to it is removed, and the interpreter that it took from the
prewarmed ones is replaced. The calls of a round come one at a time, in fixed intervals, so that
each finds the function without an instance and a prewarmed interpreter that waits.

Processor time is that of a control group which contains the node from its first instruction on, so
it includes every process that the node has started, also those that have ended. What the node uses
while it is not called, measured before the first round, is subtracted. The columns are

    all        the whole cycle
    node       of this the node's own process, counted by the kernel in steps of 10 ms per round
    zygote     of this the process that clones the sandboxes, without what it cloned
    sandboxes  the rest: set-up of sandboxes, interpreters, and their ends
    kernel     threads of the kernel, for example those that remove network namespaces; these are
               not in the control group, and other programs on the machine cause such work too
    wall       from the call to its answer
    bare       for comparison, a Python that does nothing, after the round: on a shared machine the
               same work takes several times as long at one moment as at another

in milliseconds, `wall` the median of a round. At the end, each example gets ten instances, and the
memory of all processes except the node is printed, without these instances and with them (shared
memory is counted once). With several builds, the rounds of each build
alternate. The exit status is 1 if the last build misses a limit.

Usage: start_cycle.py [--rounds N] [--cycles N] [--every MS] [--rest S] [--only NAME,NAME]
                      [--builds NAME=FILE,NAME=FILE] [--no-save]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from client import connect, get  # noqa: E402
from machine import machine  # noqa: E402
from node import ROOT, Node, binaries, settle  # noqa: E402

#: Milliseconds of processor time for a cycle of these examples.
BARS_MS = {"hello-python": 8.0, "hello-node": 30.0}
#: The memory of ten idle instances together.
INSTANCES_MIB_BAR = {"hello-python": 40.0}
COLUMNS = ("all", "node", "zygote", "sandboxes", "kernel", "wall", "bare")
#: An instance is stopped as soon as it has answered.
SCALE = '\n[scale]\nidle = "1ms"\n'
#: As many instances as are kept, to measure their memory.
INSTANCES = 10
KEPT = f"\n[scale]\nmin = {INSTANCES}\nmax = {INSTANCES}\n"
KEPT_SECONDS_MAX = 60
CYCLES_TO_BEGIN_WITH = 5
BARE_STARTS = 20
TICKS_PER_MS = os.sysconf("SC_CLK_TCK") / 1e3
#: Bit of a process that is a thread of the kernel (include/linux/sched.h).
PF_KTHREAD = 0x200000


class Group:
    """A control group that counts processor time, of version 1 or 2."""

    def __init__(self, name: str) -> None:
        own = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for _, controllers, path in (line.split(":", 2) for line in own):
            for mount in mounts:
                kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
                version1 = kind == "cgroup" and "cpuacct" in controllers.split(",")
                if (version1 and "cpuacct" in options) or (kind == "cgroup2" and not controllers):
                    home = Path(mount[4] + path)
                    if version1 or (home / "cpu.stat").exists():
                        self.version1, self.folder = version1, home / name
                        self.folder.mkdir()
                        return
        raise SystemExit("no control group counts processor time here")

    def command(self) -> tuple[str, ...]:
        """Enters the group and executes what follows."""
        return "sh", "-c", f'echo 0 > {self.folder}/cgroup.procs; exec "$@"', "sh"

    def ms(self) -> float:
        if self.version1:
            return int((self.folder / "cpuacct.usage").read_text()) / 1e6
        text = (self.folder / "cpu.stat").read_text()
        return int(re.search(r"usage_usec (\d+)", text)[1]) / 1e3

    def remove(self) -> None:
        for below in sorted(self.folder.rglob("*"), reverse=True):
            if below.is_dir():
                below.rmdir()
        self.folder.rmdir()


@dataclass(frozen=True)
class Sample:
    at: float
    all: float
    node: float
    zygote: float
    kernel: float

    def since(self, before: Sample, idle: dict[str, float]) -> dict[str, float]:
        """Milliseconds of each column since another sample, without what an idle node uses."""
        seconds = self.at - before.at
        names = ("all", "node", "zygote", "kernel")
        found = {
            name: getattr(self, name) - getattr(before, name) - idle.get(name, 0) * seconds
            for name in names
        }
        return {**found, "sandboxes": found["all"] - found["node"] - found["zygote"]}


@dataclass
class Build:
    name: str
    node: Node
    group: Group
    zygote: int
    #: Processor time of the idle node by column, in milliseconds per second.
    idle: dict[str, float] = field(default_factory=dict)
    #: By example and column, one value for each round.
    found: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    prewarmed: dict[str, str] = field(default_factory=dict)
    #: By example, mebibytes without and with instances.
    memory: dict[str, tuple[float, float]] = field(default_factory=dict)

    def sample(self) -> Sample:
        return Sample(
            time.monotonic(), self.group.ms(), ticks_ms(self.node.pid), run_ms(self.zygote),
            kernel_ms(),
        )  # fmt: skip

    def rest(self, seconds: float) -> None:
        """Measures what the node uses while nothing is called."""
        begin = self.sample()
        settle(seconds)
        now = self.sample()
        passed = now.at - begin.at
        self.idle = {name: used / passed for name, used in now.since(begin, {}).items()}

    def round(self, example: str, cycles: int, every: float) -> None:
        before, walls = self.sample(), []
        for number in range(cycles):
            settle(max(0.0, before.at + number * every - time.monotonic()))
            walls.append(call(self.node, example))
        settle(max(0.0, before.at + cycles * every - time.monotonic()))
        used = self.sample().since(before, self.idle)
        columns = self.found.setdefault(example, {})
        for name, ms in used.items():
            columns.setdefault(name, []).append(ms / cycles)
        columns.setdefault("wall", []).append(statistics.median(walls))
        columns.setdefault("bare", []).append(bare_ms())


def bare_ms() -> float:
    """The processor time of a Python that does nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(BARE_STARTS):
        subprocess.run([sys.executable, "-ISB", "-c", "pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used * 1e3 / BARE_STARTS


def ticks_ms(pid: int) -> float:
    """What a process has used, including threads that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_MS


def run_ms(pid: int) -> float:
    """What a process with one thread has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def kernel_ms() -> float:
    """What the threads of the kernel have used that exist now."""
    used = 0.0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                if int(fields[6]) & PF_KTHREAD:
                    used += run_ms(int(process.name))
    return used


def zygote_of(node: Node) -> int:
    """The child of the node that executes the same program."""
    program = Path(f"/proc/{node.pid}/exe").readlink()
    for task in Path(f"/proc/{node.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if Path(f"/proc/{child}/exe").readlink() == program:
                    return int(child)
    raise SystemExit("the node has no zygote")


def call(node: Node, name: str) -> float:
    """Milliseconds until the answer, on a fresh connection."""
    since = time.perf_counter()
    with connect(node.http) as sock:
        answer = get(sock, f"/{name}")
        body = answer.body()
    if (answer.status, body) != (200, b"mote"):
        raise SystemExit(f"{name} answered {answer.status}")
    return (time.perf_counter() - since) * 1e3


def deploy(node: Node, folder: Path, example: str, scale: str = SCALE) -> None:
    code = folder / example
    code.mkdir(parents=True, exist_ok=True)
    for file in (ROOT / "examples" / example).iterdir():
        (code / file.name).write_bytes(file.read_bytes())
    with (code / "mote.toml").open("a") as manifest:
        manifest.write(scale)
    node.mote("deploy", str(code))


def memory_mib(build: Build) -> float:
    """The memory of all processes that the node has started."""
    pids = {build.node.pid}
    found = 0.0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(process.name)
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            chain = [pid, parent]
            while chain[-1] > 1 and chain[-1] not in pids:
                text = Path(f"/proc/{chain[-1]}/stat").read_text()
                chain.append(int(text.rpartition(")")[2].split()[1]))
            if chain[-1] in pids and pid not in (build.node.pid, build.zygote):
                rollup = (process / "smaps_rollup").read_text()
                found += int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024
    return found


def ready(node: Node, name: str) -> int:
    functions = json.loads(node.mote("list", "-o", "json"))["functions"]
    return sum(len(one["instances"]) for one in functions if one["name"] == name)


def keep(build: Build, folder: Path, example: str) -> None:
    """Measures the memory of ten instances that have answered a call and are idle."""
    without = memory_mib(build)
    deploy(build.node, folder, example, KEPT)
    deadline = time.monotonic() + KEPT_SECONDS_MAX
    while ready(build.node, example) < INSTANCES:
        if time.monotonic() > deadline:
            raise SystemExit(f"{example} has not got {INSTANCES} instances")
        settle(0.5)
    for _ in range(INSTANCES):
        call(build.node, example)
    settle(2)
    build.memory[example] = without, memory_mib(build)


def starts(node: Node, name: str) -> tuple[int, int]:
    """How many instances have started, of the last that the log names, and how many of these in a
    prewarmed sandbox."""
    lines = [line for line in node.mote("logs", name).splitlines() if "ready after" in line]
    return len(lines), sum("in a prewarmed sandbox" in line for line in lines)


def measure(builds: list[Build], examples: list[str], options: argparse.Namespace) -> None:
    every = options.every / 1e3
    for build in builds:
        for example in examples:
            for _ in range(CYCLES_TO_BEGIN_WITH):
                call(build.node, example)
                settle(every)
    settle(options.settle)
    for build in builds:
        build.rest(options.rest)
    for number in range(options.rounds):
        for example in examples:
            for build in builds if number % 2 == 0 else reversed(builds):
                build.round(example, options.cycles, every)
    for build in builds:
        for example in examples:
            begun, prewarmed = starts(build.node, example)
            build.prewarmed[example] = f"{prewarmed} of {begun}"


def lines(builds: list[Build], examples: list[str]) -> Iterator[str]:
    width = max(len(build.name) for build in builds) + 1
    yield " " * (14 + width) + "".join(f"{name:>11}" for name in COLUMNS) + "  prewarmed"
    for example in examples:
        for build in builds:
            found = build.found[example]
            medians = {name: statistics.median(found[name]) for name in COLUMNS}
            missed = "MISSED" if medians["all"] > BARS_MS[example] else "OK"
            figures = "".join(f"{medians[name]:11.2f}" for name in COLUMNS)
            yield (
                f"{example:14}{build.name:{width}}{figures}  {build.prewarmed[example]}, "
                f"at most {BARS_MS[example]} ms: {missed}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-starts", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cycles", type=int, default=100, help="calls of each round")
    parser.add_argument("--every", type=float, default=300, help="milliseconds between two calls")
    parser.add_argument("--settle", type=float, default=5, help="seconds before the first round")
    parser.add_argument("--rest", type=float, default=20, help="seconds without calls, per build")
    parser.add_argument("--builds", help="NAME=FILE,NAME=FILE: measure these in alternation")
    parser.add_argument("--only", help="names of examples")
    parser.add_argument("--no-save", action="store_true", help="write no result file")
    options = parser.parse_args()
    examples = options.only.split(",") if options.only else list(BARS_MS)
    if unknown := set(examples) - set(BARS_MS):
        parser.error(f"no example named {', '.join(sorted(unknown))}")
    named = options.builds or f"this={binaries() / 'mote'}"
    files = dict(one.split("=", 1) for one in named.split(","))
    started = datetime.datetime.now(datetime.UTC)
    described = machine()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        builds = []
        for name, file in files.items():
            group = Group(f"mote-starts-{os.getpid()}-{len(builds)}")
            stack.callback(group.remove)
            node = stack.enter_context(Node(under=group.command(), binary=file))
            builds.append(Build(name, node, group, zygote_of(node)))
            for example in examples:
                deploy(node, folder / name, example)
        measure(builds, examples, options)
        for build in builds:
            for example in examples:
                keep(build, folder / f"{build.name}-kept", example)
    described["load_after"] = os.getloadavg()
    print("\n".join(lines(builds, examples)))
    for build in builds:
        for example, (without, kept) in build.memory.items():
            figures = f"{without:.1f} MiB without instances, {kept:.1f} with {INSTANCES}"
            if bar := INSTANCES_MIB_BAR.get(example):
                verdict = "OK" if kept - without <= bar else "MISSED"
                figures += f", at most {bar:g} more: {verdict}"
            print(f"{example:14}{build.name}: {figures}")
    if not options.no_save:
        path = HERE / "results" / started.strftime("starts-%Y-%m-%dT%H%M%SZ.json")
        record = {
            "machine": described, "rounds": options.rounds, "cycles": options.cycles,
            "every_ms": options.every,
            "builds": {build.name: {"ms": build.found, "prewarmed": build.prewarmed,
                                    "idle_ms_per_s": build.idle, "memory_mib": build.memory}
                       for build in builds},
        }  # fmt: skip
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    last = builds[-1]
    is_slow = any(statistics.median(last.found[one]["all"]) > BARS_MS[one] for one in examples)
    bars = INSTANCES_MIB_BAR.items()
    is_large = any(last.memory[one][1] - last.memory[one][0] > bar
                   for one, bar in bars if one in examples)
    if is_slow or is_large:
        raise SystemExit("a bar was missed")


if __name__ == "__main__":
    main()
