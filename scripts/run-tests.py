#!/usr/bin/env python3
"""Runs the test programs of the Cargo workspace, several at once: `run-tests.py [--lanes N] [NAME…]`.

Builds all test programs first. The end-to-end tests are one program, whose modules run like programs
of their own. With names, only the programs and modules with these names run, for example
`run-tests.py faults`. Each program prints to a file, which is shown whole when the program has
ended, so the output of two programs never mixes. Programs that measure time run after the others,
each alone.

Most end-to-end tests wait for a node rather than for a processor. In two lanes, all of them together
use a quarter of the time of two processors, so four lanes are faster and disturb little.

Tests that failed run once more at the end, alone. A test that passes then is reported as unsteady
(`UNSTEADY: NAME`) and does not fail the run; see decision 0103. The script exits with 1 if any
program failed, and lists these programs as its last lines.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

# Programs whose tests compare times with each other, or need the processors for themselves.
ALONE = {"experiments", "neighbours", "escape", "instances", "scale_to_zero", "websockets"}
# What the source of a program contains if it needs parts of Kubernetes. `make test` builds them
# meanwhile, and the file that the variable names exists when they are there.
KUBERNETES = re.compile(r"\bmote_tests::(kubernetes|cluster)\b|\"KUBECTL\"")
KUBERNETES_BUILT = "MOTE_KUBERNETES_BUILT"
# A program that takes longer hangs.
PROGRAM_SECONDS_MAX = 1_200
# If more tests failed than this, the cause is not that they ran next to others.
AGAIN_MAX = 8
# The names under the last "failures:" of a test program.
FAILURES = re.compile(r"^failures:\n((?:    \S+\n)+)", re.MULTILINE)
# Programs that take minutes. They begin first, so that none of them is left for the end.
LONG = [
    "dashboard",
    "cloudevents",
    "oracle",
    "coap_interop",
    "schedules",
    "documents",
    "upgrade_command",
    "compat_go",
    "cells",
    "shares",
]


# The program whose modules run separately.
MODULES = "e2e"


class Program(NamedTuple):
    """A test program or a module of one: the crate's folder, its source, its name, and the command."""

    folder: Path
    source: str
    name: str
    command: list[str]


def programs(names: list[str]) -> list[Program]:
    """Builds the test programs and lists them."""
    command = ["cargo", "test", "--workspace", "--tests", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    found = []
    for line in built.splitlines():
        message = json.loads(line)
        if not message.get("executable") or not message["profile"]["test"]:
            continue
        folder = Path(message["manifest_path"]).parent
        target = message["target"]
        source = os.path.relpath(target["src_path"], folder)
        executable = message["executable"]
        if target["name"] == MODULES:
            found += modules(folder, executable)
        else:
            found.append(Program(folder, source, target["name"], [executable]))
    return [program for program in found if not names or program.name in names]


def modules(folder: Path, executable: str) -> list[Program]:
    """The modules of the end-to-end tests."""
    command = [executable, "--list", "--format", "terse"]
    listed = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True, text=True).stdout
    tests: dict[str, list[str]] = {}
    for test in re.findall(r"^(.*): test$", listed, re.MULTILINE):
        tests.setdefault(test.partition("::")[0], []).append(test)
    return [
        Program(folder, f"tests/{name}.rs", name, [executable, "--exact", *of_module])
        for name, of_module in tests.items()
    ]


def needs_kubernetes(program: Program) -> bool:
    return bool(KUBERNETES.search((program.folder / program.source).read_text()))


