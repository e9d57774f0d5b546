#!/usr/bin/env python3
"""Measures the time from a save to the answer of the new code: `dev.py [--rounds N] [--peers]`.

Each project is a folder that `mote dev` watches. A round writes another word into the source file
and sends requests, one after another, until an answer has the new word. With `--peers`, nodemon
with a server of Node and `wrangler dev` are measured in the same way, installed with npm into a
temporary folder. The program is `$MOTE_BIN`, or the release build. Prints a table in Markdown.
"""

import argparse
import http.client
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 180
WORD = "WORD"

PYTHON = 'def handle(event, ctx):\n    return "WORD"\n'
NODE = "export default { fetch() { return new Response('WORD'); } };\n"
GO = """package hello

import (
	"fmt"
	"net/http"
)

func Handle(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "WORD") }
"""
SERVER = """import http from 'node:http';
const server = http.createServer((_, response) => response.end('WORD'));
server.listen(Number(process.env.PORT), '127.0.0.1');
"""
WRANGLER = 'name = "hello"\nmain = "index.mjs"\ncompatibility_date = "2024-09-01"\n'


def hundred():
    """A package of 100 modules, all of which the function imports."""
    files = {f"lib/part{at}.py": f"def value():\n    return {at}\n" * 20 for at in range(98)}
    imports = "".join(f"from lib import part{at}\n" for at in range(98))
    return {**files, "lib/__init__.py": "", "app.py": imports + PYTHON}


class Failed(Exception):
    pass


def wait_for(what, ask):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.02)
    raise Failed(f"waited {PATIENCE_S} s for {what}")


class Loop:
    """A program that serves a folder and watches its files."""

    def __init__(self, folder, files, source, command, env=None, port=None, path="/"):
        self.source, self.text, self.path, self.port = folder / source, files[source], path, port
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.log = folder.parent / (folder.name + ".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.connection = None

    def find_port(self):
        def found():
            text = self.log.read_text(errors="replace")
            if self.process.poll() is not None:
                raise Failed(text)
            match = re.search(r"http://127\.0\.0\.1:(\d+)/", text)
            return int(match.group(1)) if match else None

        self.port = self.port or wait_for("an address", found)

    def get(self):
        """The answer to one request, or nothing if no request can be sent."""
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            self.connection.request("GET", self.path)
            return self.connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            self.connection = None
            if self.process.poll() is not None:
                raise Failed(self.log.read_text(errors="replace")) from None
            return None

    def round(self, word):
        began = time.perf_counter()
        self.source.write_text(self.text.replace(WORD, word))
        lost = 0
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = self.get()
            if answer == word:
                return (time.perf_counter() - began) * 1000, lost
            if answer is None:
                lost += 1
                time.sleep(0.001)
        raise Failed(
            f"no new answer in {PATIENCE_S} s: {self.log.read_text(errors='replace')[-500:]}"
        )

    def end(self):
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def measure(loop, rounds):
    try:
        loop.find_port()
        wait_for("the first answer", lambda: loop.get() == WORD)
        loop.round("warm")
        times, lost = [], 0
        for number in range(rounds):
            ms, refused = loop.round(f"word{number}")
            times.append(ms)
            lost += refused
            time.sleep(0.3)
        return times, lost
    finally:
        loop.end()


def of_mote(folder, files, source, rounds):
    binary = os.environ.get("MOTE_BIN", str(ROOT / "target/release/mote"))
    folder.mkdir()
    loop = Loop(folder, files, source, [binary, "dev"], path=f"/{folder.name}")
    return measure(loop, rounds)


def of_peer(folder, files, source, rounds, packages, command, port):
    folder.mkdir()
    npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", *packages]
    if subprocess.run(npm, cwd=folder, stdin=subprocess.DEVNULL).returncode:
        raise Failed(f"npm cannot install {' '.join(packages)}")
    env = {"PORT": str(port), "CI": "1", "WRANGLER_SEND_METRICS": "false"}
    return measure(Loop(folder, files, source, command, env=env, port=port), rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peers", action="store_true")
    args = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="mote-bench-dev"))
    runs = [
        (
            "mote dev, Python",
            lambda: of_mote(base / "python", {"app.py": PYTHON}, "app.py", args.rounds),
        ),
        (
            "mote dev, Node",
            lambda: of_mote(base / "node", {"index.mjs": NODE}, "index.mjs", args.rounds),
        ),
        (
            "mote dev, Python, 100 files",
            lambda: of_mote(base / "hundred", hundred(), "app.py", args.rounds),
        ),
        (
            "mote dev, Go",
            lambda: of_mote(base / "go", {"handler.go": GO}, "handler.go", args.rounds),
        ),
    ]
    if args.peers:
        nodemon = ["npx", "nodemon", "--quiet", "index.mjs"]
        wrangler = ["npx", "wrangler", "dev", "--port", "16902", "--ip", "127.0.0.1"]
        runs += [
            (
                "nodemon, server of Node",
                lambda: of_peer(
                    base / "nodemon",
                    {"index.mjs": SERVER},
                    "index.mjs",
                    args.rounds,
                    ["nodemon"],
                    nodemon,
                    16901,
                ),
            ),
            (
                "wrangler dev",
                lambda: of_peer(
                    base / "wrangler",
                    {"index.mjs": NODE, "wrangler.toml": WRANGLER},
                    "index.mjs",
                    args.rounds,
                    ["wrangler"],
                    wrangler,
                    16902,
                ),
            ),
        ]
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}, "
        f"{args.rounds} saves each\n"
    )
    print(
        "| Project | Median, ms | Fastest | Slowest | Requests without an answer |\n"
        "|---|---|---|---|---|"
    )
    failed = False
    for name, run in runs:
        try:
            times, lost = run()
        except Failed as error:
            failed = True
            print(f"| {name} | - | - | - | not measured |", flush=True)
            print(f"{name}: {error}", file=sys.stderr)
            continue
        median = statistics.median(times)
        print(
            f"| {name} | {median:.0f} | {min(times):.0f} | {max(times):.0f} | {lost} |", flush=True
        )
    shutil.rmtree(base, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
