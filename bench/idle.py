"""What a node does while nothing happens: processor time, wake-ups and memory of all its processes.

Each row is a node of its own. All of them are started first, with their functions deployed, called
once and scaled to zero, and after a pause they are measured over the same periods, so that other
load of the machine affects all rows alike. A node that does little does not disturb the others.

The figures are sums over the node, its helper, the interpreters that are kept prewarmed, and the
instances. Processor time is the scheduler's own (nanoseconds, /proc/PID/task/TID/schedstat), as a
share of one core. A wake-up is a context switch: a thread that sleeps is switched away from once
for each time it was woken. An involuntary one means that another program took the core while the
thread ran; these count too and are also printed alone, as is how busy all cores of the machine were
(`busy %`), because both make an idle node look worse. `ended` is the number of threads that ended
within a period, because their last figures are lost. Memory is the resident set (VmRSS) of the
node's own process, and the sum over all processes, in which a page that several of them share
counts several times.

The bars are 0.1 % of a core and 2 wake-ups a second, each for the median over the rounds. If a bar
is missed, the exit status is 1. Below each row are the threads that woke, with
their wake-ups a second; `strace -f -tt -p PID` shows what a thread waits for.

Usage: idle.py [--rounds N] [--seconds N] [--settle N] [--functions N] [--only NAME,NAME]
               [--no-save]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import ROOT, Node, free_port, settle  # noqa: E402

CPU_PERCENT_BAR = 0.1
WAKE_UPS_BAR = 2.0
#: How long functions may take until none of their instances is left.
ZERO_SECONDS_MAX = 60
#: Threads that are printed below a row.
THREADS_PRINTED = 4
#: Of these the functions are made in turns.
EXAMPLES = ("hello-python", "hello-node", "hello-python", "hello-node", "hello-shell")
#: Flags of the fronts that need no other program.
FRONTS = ("openfaas", "nuclio", "tinyfaas", "tinyfaas-http", "tinyfaas-coap", "tinyfaas-grpc")


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    #: Whether the node has the functions at zero.
    functions: bool = False
    #: Example of a function that keeps an instance.
    kept: str | None = None
    fronts: tuple[str, ...] = ()


ROWS = (
    Row("bare", "no functions"),
    Row("zero", "functions at zero", functions=True),
    Row("python", "the same, and a Python instance", functions=True, kept="hello-python"),
    Row("node", "the same, and a Node instance", functions=True, kept="hello-node"),
    Row("fronts", "functions at zero, with fronts", functions=True, fronts=FRONTS),
    Row("openwhisk", "the same, and OpenWhisk's", functions=True, fronts=(*FRONTS, "openwhisk")),
)

#: Of a thread: the program that it belongs to, its id and its name.
Thread = tuple[str, int, str]


@dataclass(frozen=True)
class Sample:
    at: float
    #: Of the whole machine: clock ticks in all, and those in which no program ran.
    ticks: int
    ticks_idle: int
    #: Of each thread: processor time in nanoseconds, and context switches, voluntary and not.
    threads: dict[Thread, tuple[int, int, int]]


@dataclass
class Measured:
    row: Row
    cpu_percent: list[float] = field(default_factory=list)
    wake_ups: list[float] = field(default_factory=list)
    involuntary: list[float] = field(default_factory=list)
    busy_percent: list[float] = field(default_factory=list)
    ended: int = 0
    #: Wake-ups a second by program and name of the thread, over all rounds.
    by_thread: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    def add(self, before: Sample, after: Sample, rounds: int) -> None:
        seconds = after.at - before.at
        work = voluntary = involuntary = 0
        for thread, now in after.threads.items():
            then = before.threads.get(thread, (0, 0, 0))
            ns, slept, preempted = (new - old for new, old in zip(now, then, strict=True))
            work += ns
            voluntary += slept
            involuntary += preempted
            program, _, name = thread
            key, rate = f"{program}, thread {name}", (slept + preempted) / seconds / rounds
            self.by_thread[key] = self.by_thread.get(key, 0) + rate
        self.ended += len(before.threads.keys() - after.threads.keys())
        self.cpu_percent.append(work / seconds / 1e7)
        self.wake_ups.append((voluntary + involuntary) / seconds)
        self.involuntary.append(involuntary / seconds)
        ticks = after.ticks - before.ticks
        self.busy_percent.append(100 * (1 - (after.ticks_idle - before.ticks_idle) / ticks))

    def missed(self) -> list[str]:
        """The bars that were missed."""
        cpu, wakes = statistics.median(self.cpu_percent), statistics.median(self.wake_ups)
        bars = (("cpu", cpu, CPU_PERCENT_BAR), ("wake-ups", wakes, WAKE_UPS_BAR))
        return [f"{what} MISSED" for what, value, bar in bars if value >= bar]

    def lines(self) -> Iterator[str]:
        cpu, wakes = statistics.median(self.cpu_percent), statistics.median(self.wake_ups)
        involuntary = statistics.median(self.involuntary)
        busy = statistics.median(self.busy_percent)
        missed = self.missed()
        yield (
            f"{self.row.title:34} {cpu:7.4f} {wakes:10.2f} {involuntary:6.2f} "
            f"{busy:6.1f} {self.memory['node_rss_mib']:10.1f} "
            f"{self.memory['all_rss_mib']:9.1f} {self.memory['processes']:6.0f} {self.ended:6}  "
            f"{', '.join(missed) or 'OK'}"
        )
        for thread, rate in self.busiest()[:THREADS_PRINTED]:
            yield f"    {rate:8.2f}  {thread}"

    def busiest(self) -> list[tuple[str, float]]:
        woke = [(thread, rate) for thread, rate in self.by_thread.items() if rate]
        return sorted(woke, key=lambda one: one[1], reverse=True)

    def as_json(self) -> dict[str, Any]:
        rates = {thread: round(rate, 3) for thread, rate in self.busiest()}
        return {
            "name": self.row.name, "title": self.row.title, "cpu_percent": self.cpu_percent,
            "wake_ups_per_second": self.wake_ups, "of_these_involuntary": self.involuntary,
            "machine_busy_percent": self.busy_percent, "threads_ended": self.ended,
            "wake_ups_by_thread": rates, **self.memory,
        }  # fmt: skip


def read(path: Path) -> str:
    """The text of a file in /proc; nothing if its process has ended meanwhile."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def numbers(path: Path, *keys: str) -> list[int]:
    """The first numbers of these lines of a file such as /proc/PID/status."""
    found = dict(line.split(":", 1) for line in read(path).splitlines() if ":" in line)
    return [int(found[key].split()[0]) if key in found else 0 for key in keys]


