"""WebAssembly components beside `wasmtime serve` and Node's own HTTP server, in alternation.

The same component of tests/fixtures/wasm answers on a node of ours and in `wasmtime serve`, once
as it comes and once with its pooling allocator; Node's server gives the same answer. wrk calls
each in turn. Then first answers of a function that has scaled to zero, and the memory of a node
with many components. See bench/README.md.

Usage: wasm.py [--rounds N] [--seconds S] [--functions N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from client import connect, get  # noqa: E402
from compare import NATIVE_NODE  # noqa: E402
from machine import machine  # noqa: E402
from node import ROOT, Node, free_port  # noqa: E402
from outcome import Outcome, exit_status  # noqa: E402
from tree import cpu_ns, processes, pss_mib  # noqa: E402
from wrk import wrk  # noqa: E402

from cold import IDLE, Api, call, spread  # noqa: E402

WASMTIME_BAR = 1.5
NODE_BAR = 2.0
FIRST_MS_BAR = 3.0
MEMORY_MIB_BAR = 1024.0
COLD_ROUNDS = 50
UP_S_MAX = 20


def fixture() -> Path:
    target = ROOT / "target" / "fixtures"
    subprocess.run(
        [
            "cargo",
            "build",
            "--quiet",
            "--release",
            "--target",
            "wasm32-wasip2",
            "-p",
            "hello",
            "--target-dir",
            str(target),
        ],
        cwd=ROOT / "tests" / "fixtures" / "wasm",
        check=True,
    )
    return target / "wasm32-wasip2" / "release" / "hello.wasm"


class Server:
    """One contestant: a process that answers at an address."""

    def __init__(self, pid: int, port: int, path: str) -> None:
        self.pid, self.url, self.port, self.path = pid, f"http://127.0.0.1:{port}{path}", port, path
        self.rates: list[float] = []
        self.p99s: list[float] = []
        self.costs: list[float] = []

    def wait(self) -> None:
        end = time.monotonic() + UP_S_MAX
        while True:
            try:
                with connect(self.port) as sock:
                    answer = get(sock, self.path)
                    if answer.status == 200:
                        return
                    raise SystemExit(f"{self.url} answered {answer.status}")
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def load(self, connections: int, seconds: int) -> None:
        below = processes(self.pid)
        before = cpu_ns(below)
        found = wrk(self.url, connections, seconds)
        if found.errors:
            raise SystemExit(f"{self.url}: {found.errors} errors")
        self.rates.append(found.per_second)
        self.p99s.append(found.p99_ms)
        self.costs.append((cpu_ns(below) - before) / 1e3 / found.requests)

    def median(self) -> dict[str, float]:
        return {
            "requests_s": statistics.median(self.rates),
            "p99_ms": statistics.median(self.p99s),
            "processor_us": statistics.median(self.costs),
        }


def package(folder: Path, name: str, wasm: Path, more: str = "") -> Path:
    made = folder / name
    made.mkdir()
    shutil.copy(wasm, made / "hello.wasm")
    (made / "mote.toml").write_text(f'version = 1\nruntime = "wasm"\n{more}')
    return made


def throughput(folder: Path, wasm: Path, rounds: int, seconds: int) -> list[Outcome]:
    wasmtime = ROOT / ".cache" / "wasmtime" / "bin" / "wasmtime"
    script = folder / "server.mjs"
    script.write_text(NATIVE_NODE)
    started: list[subprocess.Popen] = []

    def start(*command: str) -> int:
        started.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        return started[-1].pid

    ports = [free_port() for _ in range(3)]
    serve = [str(wasmtime), "serve", "-S", "common"]
    outcomes = []
    with Node() as node:
        node.deploy(package(folder, "hello", wasm))
        try:
            servers = {
                "mote": Server(node.pid, node.http, "/hello"),
                "wasmtime serve": Server(
                    start(*serve, "--addr", f"127.0.0.1:{ports[0]}", str(wasm)), ports[0], "/"
                ),
                "wasmtime serve, pooling": Server(
                    start(
                        *serve,
                        "-O",
                        "pooling-allocator=y",
                        "--addr",
                        f"127.0.0.1:{ports[1]}",
                        str(wasm),
                    ),
                    ports[1],
                    "/",
                ),
                "Node": Server(start("node", str(script), str(ports[2])), ports[2], "/"),
            }
            for server in servers.values():
                server.wait()
            for connections in (1, 64):
                for server in servers.values():
                    server.rates, server.p99s, server.costs = [], [], []
                    server.load(connections, 1)
                    server.rates, server.p99s, server.costs = [], [], []
                for _ in range(rounds):
                    for server in servers.values():
                        server.load(connections, seconds)
                medians = {name: server.median() for name, server in servers.items()}
                for name, found in medians.items():
                    outcomes.append(
                        Outcome(
                            f"{name}, {connections}: requests",
                            found["requests_s"],
                            "1/s",
                            detail=found,
                        )
                    )
                    outcomes.append(Outcome(f"{name}, {connections}: p99", found["p99_ms"], "ms"))
                    outcomes.append(
                        Outcome(f"{name}, {connections}: processor", found["processor_us"], "us")
                    )
                for name, bar in (
                    ("wasmtime serve", WASMTIME_BAR),
                    ("Node", NODE_BAR),
                    ("wasmtime serve, pooling", None),
                ):
                    ratio = medians["mote"]["requests_s"] / medians[name]["requests_s"]
                    outcomes.append(
                        Outcome(
                            f"mote over {name}, {connections}",
                            ratio,
                            "",
                            bar if connections == 64 else None,
                            at_least=True,
                        )
                    )
        finally:
            for process in started:
                process.terminate()
                process.wait()
    return outcomes


def first_answers(folder: Path, wasm: Path) -> list[Outcome]:
    with Node() as node:
        api = Api(node.socket)
        node.deploy(package(folder, "cold", wasm, IDLE))
        times, second = [], []
        for _ in range(COLD_ROUNDS):
            api.wait("cold", [])
            first, warm = call(node, "cold")
            times.append(first)
            second.append(warm)
    return [
        Outcome(
            "first answer at zero",
            statistics.median(times),
            "ms",
            FIRST_MS_BAR,
            detail=spread(times),
        ),
        Outcome("second answer", statistics.median(second), "ms"),
    ]


def memory(folder: Path, wasm: Path, functions: int) -> list[Outcome]:
    with Node() as node:
        before = pss_mib(processes(node.pid))
        for at in range(functions):
            node.deploy(package(folder, f"c{at}", wasm, IDLE))
        for at in range(0, functions, max(functions // 50, 1)):
            call(node, f"c{at}")
        Api(node.socket).wait("c0", [])
        after = pss_mib(processes(node.pid))
        kept = (
            sum(
                file.stat().st_blocks * 512
                for file in (node.folder / "data").rglob("*")
                if file.is_file()
            )
            / 2**20
        )
    return [
        Outcome("node without functions", before, "MiB"),
        Outcome(f"node with {functions} components", after, "MiB", MEMORY_MIB_BAR),
        Outcome(f"disk of {functions} components", kept, "MiB"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-wasm", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server")
    parser.add_argument("--seconds", type=int, default=5, help="length of a turn")
    parser.add_argument("--functions", type=int, default=1000, help="components on one node")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mote-wasm"))
    started = datetime.datetime.now(datetime.UTC)
    try:
        described = machine()
        wasm = fixture()
        outcomes = throughput(folder, wasm, options.rounds, options.seconds)
        for outcome in outcomes:
            print(outcome.line(), flush=True)
        rest = first_answers(folder, wasm) + memory(folder, wasm, options.functions)
        for outcome in rest:
            print(outcome.line(), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    path = HERE / "results" / started.strftime("wasm-%Y-%m-%dT%H%M%SZ.json")
    record = {
        "machine": described,
        "rounds": options.rounds,
        "outcomes": [outcome.as_json() for outcome in outcomes + rest],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {path.relative_to(ROOT)}")
    return exit_status(outcomes + rest)


if __name__ == "__main__":
    sys.exit(main())
