"""What the state of functions costs: operations a second and latencies of `ctx.kv`.

A function measures itself: it requests one operation after the other, or many at once, and returns
the time of each. For comparison, a program on the host does the same work with SQLite directly, on
the same disk, since a sandbox has no SQLite: the same journal mode, and one transaction per change.
The rows take turns within a round; the table has medians over the rounds.

With `--nats PROGRAM`, the same rows are measured again on a node that keeps its state in a NATS
server on this machine: once with a server that writes each change to its disk before it
acknowledges the change, and once with a server that does not.

Usage: kv.py [--rounds N] [--operations N] [--no-save] [--nats PROGRAM]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import Node, free_port  # noqa: E402

PYTHON = """
import asyncio, time

async def one(work, times):
    began = time.monotonic_ns()
    await work
    times.append(time.monotonic_ns() - began)

async def handle(event, ctx):
    args = event.args
    count, at_once, durable = int(args["count"]), int(args["at_once"]), args["durable"] == "1"
    kv, times = ctx.kv, []
    make = {
        "get": lambda i: kv.get("k%d" % (i % 16)),
        "put": lambda i: kv.put("k%d" % (i % 16), b"%0100d" % i, durable=durable),
        "increment": lambda i: kv.increment("n%d" % (i % 16), durable=durable),
    }[args["operation"]]
    for i in range(16):
        await kv.put("k%d" % i, b"x" * 100)
    async def worker(first):
        for i in range(first, count, at_once):
            await one(make(i), times)
    began = time.monotonic_ns()
    await asyncio.gather(*[worker(first) for first in range(at_once)])
    return {"seconds": (time.monotonic_ns() - began) / 1e9, "times_ns": times}
"""
MANIFEST = 'version = 1\nname = "kv"\n[limits]\ntimeout = "5m"\n[scale]\nmin = 1\nmax = 1\n'

Row = tuple[float, list[int]]


def in_function(node: Node, operation: str, at_once: int, durable: bool, count: int) -> Row:
    query = f"operation={operation}&at_once={at_once}&durable={int(durable)}&count={count}"
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http}/kv?{query}") as answer:
        found = json.load(answer)
    return found["seconds"], found["times_ns"]


def in_sqlite(folder: Path, operation: str, durable: bool, count: int) -> Row:
    """The same operations with SQLite, in a program that has the file to itself."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        file = sqlite3.connect(Path(own) / "direct.db", isolation_level=None)
        file.execute("PRAGMA journal_mode = WAL")
        file.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        file.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
        write = "INSERT INTO entries VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = ?2"
        add = "INSERT INTO entries VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET value = value + 1"
        for i in range(16):
            file.execute(write, (f"k{i}", b"x" * 100))
        times, began = [], time.monotonic_ns()
        for i in range(count):
            start = time.monotonic_ns()
            if operation == "get":
                file.execute("SELECT value FROM entries WHERE key = ?", (f"k{i % 16}",)).fetchone()
            elif operation == "put":
                # Another value each time: SQLite writes nothing where nothing has changed.
                file.execute(write, (f"k{i % 16}", b"%0100d" % i))
            else:
                file.execute(add, (f"n{i % 16}",)).fetchone()
            times.append(time.monotonic_ns() - start)
        seconds = (time.monotonic_ns() - began) / 1e9
        file.close()
        return seconds, times


@contextlib.contextmanager
def nats_server(program: str, sync: str) -> Iterator[str]:
    """Starts a NATS server with an empty store; returns its address."""
    with tempfile.TemporaryDirectory(prefix="mote-nats") as folder:
        port = free_port()
        config = Path(folder) / "server.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\n'
                          f'jetstream {{ store_dir: "{folder}/store"{sync} }}\n')
        quiet = subprocess.DEVNULL
        server = subprocess.Popen([program, "-c", str(config)], stdout=quiet, stderr=quiet)
        try:
            until = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.01)
            yield f"nats://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--operations", type=int, default=400)
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--nats", metavar="PROGRAM", help="a nats-server to compare with")
    options = parser.parse_args()
    started = datetime.datetime.now(datetime.UTC)
    described = machine()
    measured: dict[str, list[Row]] = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        code = Path(folder) / "kv"
        code.mkdir()
        (code / "app.py").write_text(PYTHON)
        (code / "mote.toml").write_text(MANIFEST)
        node = stack.enter_context(Node())
        nodes = [("", node)]
        if options.nats:
            for name, sync in (("NATS synced, ", ", sync_interval: always"), ("NATS, ", "")):
                address = stack.enter_context(nats_server(options.nats, sync))
                nodes.append((name, stack.enter_context(Node("--nats", address))))
        for _, one in nodes:
            one.deploy(code)
        rows: list[tuple[str, Callable[[], Row]]] = []
        count = options.operations

        def add(name: str, measure: Callable[[], Row]) -> None:
            rows.append((name, measure))

        kinds = (("increment", True), ("put", True), ("put", False), ("get", True))
        for operation, durable in kinds:
            word = "" if operation == "get" else ", durable" if durable else ", not durable"
            many = 1 if operation != "get" and durable else 5
            for at_once in (1, 16, 64):
                asked = (operation, at_once, durable, count * many * (1 if at_once == 1 else 4))
                for where, one in nodes:
                    add(f"{where}{operation}{word}, {at_once} at once",
                        lambda one=one, asked=asked: in_function(one, *asked))
            add(f"{operation}{word}, SQLite directly",
                lambda o=operation, d=durable, n=count * many: in_sqlite(node.folder, o, d, n))
        for _, measure in rows:
            measure()  # warm-up
        for _ in range(options.rounds):
            for name, measure in rows:
                measured.setdefault(name, []).append(measure())
    table: dict[str, dict[str, float]] = {}
    print(f"{'':46} {'per second':>11} {'median us':>10} {'p99 us':>10}")
    for name, runs in measured.items():
        rate = statistics.median(len(times) / seconds for seconds, times in runs)
        middle = statistics.median(statistics.median(times) for _, times in runs) / 1e3
        p99 = statistics.median(sorted(times)[len(times) * 99 // 100] for _, times in runs) / 1e3
        table[name] = {"per_second": rate, "median_us": middle, "p99_us": p99}
        print(f"{name:46} {rate:11,.0f} {middle:10,.1f} {p99:10,.1f}")
    if not options.no_save:
        path = HERE / "results" / started.strftime("kv-%Y-%m-%dT%H%M%SZ.json")
        found = {"machine": described, "rounds": options.rounds, "rows": table}
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()
