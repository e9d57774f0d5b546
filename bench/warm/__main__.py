"""The warm path: comparisons with native servers, then the promises that have absolute numbers.

Writes every single run to bench/results/ and ends with one table. See bench/README.md for what
each row means.

Usage: python3 bench/warm [--seconds S] [--rounds N] [--only PART] [--body-mib N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import bodies
import clients
import compare
import handover
import kept
from machine import machine
from node import ROOT, Node, binaries
from outcome import Outcome


def on_a_fresh_node(measure: Callable[[Node], list[Outcome]]) -> list[Outcome]:
    with Node() as node:
        outcomes = measure(node)
    for outcome in outcomes:
        print(outcome.line(), flush=True)
    return outcomes


def compare_all(rows: list[compare.Row], options: argparse.Namespace,
                attempt: Callable[[str, Callable[[], list[Outcome]]], None]) -> list[Outcome]:
    folder = Path(tempfile.mkdtemp(prefix="mote-warm"))
    folder.chmod(0o755)
    try:
        servers = compare.start(folder, rows)
        try:
            for row in rows:
                attempt(row.name, lambda row=row: compare.measure(servers, row, options.rounds,
                                                                  options.seconds))
        finally:
            servers.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return []


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-warm", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4, help="length of one run of a row")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of a row")
    parser.add_argument("--only", default="", help="part of a row's name, or handover, clients, "
                        "bodies, kept")
    parser.add_argument("--body-mib", type=int, default=1024, help="size of the large bodies")
    options = parser.parse_args()
    # Told to end, as by Ctrl-C: what was started is ended first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    described = machine()
    parts: dict[str, Callable[[Node], list[Outcome]]] = {
        "handover": handover.measure,
        "clients": clients.measure,
        "bodies": lambda node: bodies.measure(node, options.body_mib << 20),
        "kept": kept.measure,
    }
    rows = [row for row in compare.ROWS if options.only in row.name]
    outcomes: list[Outcome] = []
    broken: list[str] = []

    def attempt(name: str, work: Callable[[], list[Outcome]]) -> None:
        """A part that fails prints its error and fails the run, but the later parts still run."""
        try:
            outcomes.extend(work())
        except (Exception, SystemExit):
            traceback.print_exc()
            broken.append(name)

    if rows:
        attempt("comparisons", lambda: compare_all(rows, options, attempt))
    for name, part in parts.items():
        if not options.only or options.only == name:
            attempt(name, lambda part=part: on_a_fresh_node(part))

    path = write(described, options, outcomes, broken)
    print()
    print("{cpu}, {cores} cores, {memory_mib} MiB, Linux {kernel}, Node {node}".format(**described))
    for outcome in outcomes:
        print(outcome.line())
    for name in broken:
        print(f"{name:34} BROKEN, see above")
    print(f"written to {path.relative_to(ROOT)}")
    return 1 if broken or any(outcome.met is False for outcome in outcomes) else 0


def write(described: dict, options: argparse.Namespace, outcomes: list[Outcome],
          broken: list[str]) -> Path:
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")
    path = ROOT / "bench" / "results" / f"warm-{stamp}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": described,
        "profile": binaries().name,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "body_mib": options.body_mib,
        "broken": broken,
        "rows": [outcome.as_json() for outcome in outcomes],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