def tree(pid: int) -> Iterator[Path]:
    """The folders in /proc of a process and all its descendants."""
    yield Path(f"/proc/{pid}")
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in read(task / "children").split():
            with contextlib.suppress(FileNotFoundError):
                yield from tree(int(child))


def sample(pid: int) -> Sample:
    threads: dict[Thread, tuple[int, int, int]] = {}
    at = time.monotonic()
    ticks = [int(word) for word in read(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]]
    for process in tree(pid):
        program = "node" if process.name == str(pid) else f"child {read(process / 'comm').strip()}"
        for task in (process / "task").iterdir():
            if not (times := read(task / "schedstat").split()):
                continue
            keys = "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"
            voluntary, involuntary = numbers(task / "status", *keys)
            name = read(task / "comm").strip()
            thread = program, int(task.name), name
            threads[thread] = (int(times[0]), voluntary, involuntary)
    return Sample(at, sum(ticks), ticks[3] + ticks[4], threads)


def memory(pid: int) -> dict[str, float]:
    processes = list(tree(pid))
    resident = [numbers(process / "status", "VmRSS", "RssAnon") for process in processes]
    return {
        "node_rss_mib": round(resident[0][0] / 1024, 2),
        "all_rss_mib": round(sum(rss for rss, _ in resident) / 1024, 2),
        "all_anon_mib": round(sum(anon for _, anon in resident) / 1024, 2),
        "processes": len(processes),
    }


