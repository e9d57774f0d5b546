"""What each part of the design brings: the same function with the part, and without it, in turns.

- Frames: a Node handler, which gets its calls as frames, and the same Node code as an HTTP server,
  which gets them over HTTP (the way of platforms whose proxy speaks HTTP to a container).
- Polling of the data path (`--polling`).
- Prewarmed interpreters (`--prewarm`): the first call of a function at zero.
- One queue for all instances: four instances that run one call at a time and share a queue, and
  four that each take calls into a queue of their own, chosen at random. One call in twenty takes
  20 ms, the others 1 ms.
- One sync for many accepted calls: the rate at which calls are accepted for later, and the rate of
  fdatasync on the same disk, which is what a sync for each call would allow.

Usage: ablation.py [--rounds N] [--seconds N] [--no-save]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "warm")]

from client import connect, get  # noqa: E402
from machine import machine  # noqa: E402
from node import ROOT, Node  # noqa: E402
from tree import cpu_ns, processes  # noqa: E402
from wrk import wrk  # noqa: E402

from isolation import NODE  # noqa: E402

HANDLER = "export default async () => 'hello';\n"
SERVER = """const server = require('http').createServer((_, answer) => answer.end('hello'));
server.listen(Number(process.env.PORT));
"""
#: Waits without working, and lets nothing else of the instance run meanwhile.
MIXED = """const cell = new Int32Array(new SharedArrayBuffer(4));
let count = 0;
export default async () => {
  count += 1;
  Atomics.wait(cell, 0, 0, count % 20 === 0 ? 20 : 1);
  return 'hello';
};
"""
HEAD = 'version = 1\nname = "{name}"\n'
ALWAYS = "[scale]\nmin = {count}\nmax = {count}\n"
ONE_QUEUE = ALWAYS.format(count=4) + "[limits]\nconcurrency = 1\n"
OWN_QUEUES = ALWAYS.format(count=4) + 'balance = "random"\n[limits]\nconcurrency = 64\n'
INSTANCES_S_MAX = 20


@dataclass
class Load:
    """Medians of what wrk saw, and the processor time of node and function."""

    requests_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def measured(node: Node, path: str, callers: int, seconds: int, *flags: str) -> Load:
    pids = processes(node.pid)
    before = cpu_ns(pids)
    found = wrk(f"http://127.0.0.1:{node.http}{path}", callers, seconds, *flags)
    if found.errors:
        raise SystemExit(f"{path}: {found.errors} errors")
    cpu_us = (cpu_ns(pids) - before) / 1e3 / found.requests
    return Load(found.per_second, found.p50_ms, found.p99_ms, cpu_us)


def median(loads: list[Load]) -> Load:
    values = {name: statistics.median(getattr(load, name) for load in loads)
              for name in Load.__dataclass_fields__}
    return Load(**values)


def put(node: Node, name: str, files: dict[str, str], more: str) -> None:
    folder = node.folder / name
    folder.mkdir()
    for file, text in files.items():
        (folder / file).write_text(text)
    (folder / "mote.toml").write_text(HEAD.format(name=name) + more)
    node.deploy(folder)
    with connect(node.http) as sock:
        get(sock, f"/{name}").body()


def compare(what: str, callers: int, sides: dict[str, tuple[Node, str]], rounds: int,
            seconds: int) -> dict:
    found: dict[str, list[Load]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (node, path) in sides.items():
            found[side].append(measured(node, path, callers, seconds))
    loads = {side: median(each) for side, each in found.items()}
    for side, load in loads.items():
        print(f"{what:22} {callers:3} callers  {side:22} {load.requests_s:8.0f}/s  p50 "
              f"{load.p50_ms:6.2f} ms  p99 {load.p99_ms:6.2f} ms  {load.cpu_us:6.1f} µs",
              flush=True)
    return {"part": what, "callers": callers,
            "sides": {side: load.__dict__ for side, load in loads.items()}}


def instances(node: Node, name: str) -> int:
    return len(json.loads(node.mote("describe", name, "-o", "json"))["instances"])


def until_instances(node: Node, name: str, wanted: int) -> None:
    end = time.monotonic() + INSTANCES_S_MAX
    while instances(node, name) != wanted:
        if time.monotonic() > end:
            raise SystemExit(f"{name} has {instances(node, name)} instances and not {wanted}")
        time.sleep(0.02)


def first_calls(nodes: dict[str, Node], rounds: int) -> dict:
    times: dict[str, list[float]] = {side: [] for side in nodes}
    for node in nodes.values():
        put(node, "zero", {"zero.mjs": HANDLER}, '[scale]\nidle = "1ms"\nmax = 1\n')
    for _ in range(rounds * 5):
        for side, node in nodes.items():
            until_instances(node, "zero", 0)
            time.sleep(0.25)  # a measurement's pause: the node prewarms the next interpreter
            began = time.perf_counter()
            with connect(node.http) as sock:
                get(sock, "/zero").body()
            times[side].append((time.perf_counter() - began) * 1e3)
    row = {side: {"p50_ms": statistics.median(each)} for side, each in times.items()}
    for side, value in row.items():
        print(f"{'prewarmed interpreters':22}   1 caller   {side:22} first call "
              f"{value['p50_ms']:6.2f} ms", flush=True)
    return {"part": "prewarmed interpreters", "callers": 1, "sides": row}


def syncs(folder: Path, seconds: int) -> float:
    """How often a second 4 KiB can be written and synced."""
    path = folder / "syncs"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    block, count, began = b"x" * 4096, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        os.write(file, block)
        os.fdatasync(file)
        count += 1
    rate = count / (time.perf_counter() - began)
    os.close(file)
    path.unlink()
    return rate


def accepted(node: Node, rounds: int, seconds: int) -> dict:
    put(node, "later", {"later.mjs": HANDLER}, ALWAYS.format(count=1))
    rates, loops = [], []
    for _ in range(rounds):
        loops.append(syncs(node.folder, seconds))
        later = measured(node, "/later", 64, seconds, "-H", "prefer: respond-async")
        rates.append(later.requests_s)
    row = {"one sync for many": {"requests_s": statistics.median(rates)},
           "a sync for each": {"requests_s": statistics.median(loops)}}
    for side, value in row.items():
        print(f"{'accepted for later':22}  64 callers  {side:22} {value['requests_s']:8.0f}/s",
              flush=True)
    return {"part": "accepted for later", "callers": 64, "sides": row}


def measure(rounds: int, seconds: int) -> list[dict]:
    rows = []
    with contextlib.ExitStack() as stack:
        usual = stack.enter_context(Node())
        put(usual, "hello", {"hello.mjs": HANDLER}, ALWAYS.format(count=1))
        server = f'runtime = "server"\ncommand = ["{NODE}", "server.cjs"]\n'
        put(usual, "server", {"server.cjs": SERVER}, server + ALWAYS.format(count=1))
        for callers in (1, 16, 64):
            sides = {"frames": (usual, "/hello"), "HTTP": (usual, "/server")}
            rows.append(compare("to the function", callers, sides, rounds, seconds))
        with Node("--polling", "false") as still:
            put(still, "hello", {"hello.mjs": HANDLER}, ALWAYS.format(count=1))
            for callers in (1, 4):
                sides = {"on": (usual, "/hello"), "off": (still, "/hello")}
                rows.append(compare("polling", callers, sides, rounds, seconds))
        with Node("--prewarm", "off") as bare:
            rows.append(first_calls({"on": usual, "off": bare}, rounds))
        put(usual, "shared", {"shared.mjs": MIXED}, ONE_QUEUE)
        put(usual, "own", {"own.mjs": MIXED}, OWN_QUEUES)
        for name in ("shared", "own"):
            until_instances(usual, name, 4)
        sides = {"one for all": (usual, "/shared"), "one for each": (usual, "/own")}
        for callers in (4, 12):
            rows.append(compare("queue", callers, sides, rounds, seconds))
        rows.append(accepted(usual, rounds, seconds))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-ablation", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    parser.add_argument("--seconds", type=int, default=2, help="of each load")
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    if not shutil.which("wrk"):
        raise SystemExit("needs wrk: scripts/setup.sh bench")
    described = machine()
    rows = measure(options.rounds, options.seconds)
    if not options.no_save:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
        path = ROOT / "bench" / "results" / f"ablation-{stamp}.json"
        record = {"machine": described, "rounds": options.rounds, "rows": rows}
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
