"""Throughput of `hello` under each platform's contract divided by that under our own, in turns.

For each language one function per contract, as that platform's users write it, and for each a copy
of one of our own, so that both have answered as many calls when their compilers are at work; each
with one instance that is kept. `mote bench --baseline` asks the two in turns of 50 ms, A B B A, and
each pair of turns is one ratio. Our own function takes part like a contract: how far it is from 1 is
what the method cannot tell. The bar stands to the median
of the ratios of several nodes, since a process keeps its luck with addresses and hash seeds for
life; the 95 % interval (bootstrap) is printed beside it, each node's own median is in the file.
Knative's Python functions are ASGI applications and stand beside one of ours. Contracts that start
a program per call are left out: they measure fork and exec; `openfaas, classic` stands for such a
program, has no bar.

Usage: contracts.py [--nodes N] [--seconds N] [--connections N,N] [--languages python,node,go]
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import ROOT, Node  # noqa: E402
from outcome import Outcome, exit_status  # noqa: E402

OF_NATIVE_BAR = 0.9
TURN = "50ms"
WARM_UP = "4s"  # of functions that are called for the first time
AGAIN = "200ms"
KEPT = '[limits]\nmemory = "128MiB"\n[scale]\nmin = 1\nmax = 1\n'
NATIVE = "mote"
CONTROL = "mote, again"
ASGI = "mote, ASGI"
#: Contracts that are of another shape than `handle` stand beside ours of that shape.
BESIDE = {("python", "knative"): ASGI}
OURS = (NATIVE, CONTROL, ASGI)
NO_BAR = (CONTROL, "openfaas, classic")
RESAMPLES = 2000

#: Language to contract to (file, text, what mote.toml says).
FUNCTIONS: dict[str, dict[str, tuple[str, str, str]]] = {
    "python": {
        NATIVE: ("hello.py", 'def handle(event, ctx):\n    return "hello"\n', ""),
        ASGI: (
            "app.py",
            "async def app(scope, receive, send):\n"
            '    await send({"type": "http.response.start", "status": 200,\n'
            '                "headers": [[b"content-type", b"text/plain"]]})\n'
            '    await send({"type": "http.response.body", "body": b"hello"})\n',
            'entry = "app:app"\n',
        ),
        "tinyfaas": ("fn.py", 'def fn(input, headers):\n    return "hello"\n', ""),
        "openfaas": ("handler.py", 'def handle(event, context):\n    return {"statusCode": 200, "body": "hello"}\n', ""),
        "openfaas, classic": ("handler.py", 'def handle(req):\n    return "hello"\n', 'template = "python3"\n'),
        "nuclio": ("main.py", 'def handler(context, event):\n    return "hello"\n', ""),
        "kubeless": ("work.py", 'def handler(event, context):\n    return "hello"\n', 'entry = "work:handler"\n'),
        "openwhisk": ("__main__.py", 'def main(args):\n    return {"body": "hello"}\n', ""),
        "fission": ("main.py", 'def main():\n    return "hello"\n', ""),
        "knative": (
            "func.py",
            "class Function:\n    async def handle(self, scope, receive, send):\n"
            '        await send({"type": "http.response.start", "status": 200,\n'
            '                    "headers": [[b"content-type", b"text/plain"]]})\n'
            '        await send({"type": "http.response.body", "body": b"hello"})\n\n\n'
            "def new():\n    return Function()\n",
            "",
        ),
    },
    "node": {
        NATIVE: ("hello.mjs", 'export function handle(event, ctx) { return "hello"; }\n', 'entry = "hello.mjs:handle"\n'),
        "tinyfaas": ("index.js", 'module.exports = (req, res) => { res.send("hello"); };\n', ""),
        "openfaas": ("handler.js", 'module.exports = async (event, context) => context.status(200).succeed("hello");\n', ""),
        "nuclio": ("handler.js", 'exports.handler = (context, event) => { context.callback("hello"); };\n', 'entry = "handler.js:handler"\n'),
        "kubeless": ("handler.js", 'module.exports = { hello: (event, context) => "hello" };\n', 'entry = "handler.js:hello"\n'),
        "openwhisk": ("index.js", 'function main(params) { return { body: "hello" }; }\n', ""),
        "fission": ("index.js", 'module.exports = async (context) => ({ status: 200, body: "hello" });\n', ""),
        "knative": ("index.js", 'module.exports = { handle: async (context, body) => "hello" };\n', ""),
    },
    "go": {
        NATIVE: (
            "hello.go",
            'package hello\n\nimport (\n\t"io"\n\t"net/http"\n)\n\n'
            'func Handle(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }\n',
            "",
        ),
        "tinyfaas": (
            "fn.go",
            "package main\n\nfunc fn(data string, headers map[string]string) (string, error) {\n"
            '\treturn "hello", nil\n}\n',
            "",
        ),
        "openfaas": (
            "handler.go",
            'package function\n\nimport "net/http"\n\n'
            'func Handle(w http.ResponseWriter, r *http.Request) { w.Write([]byte("hello")) }\n',
            "",
        ),
        "openwhisk": (
            "main.go",
            "package main\n\nfunc Main(obj map[string]interface{}) map[string]interface{} {\n"
            '\treturn map[string]interface{}{"body": "hello"}\n}\n',
            "",
        ),
        "fission": (
            "main.go",
            'package main\n\nimport "net/http"\n\n'
            'func Handler(w http.ResponseWriter, r *http.Request) { w.Write([]byte("hello")) }\n',
            "",
        ),
        "knative": (
            "function.go",
            'package function\n\nimport "net/http"\n\ntype T struct{}\n\nfunc New() *T { return &T{} }\n\n'
            'func (t *T) Handle(w http.ResponseWriter, r *http.Request) { w.Write([]byte("hello")) }\n',
            "",
        ),
    },
}

for functions in FUNCTIONS.values():
    functions[CONTROL] = functions[NATIVE]


def contracts_of(language: str) -> list[str]:
    return [contract for contract in FUNCTIONS[language] if contract not in (NATIVE, ASGI)]


def name_of(language: str, contract: str) -> str:
    return f"{language}-{re.sub('[^a-z]+', '-', contract.lower())}"


def deploy(node: Node, folder: Path, language: str, contract: str, name: str = "") -> None:
    name = name or name_of(language, contract)
    file, text, more = FUNCTIONS[language][contract]
    code = folder / name
    code.mkdir()
    (code / file).write_text(text)
    compat = "" if contract in OURS else f'compat = "{contract.split(",")[0]}"\n'
    manifest = f'version = 1\nname = "{name}"\nruntime = "{language}"\n{compat}{more}{KEPT}'
    (code / "mote.toml").write_text(manifest)
    node.deploy(code)


def copy_of_ours(language: str, contract: str) -> str:
    return f"{name_of(language, contract)}-ours"


def deploy_both(node: Node, folder: Path, language: str, contract: str) -> None:
    """A contract's function, and the copy of our function that it is compared with."""
    deploy(node, folder, language, contract)
    ours = BESIDE.get((language, contract), NATIVE)
    deploy(node, folder, language, ours, copy_of_ours(language, contract))


