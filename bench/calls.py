"""What a call from one function to another costs: inside the node, and through the HTTP front.

A function calls another one many times and measures each call: with `ctx.call`, and over HTTP to
`mote.internal`. The called function only answers. The cost of a further hop is the difference
between a call that goes on to a third function and one that does not. The rows take turns within a
round; the table has medians over the rounds.

Usage: calls.py [--rounds N] [--calls N] [--no-save]
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import Node  # noqa: E402

PYTHON = """
import asyncio, http.client, time

async def handle(event, ctx):
    args = event.args
    count, at_once, times = int(args["count"]), int(args["at_once"]), []
    connection = None

    async def call():
        await ctx.call(args["to"])

    async def callback():
        nonlocal connection
        if connection is None:
            connection = http.client.HTTPConnection("mote.internal", 80)
        connection.request("POST", "/" + args["to"])
        connection.getresponse().read()

    async def journalled():
        nonlocal connection
        if connection is None:
            connection = http.client.HTTPConnection("mote.internal", 80)
        connection.request("POST", "/" + args["to"], headers={"prefer": "respond-async, wait=60"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

    async def five():
        for _ in range(5):
            await ctx.call(args["to"])

    async def fresh():
        one = http.client.HTTPConnection("mote.internal", 80)
        one.request("POST", "/" + args["to"])
        one.getresponse().read()
        one.close()

    ways = {"call": call, "callback": callback, "fresh": fresh, "journalled": journalled,
            "five": five}
    work = ways[args["way"]]

    async def worker(first):
        for _ in range(first, count, at_once):
            began = time.monotonic_ns()
            await work()
            times.append(time.monotonic_ns() - began)

    began = time.monotonic_ns()
    await asyncio.gather(*[worker(first) for first in range(at_once)])
    return {"seconds": (time.monotonic_ns() - began) / 1e9, "times_ns": times}
"""
NODE = """
import http from 'node:http';
const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
const callback = (to) => new Promise((resolve, reject) => {
  const asked = { host: 'mote.internal', method: 'POST', path: `/${to}`, agent };
  const request = http.request(asked, (answer) => {
    answer.on('data', () => {}).on('end', resolve).on('error', reject);
  });
  request.on('error', reject).end();
});
export async function handle(event, ctx) {
  const { to, way, count, at_once: atOnce } = event.args;
  const times = [];
  const work = way === 'call' ? () => ctx.call(to) : () => callback(to);
  const worker = async (first) => {
    for (let i = first; i < count; i += Number(atOnce)) {
      const began = process.hrtime.bigint();
      await work();
      times.push(Number(process.hrtime.bigint() - began));
    }
  };
  const began = process.hrtime.bigint();
  await Promise.all(Array.from({ length: Number(atOnce) }, (_, first) => worker(first)));
  return { seconds: Number(process.hrtime.bigint() - began) / 1e9, times_ns: times };
}
"""
HELLO = 'async def handle(event, ctx):\n    return "hello"\n'
#: Calls the next one of a chain, and answers with its answer.
RELAY = """
async def handle(event, ctx):
    reply = await ctx.call("%s")
    return reply.body
"""
#: A chain of five steps, each of which calls the function that only answers.
CHAIN = """
document: { dsl: '1.0.3', namespace: bench, name: steps, version: '1.0.0' }
do:
  - one: { call: hello }
  - two: { call: hello }
  - three: { call: hello }
  - four: { call: hello }
  - five: { call: hello }
"""
KEPT = '[limits]\ntimeout = "5m"\n[scale]\nmin = 1\nmax = 1\n'
ALLOW = '[allow]\nfunctions = ["*"]\nnet = ["mote.internal:80"]\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    started = datetime.datetime.now(datetime.UTC)
    described = machine()
    measured: dict[str, list[tuple[float, list[int]]]] = {}
    functions = {
        "python": ("app.py", PYTHON), "node": ("index.mjs", NODE), "hello": ("app.py", HELLO),
        "relay": ("app.py", RELAY % "hello"), "relay2": ("app.py", RELAY % "relay"),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Node() as node:
        for name, (file, text) in functions.items():
            code = Path(folder) / name
            code.mkdir()
            (code / file).write_text(text)
            (code / "mote.toml").write_text(f'version = 1\nname = "{name}"\n{KEPT}{ALLOW}')
            node.deploy(code)

        code = Path(folder) / "steps"
        code.mkdir()
        (code / "steps.yaml").write_text(CHAIN)
        (code / "mote.toml").write_text(f'version = 1\nname = "steps"\nruntime = "chain"\n{KEPT}')
        node.deploy(code)

        def measure(language: str, way: str, to: str, at_once: int) -> tuple[float, list[int]]:
            query = f"way={way}&to={to}&at_once={at_once}&count={options.calls}"
            url = f"http://127.0.0.1:{node.http}/{language}?{query}"
            with urllib.request.urlopen(url) as answer:
                found = json.load(answer)
            return found["seconds"], found["times_ns"]

        rows = {
            "python, ctx.call": ("python", "call", "hello", 1),
            "python, HTTP, connection kept": ("python", "callback", "hello", 1),
            "python, HTTP, a connection per call": ("python", "fresh", "hello", 1),
            "python, ctx.call of a chain of 2": ("python", "call", "relay", 1),
            "python, ctx.call of a chain of 3": ("python", "call", "relay2", 1),
            "python, ctx.call, 16 at once": ("python", "call", "hello", 16),
            "python, five calls by ctx.call": ("python", "five", "hello", 1),
            "chain of five steps, not journalled": ("python", "callback", "steps", 1),
            "chain of five steps, journalled": ("python", "journalled", "steps", 1),
            "node, ctx.call": ("node", "call", "hello", 1),
            "node, HTTP, connection kept": ("node", "callback", "hello", 1),
            "node, ctx.call, 16 at once": ("node", "call", "hello", 16),
            "node, HTTP, 16 connections": ("node", "callback", "hello", 16),
        }
        for row in rows.values():
            measure(*row)  # warm-up
        for _ in range(options.rounds):
            for name, row in rows.items():
                measured.setdefault(name, []).append(measure(*row))
    table: dict[str, dict[str, float]] = {}
    print(f"{'':38} {'per second':>11} {'median us':>10} {'p99 us':>10}")
    for name, runs in measured.items():
        rate = statistics.median(len(times) / seconds for seconds, times in runs)
        middle = statistics.median(statistics.median(times) for _, times in runs) / 1e3
        p99 = statistics.median(sorted(times)[len(times) * 99 // 100] for _, times in runs) / 1e3
        table[name] = {"per_second": rate, "median_us": middle, "p99_us": p99}
        print(f"{name:38} {rate:11,.0f} {middle:10,.1f} {p99:10,.1f}")
    chain = [table[f"python, ctx.call of a chain of {n}"]["median_us"] for n in (2, 3)]
    five = table["python, five calls by ctx.call"]["median_us"]
    hop = chain[1] - chain[0]
    ratios = {
        "a hop more, us": hop,
        "chain of five steps, not journalled, by five calls":
            table["chain of five steps, not journalled"]["median_us"] / five,
        "chain of five steps, journalled, by five calls":
            table["chain of five steps, journalled"]["median_us"] / five,
        "python, rate by HTTP on a kept connection": table["python, ctx.call"]["per_second"]
        / table["python, HTTP, connection kept"]["per_second"],
        "python, rate by HTTP": table["python, ctx.call"]["per_second"]
        / table["python, HTTP, a connection per call"]["per_second"],
        "node, rate by HTTP on a kept connection": table["node, ctx.call"]["per_second"]
        / table["node, HTTP, connection kept"]["per_second"],
        "node, rate by HTTP, 16 at once": table["node, ctx.call, 16 at once"]["per_second"]
        / table["node, HTTP, 16 connections"]["per_second"],
    }
    for name, value in ratios.items():
        print(f"{name:50} {value:8.2f}")
    if not options.no_save:
        path = HERE / "results" / started.strftime("calls-%Y-%m-%dT%H%M%SZ.json")
        found = {"machine": described, "rounds": options.rounds, "rows": table, "ratios": ratios}
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()
