"""What collecting metrics costs: one scrape of the node, and asking each instance instead.

- Functions: 10, 100 and 1,000 functions that were called; a scrape of the node returns all of them.
- Instances: 50 running HTTP servers. One scrape of the node, which says what each of them uses, and
  one request to each of them for metrics of its own (the arrangement of platforms whose autoscaler
  scrapes every instance), take turns.

Each row says how long it takes, the processor time of the node and of the instances, and the bytes
received. Usage: python3 bench/scrape.py [--rounds N] [--no-save]
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "warm")]

from client import connect, get  # noqa: E402
from machine import machine  # noqa: E402
from node import ROOT, Node  # noqa: E402
from tree import cpu_ns, processes  # noqa: E402

from isolation import NODE  # noqa: E402

FUNCTIONS = (10, 100, 1_000)
INSTANCES = 50
CODE = "def handle(event, ctx):\n    return 'hello'\n"
MANIFEST = 'version = 1\nname = "{name}"\nruntime = "python"\n[scale]\nidle = "1ms"\nmax = 1\n'
# A server with ten metrics, which it writes as text as any exporter does.
SERVER = """const names = ['requests', 'errors', 'bytes', 'queue', 'running', 'cpu', 'memory',
  'p50', 'p95', 'p99'];
require('http').createServer((_, answer) => {
  answer.end(names.map((name, at) => `# TYPE app_${name} gauge\\napp_${name} ${at}\\n`).join(''));
}).listen(Number(process.env.PORT), process.env.HOST || '127.0.0.1');
"""
SERVER_MANIFEST = """version = 1
name = "{name}"
runtime = "server"
command = ["{node}", "server.cjs"]
[scale]
min = 1
max = 1
[limits]
memory = "64MiB"
"""



def scrape(node: Node) -> str:
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(node.socket)
        admin.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return b"".join(iter(lambda: admin.recv(1 << 20), b"")).decode()


def measured(name: str, node: Node, rounds: int, work: Callable[[], int]) -> dict:
    """Medians of a piece of work, which returns the bytes it received."""
    times, used, received = [], [], 0
    pids = processes(node.pid)
    for _ in range(rounds):
        before, began = cpu_ns(pids), time.perf_counter()
        received = work()
        times.append((time.perf_counter() - began) * 1e3)
        used.append((cpu_ns(pids) - before) / 1e6)
    row = {"name": name, "ms": statistics.median(times), "cpu_ms": statistics.median(used),
           "bytes": received}
    print(f"{name:44} {row['ms']:8.2f} ms  {row['cpu_ms']:8.2f} ms of processor time  "
          f"{received:8} bytes", flush=True)
    return row


def of_functions(rounds: int) -> list[dict]:
    rows = []
    with Node() as node:
        made = 0
        for count in FUNCTIONS:
            folders = []
            while made < count:
                folder = node.folder / f"f{made}"
                folder.mkdir()
                (folder / "app.py").write_text(CODE)
                (folder / "mote.toml").write_text(MANIFEST.format(name=folder.name))
                folders.append(folder)
                made += 1
            node.deploy(*folders)
            for folder in folders:
                with connect(node.http) as sock:
                    get(sock, f"/{folder.name}").body()
                shutil.rmtree(folder)
            text = scrape(node)
            seen = sum(line.startswith("mote_invocations_total{") and 'outcome="ok"' in line
                       for line in text.splitlines())
            if seen != count:
                raise SystemExit(f"{seen} of {count} functions are in the metrics")
            row = measured(f"scrape of {count} functions", node, rounds, lambda: len(scrape(node)))
            rows.append({**row, "functions": count})
    return rows


def of_instances(rounds: int) -> list[dict]:
    with Node() as node:
        for number in range(INSTANCES):
            folder = node.folder / f"s{number}"
            folder.mkdir()
            (folder / "server.cjs").write_text(SERVER)
            (folder / "mote.toml").write_text(SERVER_MANIFEST.format(name=folder.name, node=NODE))
            node.deploy(folder)

        def each() -> int:
            received = 0
            for number in range(INSTANCES):
                with connect(node.http) as sock:
                    received += len(get(sock, f"/s{number}").body())
            return received

        each()
        rows = [
            measured(f"one scrape, {INSTANCES} instances", node, rounds, lambda: len(scrape(node))),
            measured(f"a request to each of {INSTANCES} instances", node, rounds, each),
        ]
    return [{**row, "instances": INSTANCES} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-scrape", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="repetitions; the median counts")
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    described = machine()
    rows = of_functions(options.rounds) + of_instances(options.rounds)
    one, each = rows[-2:]
    is_met = one["cpu_ms"] < each["cpu_ms"]
    print(f"one scrape takes {one['cpu_ms'] / each['cpu_ms']:.2f} of the processor time of asking "
          f"each: {'met' if is_met else 'MISSED'}")
    if not options.no_save:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
        path = ROOT / "bench" / "results" / f"scrape-{stamp}.json"
        path.write_text(json.dumps({"machine": described, "rounds": options.rounds, "rows": rows},
                                   indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