def deploy(node: Node, folder: Path, example: str, name: str, scale: str) -> None:
    source = ROOT / "examples" / example
    code = folder / name
    code.mkdir()
    for file in source.iterdir():
        (code / file.name).write_bytes(file.read_bytes())
        (code / file.name).chmod(file.stat().st_mode)
    with (code / "mote.toml").open("a") as manifest:
        manifest.write(f"\n[scale]\n{scale}\n")
    node.mote("deploy", str(code), "--name", name)
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http}/{name}") as answer:
        if answer.read() != b"mote":
            raise SystemExit(f"{name} answered something else")


def wait_until_zero(node: Node, kept: int) -> None:
    """Waits until only those instances are left that are kept permanently."""
    end = time.monotonic() + ZERO_SECONDS_MAX
    while time.monotonic() < end:
        functions = json.loads(node.mote("list", "-o", "json"))["functions"]
        if sum(len(function["instances"]) for function in functions) == kept:
            return
        settle(0.5)
    raise SystemExit("instances did not stop")


def flags(row: Row) -> Iterator[str]:
    for front in row.fronts:
        kind = socket.SOCK_DGRAM if front.endswith("coap") else socket.SOCK_STREAM
        yield from (f"--{front}", f"127.0.0.1:{free_port(kind)}")


def prepare(node: Node, row: Row, functions: int, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    if row.functions:
        for number in range(functions):
            example = EXAMPLES[number % len(EXAMPLES)]
            deploy(node, folder, example, f"idle-{number}", 'idle = "1s"')
    if row.kept:
        deploy(node, folder, row.kept, "kept", "min = 1\nmax = 1")
    wait_until_zero(node, 1 if row.kept else 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-idle", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="of each round")
    parser.add_argument("--settle", type=float, default=30, help="seconds before the first round")
    parser.add_argument("--functions", type=int, default=100)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of rows")
    parser.add_argument("--no-save", action="store_true", help="write no result file")
    options = parser.parse_args()
    unknown = set(options.only or ()) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no row named {', '.join(sorted(unknown))}")
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    started = datetime.datetime.now(datetime.UTC)
    described, measured = machine(), [Measured(row) for row in rows]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        nodes = []
        for row in rows:
            node = stack.enter_context(Node(*flags(row)))
            nodes.append(node)
            prepare(node, row, options.functions, folder / row.name)
            print(f"ready: {row.title} (process {node.pid})", flush=True)
        settle(options.settle)
        for _ in range(options.rounds):
            before = [sample(node.pid) for node in nodes]
            settle(options.seconds)
            for one, node, begin in zip(measured, nodes, before, strict=True):
                one.add(begin, sample(node.pid), options.rounds)
        for one, node in zip(measured, nodes, strict=True):
            one.memory = memory(node.pid)
    described["load_after"] = os.getloadavg()
    columns = (("cpu %", 7), ("wake-ups/s", 10), ("invol.", 6), ("busy %", 6), ("node MiB", 10),
               ("all MiB", 9), ("procs", 6), ("ended", 6))  # fmt: skip
    print(" " * 34, *(f"{name:>{width}}" for name, width in columns))
    for one in measured:
        print("\n".join(one.lines()))
    if not options.no_save:
        path = HERE / "results" / started.strftime("idle-%Y-%m-%dT%H%M%SZ.json")
        record = {
            "machine": described, "rounds": options.rounds, "seconds": options.seconds,
            "settle": options.settle, "functions": options.functions,
            "rows": [one.as_json() for one in measured],
        }  # fmt: skip
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    if any(one.missed() for one in measured):
        raise SystemExit("a bar was missed")


if __name__ == "__main__":
    main()