class Runner:
    """Runs programs, prints what each printed, and remembers which failed."""

    def __init__(self) -> None:
        # The failed tests of each program that failed, as far as it names them.
        self.failed: dict[str, list[str]] = {}
        self.times: list[tuple[float, str]] = []
        self.printing = threading.Lock()

    def run(self, title: str, command: list[str], folder: Path) -> None:
        began = time.monotonic()
        ended, output = execute(command, folder)
        took = time.monotonic() - began
        with self.printing:
            print(f"\n     Running {title}: {took:.1f} s", flush=True)
            sys.stdout.buffer.write(output)
            sys.stdout.flush()
            self.times.append((took, title))
            if ended:
                print(f"{title} ended with {ended}", flush=True)
                names = FAILURES.findall(output.decode(errors="replace"))
                self.failed[title] = "".join(names).split()

    def again(self, found: list[Program]) -> None:
        """Runs the tests that failed once more, alone, if there are few of them."""
        by_title = {title_of(program): program for program in found}
        tests = {title: names for title, names in self.failed.items() if names and title in by_title}
        if sum(map(len, tests.values())) > AGAIN_MAX:
            return
        for title, names in tests.items():
            program = by_title[title]
            command = [program.command[0], "--exact", "--test-threads=1", *names]
            ended, output = execute(command, program.folder)
            # A counted line of the runner would count these tests twice.
            text = output.decode(errors="replace").replace("test result:", "result of the second run:")
            print(f"\n     Once more, alone: {title}\n{text}", flush=True)
            if not ended:
                del self.failed[title]
                for name in names:
                    print(f"UNSTEADY: {name}", flush=True)


def execute(command: list[str], folder: Path) -> tuple[str, bytes]:
    """Runs a test program. Returns how it failed, or nothing, and what it printed."""
    with tempfile.TemporaryFile() as output:
        # In the environment that `cargo test` gives: its folder, and the crate's.
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(folder)}
        try:
            code = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, check=False, timeout=PROGRAM_SECONDS_MAX,
            ).returncode
            ended = str(code) if code else ""
        except subprocess.TimeoutExpired as error:
            ended = str(error)
        output.seek(0)
        return ended, output.read()


def title_of(program: Program) -> str:
    return f"{program.folder.name} {program.source}"


def begins(program: Program) -> tuple[int, str]:
    """The place of a program in the queue."""
    return (LONG.index(program.name) if program.name in LONG else len(LONG), program.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, default=4, help="programs at a time (default: 4)")
    parser.add_argument("--list", action="store_true", help="print name, folder and command of each, and run none")
    parser.add_argument(
        "--suite", action="append", nargs=2, default=[], metavar=("NAME", "COMMAND"),
        help="a command of the shell that runs at the same time",
    )
    parser.add_argument("names", nargs="*", help="names of test programs; none: all")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    os.chdir(root)

    found = programs(arguments.names)
    if missing := set(arguments.names) - {program.name for program in found}:
        sys.exit(f"no test program is named {', '.join(sorted(missing))}")
    if arguments.list:
        for program in found:
            print(program.name, program.folder, *program.command)
        return
    runner = Runner()
    clustered = [program for program in found if needs_kubernetes(program)]

    def run(program: Program) -> None:
        built = os.environ.get(KUBERNETES_BUILT)
        while program in clustered and built and not Path(built).exists():
            time.sleep(0.5)
        runner.run(title_of(program), program.command, program.folder)

    shared = sorted((p for p in found if p.name not in ALONE and p not in clustered), key=begins)
    # In the last third: late, but not so late that one of them is left for the end.
    late = len(shared) * 2 // 3
    shared[late:late] = clustered
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.lanes) as lanes:
        suites = [
            lanes.submit(runner.run, name, ["bash", "-c", command], root) for name, command in arguments.suite
        ]
        list(lanes.map(run, shared))
        for suite in suites:
            suite.result()
    in_lanes = sum(took for took, _ in runner.times)
    print(f"\n{in_lanes:.0f} s of tests in {arguments.lanes} lanes took {time.monotonic() - began:.0f} s")
    for program in found:
        if program.name in ALONE:
            run(program)
    runner.again(found)

    slowest = sorted(runner.times, reverse=True)[:12]
    print("\nslowest: " + ", ".join(f"{title} {took:.0f} s" for took, title in slowest))
    if runner.failed:
        sys.exit("FAILED: " + ", ".join(sorted(runner.failed)))


if __name__ == "__main__":
    main()
