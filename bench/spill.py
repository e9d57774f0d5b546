"""What an invocation costs when another cell runs it, and what cells cost a node otherwise.

Two nodes on this machine know each other as cells. The first node's only instance is busy, so each
call to the first node runs on the second. A call to the second node itself, a call to the first
node, and a bare TCP round trip over loopback take turns, one by one. Then two more nodes, with
cells and without, serve the same function from 8 connections in turns.

Usage: spill.py [--rounds N] [--calls N] [--seconds N] [--no-save]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import Node, free_port  # noqa: E402

#: Answers at once, or after `s` seconds. One invocation at a time.
CODE = """
import time

def handle(event, ctx):
    if "s" in event.args:
        time.sleep(float(event.args["s"]))
    return "hello"
"""
MANIFEST = 'version = 1\nname = "f"\n[limits]\ntimeout = "30m"\n[scale]\nmin = 1\nmax = 1\n'
ADDED_US_MAX = 200
RATIO_MIN = 0.98
CONNECTIONS = 8
BODY_BYTES = 1024


class Client:
    """One connection that makes one call after the other."""

    def __init__(self, port: int, body: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST /f HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        self.request = head.encode() + body

    def call(self) -> int:
        began = time.perf_counter_ns()
        self.socket.sendall(self.request)
        answer = self.socket.recv(65536)
        took = time.perf_counter_ns() - began
        if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"hello"):
            raise SystemExit(answer.decode(errors="replace"))
        return took


class Echo:
    """A bare TCP round trip with another process."""

    PROGRAM = (
        "import socket\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "peer, _ = listener.accept()\n"
        "peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
        "while data := peer.recv(65536):\n    peer.sendall(data)\n"
    )

    def __init__(self) -> None:
        asked = [sys.executable, "-c", self.PROGRAM]
        self.process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
        port = int(self.process.stdout.readline())
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self) -> int:
        began = time.perf_counter_ns()
        self.socket.sendall(b"x" * 200)
        self.socket.recv(65536)
        return time.perf_counter_ns() - began

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.process.wait()


def cells(stack: contextlib.ExitStack, key: Path) -> tuple[Node, Node]:
    """Two nodes that know each other."""
    ports = [free_port(), free_port()]
    flags = lambda own, other: (  # noqa: E731
        "--cell", f"127.0.0.1:{own}", "--cell-key", str(key), "--cells", f"127.0.0.1:{other}")
    pair = [Node(*flags(ports[at], ports[1 - at])) for at in (0, 1)]
    for node in pair:
        stack.callback(node.stop)
    return pair[0], pair[1]


def metric(node: Node, name: str) -> int:
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(node.socket)
        admin.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        text = b"".join(iter(lambda: admin.recv(65536), b"")).decode()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def until(what: str, ask: object) -> None:
    for _ in range(1_000):
        if ask():
            return
        time.sleep(0.02)
    raise SystemExit(f"waited in vain for {what}")


def latency(options: argparse.Namespace, key: Path, code: Path) -> dict[str, float]:
    rows: dict[str, list[float]] = {"round trip": [], "local": [], "forwarded": []}
    with contextlib.ExitStack() as stack:
        near, far = cells(stack, key)
        for node in (near, far):
            node.deploy(code)
            until("the connection", lambda node=node: metric(node, "mote_cells_connected") == 1)
        busy = threading.Thread(target=lambda: occupy(near.http), daemon=True)
        busy.start()
        until("the busy instance", lambda: "running 1" in described(near))
        body = b"x" * BODY_BYTES
        echo = stack.enter_context(Echo())
        ways = {"round trip": echo, "local": Client(far.http, body),
                "forwarded": Client(near.http, body)}
        for way in ways.values():
            for _ in range(options.calls // 4):
                way.call()
        for _ in range(options.rounds):
            times: dict[str, list[int]] = {name: [] for name in rows}
            for _ in range(options.calls):
                for name, way in ways.items():
                    times[name].append(way.call())
            for name, found in times.items():
                rows[name].append(statistics.median(found) / 1e3)
        out = metric(near, "mote_spilled_out_total")
        if out < options.calls * options.rounds:
            raise SystemExit(f"only {out} calls were forwarded")
    return {name: statistics.median(found) for name, found in rows.items()}


def occupy(port: int) -> None:
    with contextlib.suppress(OSError):
        peer = socket.create_connection(("127.0.0.1", port))
        peer.sendall(b"GET /f?s=1700 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        peer.recv(1)


def described(node: Node) -> str:
    found = json.loads(node.mote("describe", "f", "-o", "json"))
    return f"running {found['requests']['running']}"


def throughput(options: argparse.Namespace, key: Path, code: Path) -> dict[str, float]:
    rates: dict[str, list[float]] = {"cells off": [], "cells on": []}
    with contextlib.ExitStack() as stack:
        plain = Node()
        stack.callback(plain.stop)
        near, far = cells(stack, key)
        for node in (plain, near, far):
            node.deploy(code)
        nodes = {"cells off": plain, "cells on": near}

        def measure(node: Node) -> float:
            url = f"http://127.0.0.1:{node.http}/f"
            report = json.loads(node.mote("bench", url, "-c", str(CONNECTIONS), "--duration",
                                          f"{options.seconds}s", "-o", "json"))
            if report["failed"]:
                raise SystemExit(str(report["failures"]))
            return report["answered_per_s"]

        for node in nodes.values():
            measure(node)
        for turn in range(2 * options.rounds):
            order = list(nodes.items())
            for name, node in order if turn % 2 == 0 else reversed(order):
                rates[name].append(measure(node))
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    started = datetime.datetime.now(datetime.UTC)
    described_machine = machine()
    with tempfile.TemporaryDirectory() as folder:
        key, code = Path(folder) / "cell.key", Path(folder) / "f"
        key.write_bytes(os.urandom(32).hex().encode())
        code.mkdir()
        (code / "app.py").write_text(CODE)
        (code / "mote.toml").write_text(MANIFEST)
        times = latency(options, key, code)
        rates = throughput(options, key, code)
    added = times["forwarded"] - times["local"]
    over = added - times["round trip"]
    ratio = rates["cells on"] / rates["cells off"]
    for name, value in times.items():
        print(f"{name:28} {value:10,.1f} us")
    print(f"{'added by a hop':28} {added:10,.1f} us")
    print(f"{'above the round trip':28} {over:10,.1f} us  (at most {ADDED_US_MAX})")
    for name, value in rates.items():
        print(f"{name:28} {value:10,.0f} calls/s")
    print(f"{'on / off':28} {ratio:10.3f}     (at least {RATIO_MIN})")
    if not options.no_save:
        path = HERE / "results" / started.strftime("spill-%Y-%m-%dT%H%M%SZ.json")
        found = {"machine": described_machine, "rounds": options.rounds, "calls": options.calls,
                 "median_us": times, "added_us": added, "above_round_trip_us": over,
                 "calls_per_second": rates, "ratio": ratio}
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(path)
    if over > ADDED_US_MAX or ratio < RATIO_MIN:
        print("a limit is missed")
        sys.exit(1)


if __name__ == "__main__":
    main()
