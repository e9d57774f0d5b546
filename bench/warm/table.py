"""The table of the warm path in SPECIFICATION.md, written from a stored run.

Usage: python3 bench/warm/table.py [RESULT] [--check]

RESULT is a file of bench/results/; without it, the one that the document names. `--check` only
compares, and ends with status 1 if the table does not say what the run measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from node import ROOT

DOCUMENT = ROOT / "SPECIFICATION.md"
BEGIN = "<!-- The table is written by bench/warm/table.py from {} -->\n"
END = "<!-- end of the table -->\n"
MARKED = re.compile(re.escape(BEGIN).replace(r"\{\}", r"(\S+)") + r".*?" + re.escape(END), re.DOTALL)
FEW = (1, 2, 4, 8)
MANY = (64, 256)
NATIVES = {"node": "`hello` in Node over native `http`", "python": "`hello` in Python over uvicorn"}
PLACES = {"shared": "all on two processors", "apart": "servers on one processor, clients on the other"}
MEASURES = {"": "throughput", "  p99": "p99", "  processor time": "processor time of a request"}


@dataclass
class Line:
    """One line of the table: what is promised, and the rows of the run that measure it."""

    promise: str
    rows: list[str]


def lines() -> list[Line]:
    found = []
    for place, where in PLACES.items():
        for language, compared in NATIVES.items():
            for suffix, measure in MEASURES.items():
                promise = f"{measure}, {compared}; {where}; 1, 2, 4, 8 clients"
                found.append(Line(promise, [f"{language} {few} {place}{suffix}" for few in FEW]))
    for language, compared in NATIVES.items():
        found.append(Line(f"p99, {compared}; another program takes one processor; 1, 2, 4, 8 clients",
                          [f"{language} {few} busy, p99" for few in FEW]))
    apart = "; servers on one processor, clients on the other; 64, 256 clients"
    found += [
        Line(f"throughput, {NATIVES['node']}{apart}", [f"node {many} apart" for many in MANY]),
        Line(f"throughput, `hello` in Bun over `Deno.serve`{apart}",
             [f"bun {many} over deno, apart" for many in MANY]),
        Line(f"throughput, {NATIVES['python']}{apart}",
             [f"python {many} over uvicorn, apart" for many in MANY]),
        Line(f"throughput, `hello` in Python over granian{apart}",
             [f"python {many} over granian, apart" for many in MANY]),
        Line("throughput, `hello` in Node over native `http`; 16, 64, 256 clients",
             [f"node {many} throughput" for many in (16, *MANY)]),
        Line("p99 of the same; 1, 64, 256 clients", [f"node {many} p99" for many in (1, *MANY)]),
        Line("throughput, `sieve` in Node over native `http`; 64, 256 clients",
             [f"sieve {many}" for many in MANY]),
        Line("throughput, `hello` in Python over uvicorn; 64, 256 clients",
             [f"python {many} over uvicorn" for many in MANY]),
        Line("throughput, `hello` in Python over granian; 64 clients", ["python 64 over granian"]),
        Line("throughput, `hello` in Node over an echo server that parses nothing; 64 clients",
             ["share of raw echo at 64"]),
        Line("throughput, CoAP over a server in C on libcoap; servers on one processor, clients on "
             "the other; 1, 4, 16, 64, 256 clients",
             [f"coap {clients} over libcoap, apart" for clients in (1, 4, 16, *MANY)]),
        Line("throughput, CoAP over npm's `coap`; 1, 4, 64, 1,024 clients",
             [f"coap over npm coap {clients}" for clients in (1, 4, 64, 1024)]),
        Line("throughput, CoAP over `mote`'s HTTP; 64 clients", ["coap over http 64"]),
        Line("throughput, a static program started per call over native Node; bare, musl, glibc; "
             "16 clients", ["process per request 16", "process per request 16, musl",
                            "process per request 16, glibc"]),
        Line("1,024 clients × 500 operations answered within 1 s; HTTP, CoAP",
             ["HTTP, 1024 x 500 within 1 s", "CoAP, 1024 x 500 within 1 s"]),
        Line("handover of a call to the function and back; Node, Python",
             ["handover hello-node, back to back", "handover hello-python, back to back"]),
        Line("the same after a pause; Node, Python",
             ["handover hello-node, idle", "handover hello-python, idle"]),
        Line("processor time of the front per request; 64 clients", ["front's CPU per request at 64"]),
        Line("memory above idle with a body of 1 GiB received, sent, both; Node, Python",
             [f"bodies-{language}, 1024 MiB {kind}"
              for language in ("node", "python") for kind in ("in", "out", "echo")]),
        Line("memory of a kept connection", ["memory of a kept connection"]),
    ]
    return found


def table(result: dict) -> str:
    rows, parent = {}, ""
    for row in result["rows"]:
        nested = row["name"].startswith("  ")
        parent = parent if nested else row["name"]
        rows[parent + row["name"] if nested else parent] = row
    text = ["| Promise | Limit | Measured |\n|---|---|---|\n"]
    for line in lines():
        missing = [name for name in line.rows if name not in rows]
        if missing:
            raise SystemExit(f"the run has no row {missing[0]!r}; a run for this table is complete")
        measured = [rows[name] for name in line.rows]
        text.append(f"| {line.promise} | {limits(measured)} | {values(measured)} |\n")
    return "".join(text)


def limits(rows: list[dict]) -> str:
    sign = {True: "≥", False: "≤"}
    bars = ["none" if row["bar"] is None else f"{row['bar']:g}" for row in rows]
    if len(set(bars)) == 1:
        bars = bars[:1]
    if bars == ["none"]:
        return "none"
    return f"{sign[rows[0]['at_least']]} {', '.join(bars)}{unit(rows)}"


def values(rows: list[dict]) -> str:
    shown = [figures(row["value"]) for row in rows]
    marked = [f"**{text}**" if row["met"] is False else text
              for text, row in zip(shown, rows, strict=True)]
    return ", ".join(marked) + unit(rows)


def unit(rows: list[dict]) -> str:
    name = rows[0]["unit"]
    return "" if name == "x" else " " + name.replace("us", "µs")


def figures(value: float) -> str:
    """Two or three digits that count."""
    size = abs(value)
    if size >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 3 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="table", description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="a file of bench/results/")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    document = DOCUMENT.read_text()
    found = MARKED.search(document)
    if not found:
        raise SystemExit(f"{DOCUMENT.name} has no place for the table")
    path = Path(options.result).resolve() if options.result else ROOT / found.group(1)
    text = table(json.loads(path.read_text()))
    new = BEGIN.format(path.relative_to(ROOT)) + text + END
    if new == found.group(0):
        return 0
    if options.check:
        print(f"the table of the warm path in {DOCUMENT.name} is not what "
              f"{path.relative_to(ROOT)} says; run python3 bench/warm/table.py", file=sys.stderr)
        return 1
    DOCUMENT.write_text(document.replace(found.group(0), new))
    return 0


if __name__ == "__main__":
    sys.exit(main())