def url_of(node: Node, name: str) -> str:
    return f"http://127.0.0.1:{node.http}/{name}"


def check(node: Node, language: str, contract: str) -> None:
    with urllib.request.urlopen(url_of(node, name_of(language, contract))) as answer:
        body = answer.read()
    if body.strip() != b"hello":
        raise SystemExit(f"{language}, {contract}: answered {body[:100]!r}")


def beside(node: Node, language: str, contract: str, connections: int, warm_up: str, seconds: float) -> dict[str, Any]:
    """Calls a contract's function and ours in turns; every answer must be good."""
    contracts, ours = name_of(language, contract), copy_of_ours(language, contract)
    result: dict[str, Any] = json.loads(node.mote(
        "bench", url_of(node, contracts), "--baseline", url_of(node, ours), "-c", str(connections),
        "--turn", TURN, "--warmup", warm_up, "--duration", f"{seconds * 1000:.0f}ms", "-o", "json",
    ))
    if any(side["failed"] for side in result["sides"]):
        raise SystemExit(f"{language}, {contract}: wrong answers: {result['sides']}")
    return result


class Measured:
    """Ratios and rates of one language, by contract and number of connections; a list per node."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.ratios: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
        self.rates: dict[tuple[str, int], list[float]] = defaultdict(list)

    def node(self, node: Node, connections: list[int], seconds: float, random: Random) -> None:
        contracts = contracts_of(self.language)
        for contract in contracts:
            check(node, self.language, contract)
            beside(node, self.language, contract, connections[0], WARM_UP, 0.6)
        for count in connections:
            random.shuffle(contracts)
            for contract in contracts:
                result = beside(node, self.language, contract, count, AGAIN, seconds)
                ours = BESIDE.get((self.language, contract), NATIVE)
                self.ratios[contract, count].append(result["ratios"])
                for name, side in zip((contract, ours), result["sides"], strict=True):
                    self.rates[name, count].append(side["answered_per_s"])

    def outcomes(self) -> Iterator[Outcome]:
        for (function, connections), rates in sorted(self.rates.items(), key=lambda row: row[0][1]):
            name = f"{self.language}: {function}, {connections} conn."
            by_node = self.ratios.get((function, connections))
            if not by_node:
                yield Outcome(name, statistics.median(rates), "1/s", detail={"rates": rates})
                continue
            ratios = [ratio for ratios in by_node for ratio in ratios]
            detail = {
                "interval": interval_of_median(ratios), "pairs": len(ratios),
                "by_node": [statistics.median(ratios) for ratios in by_node], "rates": rates,
            }
            yield Outcome(name, statistics.median(ratios), "", None if function in NO_BAR else OF_NATIVE_BAR, True, detail)


def interval_of_median(values: list[float]) -> list[float]:
    """The 95 % percentile interval of the bootstrap."""
    random = Random(1)
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return [medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975)]]


def measure(language: str, options: argparse.Namespace) -> list[Outcome]:
    measured, random = Measured(language), Random(1)
    for _ in range(options.nodes):
        folder = Path(tempfile.mkdtemp(prefix="mote-contracts"))
        folder.chmod(0o755)
        try:
            with Node() as node:
                for contract in contracts_of(language):
                    deploy_both(node, folder, language, contract)
                measured.node(node, options.connections, options.seconds, random)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    outcomes = list(measured.outcomes())
    for outcome in outcomes:
        interval = outcome.detail.get("interval")
        print(outcome.line() + ("  [{:.3f}, {:.3f}]".format(*interval) if interval else ""), flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-contracts", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="of each contract and number of connections, per node")
    parser.add_argument("--connections", type=lambda text: [int(one) for one in text.split(",")], default=[16, 64])
    parser.add_argument("--languages", type=lambda text: text.split(","), default=list(FUNCTIONS))
    options = parser.parse_args()
    started = datetime.datetime.now(datetime.timezone.utc)
    described, outcomes = machine(), []
    described["go"] = subprocess.run(["go", "version"], capture_output=True, text=True).stdout.strip() if shutil.which("go") else None
    for language in options.languages:
        if language == "go" and not described["go"]:
            print("SKIPPED: Go is not installed", file=sys.stderr)
            continue
        outcomes += measure(language, options)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    path = results / started.strftime("contracts-%Y-%m-%dT%H%M%SZ.json")
    record = {"machine": described, "nodes": options.nodes, "seconds": options.seconds,
              "outcomes": [outcome.as_json() for outcome in outcomes]}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {path.relative_to(ROOT)}")
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
