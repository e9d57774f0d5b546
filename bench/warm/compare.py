"""Compares mote with each language's own web server, in alternation on one machine.

Medians, ratios and CPU per request of front, worker and generator. Absolute numbers mean little on
a shared machine: the ratios, taken in alternation within one run, are the point.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from node import ROOT, Node, binaries, free_port
from outcome import Outcome
from tree import cpu_ns
from wrk import wrk

TARGET = binaries()
CACHE = ROOT / ".cache"
# The interpreters of tests/package.json, which functions use as well.
MODULES = CACHE / "test-node" / "node_modules"
ARM = os.uname().machine == "aarch64"
DENO_PROGRAM = MODULES / ("@deno/linux-arm64-glibc" if ARM else "@deno/linux-x64-glibc") / "deno"
BUN_PROGRAM = (
    MODULES / ("@oven/bun-linux-aarch64" if ARM else "@oven/bun-linux-x64-baseline") / "bin" / "bun"
)

NATIVE_NODE = """
import http from 'node:http';
const port = Number(process.argv[2]);
const sieve = (n) => { const s = new Uint8Array(n + 1); let c = 0;
  for (let i = 2; i <= n; i++) { if (!s[i]) { c++; for (let j = i * i; j <= n; j += i) s[j] = 1; } } return c; };
http.createServer((request, response) => {
  response.setHeader('content-type', 'text/plain');
  response.end(request.url === '/sieve' ? String(sieve(1000)) : 'mote');
}).listen(port, '127.0.0.1');
"""
DENO = """
Deno.serve({ port: Number(Deno.args[0]), hostname: "127.0.0.1", onListen() {} }, () => new Response("mote"));
"""
BUN = """
Bun.serve({ port: Number(process.argv[2]), hostname: "127.0.0.1", fetch: () => new Response("mote") });
"""
NATIVE_COAP = """
import coap from 'coap';
coap.createServer((request, response) => response.end('mote')).listen(Number(process.argv[2]), '127.0.0.1');
"""
ASGI = """
HEADERS = [(b"content-type", b"text/plain"), (b"content-length", b"4")]
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": b"mote"})
"""


# The same static program with each C library and without one: what the platform costs, and what
# programs built in the usual ways see.
PROGRAMS = {
    "answer-bare": ["cc", "-DNO_LIBC", "-nostdlib"],
    "answer-musl": ["musl-gcc"],
    "answer-glibc": ["cc"],
}


@dataclass
class Target:
    """Something under load: its address, and the processes whose CPU time is counted."""

    name: str
    url: str
    front: int
    worker: int | None = None


@dataclass
class Run:
    per_second: float
    p50_ms: float
    p99_ms: float
    errors: int
    front_us: float
    worker_us: float
    generator_us: float

    @property
    def server_us(self) -> float:
        """Processor time of a request, without the generator's."""
        return self.front_us + self.worker_us


@dataclass
class Row:
    """One comparison: the subject's median over the baseline's, against a bar.

    `also` compares further measures of the same runs, each with the largest ratio that meets its
    bar. `place` is where the processes run: "shared" leaves it to the kernel, "busy" adds a program
    that takes one processor whole, "apart" gives the servers one processor and wrk another.
    """

    name: str
    subject: str
    baseline: str
    connections: int
    measure: str
    bar: float
    at_least: bool = True
    also: dict[str, float] = field(default_factory=dict)
    place: str = "shared"
    runs: dict[str, list[Run]] = field(default_factory=dict)


@contextlib.contextmanager
def placed(place: str, targets: list[Target]) -> Iterator[None]:
    """Where servers and generator run; afterwards the kernel decides again."""
    everywhere = os.sched_getaffinity(0)
    pids = [pid for target in targets for pid in (target.front, target.worker) if pid]
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"]) if place == "busy" else None
    servers, generator = everywhere, everywhere
    if place == "apart":
        first, second, *_ = sorted(everywhere)
        servers, generator = {first}, {second}
    try:
        for pid in pids:
            pin(pid, servers)
        os.sched_setaffinity(0, generator)  # wrk inherits it
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        for pid in pids:
            pin(pid, everywhere)
        if busy:
            busy.kill()
            busy.wait()


def pin(pid: int, processors: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), processors)


def pids(pid: int | None) -> set[int]:
    return set() if pid is None else {pid}


def load_http(target: Target, connections: int, seconds: float) -> Run:
    front, worker = cpu_ns(pids(target.front)), cpu_ns(pids(target.worker))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = wrk(target.url, connections, seconds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    front, worker = cpu_ns(pids(target.front)) - front, cpu_ns(pids(target.worker)) - worker
    spent = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return Run(
        per_second=found.per_second,
        p50_ms=found.p50_ms,
        p99_ms=found.p99_ms,
        errors=found.errors,
        front_us=front / found.requests / 1e3,
        worker_us=worker / found.requests / 1e3,
        generator_us=spent / found.requests * 1e6,
    )


def load_coap(target: Target, clients: int, seconds: float) -> Run:
    port, path = re.fullmatch(r"coap://127.0.0.1:(\d+)/(.*)", target.url).groups()
    front, worker = cpu_ns(pids(target.front)), cpu_ns(pids(target.worker))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(TARGET / "bench_coap"), port, path, str(clients), str(int(seconds))]
    result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    front, worker = cpu_ns(pids(target.front)) - front, cpu_ns(pids(target.worker)) - worker
    requests = max(result["requests"], 1)
    spent = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return Run(
        per_second=result["per_second"],
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        errors=result["failed"] + result["over_1s"],
        front_us=front / requests / 1e3,
        worker_us=worker / requests / 1e3,
        generator_us=spent / requests * 1e6,
    )


def load(target: Target, connections: int, seconds: float) -> Run:
    if target.url.startswith("coap:"):
        return load_coap(target, connections, seconds)
    return load_http(target, connections, seconds)


class Servers:
    """Everything that is compared, started once and ended by process id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen] = []
        self.node: Node | None = None
        self.targets: dict[str, Target] = {}

    def spawn(self, command: list[str], port: int, **kwargs) -> subprocess.Popen:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, **{**quiet, **kwargs})
        self.processes.append(process)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return process
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended with {process.returncode}") from None
                time.sleep(0.02)
        raise SystemExit(f"{command[0]} does not listen on {port}")

    def add(self, name: str, process: subprocess.Popen, port: int, path: str = "/") -> None:
        url = f"http://127.0.0.1:{port}{path}"
        self.targets[name] = Target(name, url, process.pid)

    def start_natives(self) -> None:
        script = self.folder / "native.mjs"
        script.write_text(NATIVE_NODE)
        port = free_port()
        node = self.spawn(["node", str(script), str(port)], port)
        self.add("native node", node, port)
        self.add("native node sieve", node, port, "/sieve")
        for name, source, command in (
            ("deno", DENO, [str(DENO_PROGRAM), "run", "-A"]), ("bun", BUN, [str(BUN_PROGRAM)]),
        ):
            script = self.folder / f"{name}.ts"
            script.write_text(source)
            port = free_port()
            self.add(name, self.spawn([*command, str(script), str(port)], port), port)
        proxy_port = free_port()
        proxy = self.spawn([str(TARGET / "bench_proxy"), str(proxy_port), str(port)], proxy_port)
        self.add("plain proxy to node", proxy, proxy_port)
        self.targets["plain proxy to node"].worker = node.pid
        echo_port = free_port()
        echo = self.spawn([str(TARGET / "bench_echo"), str(echo_port)], echo_port)
        self.add("raw echo", echo, echo_port)

    def start_python(self) -> None:
        (self.folder / "app.py").write_text(ASGI)
        tools = CACHE / "bench-venv" / "bin"
        port = free_port()
        command = [str(tools / "uvicorn"), "app:app", "--port", str(port), "--loop", "uvloop",
                   "--http", "httptools", "--no-access-log", "--log-level", "warning"]
        self.add("uvicorn", self.spawn(command, port, cwd=self.folder), port)
        port = free_port()
        command = [str(tools / "granian"), "app:app", "--interface", "asgi", "--port", str(port),
                   "--workers", "1", "--no-access-log", "--log-level", "error"]
        process = self.spawn(command, port, cwd=self.folder)
        self.add("granian", process, port)
        self.targets["granian"].worker = child_of(process.pid)

    def start_coap(self) -> None:
        folder = CACHE / "bench-node"
        script = folder / "native.mjs"
        script.write_text(NATIVE_COAP)
        port = free_port(socket.SOCK_DGRAM)
        process = subprocess.Popen(["node", str(script), str(port)], cwd=folder)
        self.add_coap("native coap", process, port)
        source, program = ROOT / "bench" / "peers" / "coap_server.c", self.folder / "coap_server"
        subprocess.run(["cc", "-O2", "-o", program, source, "-lcoap-3-notls"], check=True)
        port = free_port(socket.SOCK_DGRAM)
        self.add_coap("libcoap", subprocess.Popen([program, str(port)]), port)

    def add_coap(self, name: str, process: subprocess.Popen, port: int) -> None:
        self.processes.append(process)
        target = self.targets[name] = Target(name, f"coap://127.0.0.1:{port}/hello", process.pid)
        # A datagram server cannot be asked whether it listens; its first answer tells.
        for _ in range(50):
            if load_coap(target, 1, 1).per_second > 0:
                return
        raise SystemExit(f"{name} does not answer over CoAP")

    def start_mote(self) -> None:
        path = os.pathsep.join([str(DENO_PROGRAM.parent), str(BUN_PROGRAM.parent), os.environ["PATH"]])
        node = self.node = Node(path=path)
        names = ("hello-node", "hello-python", "sieve-node")
        folders = [self.kept_ready(ROOT / "examples" / name) for name in names]
        folders += [self.interpreted(runtime) for runtime in ("bun", "deno")]
        folders += [self.compile(name, compiler) for name, compiler in PROGRAMS.items()]
        for folder in folders:
            node.deploy(folder)
            # Programs of a call come and go; their processor time is nobody's to read.
            worker = None if folder.name in PROGRAMS else worker_of(node, folder.name)
            title = f"mote {folder.name}"
            url = f"http://127.0.0.1:{node.http}/{folder.name}"
            self.targets[title] = Target(title, url, node.pid, worker)
        url = f"coap://127.0.0.1:{node.coap}/hello-node"
        worker = self.targets["mote hello-node"].worker
        self.targets["mote coap"] = Target("mote coap", url, node.pid, worker)

    def kept_ready(self, example: Path) -> Path:
        """A copy of an example with one instance that is kept, as its rival has one process; the
        copy is measured in every run."""
        folder = self.folder / example.name
        shutil.copytree(example, folder)
        with (folder / "mote.toml").open("a") as manifest:
            manifest.write('\n[scale]\nstart = "always"\nmax = 1\n')
        return folder

    def interpreted(self, runtime: str) -> Path:
        """hello-node with another interpreter."""
        folder = self.folder / f"hello-{runtime}"
        shutil.copytree(ROOT / "examples" / "hello-node", folder)
        manifest = folder / "mote.toml"
        text = manifest.read_text().replace('runtime = "node"', f'runtime = "{runtime}"')
        text = text.replace('name = "hello-node"', f'name = "hello-{runtime}"')
        manifest.write_text(f'{text}\n[scale]\nstart = "always"\nmax = 1\n')
        return folder

    def compile(self, name: str, compiler: list[str]) -> Path:
        """A function that consists of one static program, in a separate folder."""
        folder = self.folder / name
        shutil.copytree(ROOT / "bench" / "functions" / "answer-program", folder)
        built = ["-O2", "-static", "-o", str(folder / "answer"), str(folder / "answer.c")]
        subprocess.run([*compiler, *built], check=True)
        return folder

    def stop(self) -> None:
        if self.node:
            self.node.stop()
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def children_of(pid: int) -> list[int]:
    text = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in text.split()]


def child_of(pid: int) -> int | None:
    children = children_of(pid)
    return children[0] if children else None


def worker_of(node: Node, function: str) -> int | None:
    """The program of a function's only instance; the node shows the first process above it."""
    described = json.loads(node.mote("describe", function, "-o", "json"))
    return child_of(described["instances"][0]["pid"])


FEW = (1, 2, 4, 8)
# With few clients, a server may cost a little more than the language's own, and never wait longer.
LIGHT = {"p99_ms": 1.5, "server_us": 1.5}
ROWS = [
    *(Row(f"{language} {few} {place}", f"mote hello-{language}", baseline, few, "per_second",
          0.8 if (place, few) == ("apart", 1) else 0.9, also=LIGHT, place=place)
      for place in ("shared", "apart") for language, baseline in (("node", "native node"),
                                                                  ("python", "uvicorn"))
      for few in FEW),
    *(Row(f"{language} {few} busy, p99", f"mote hello-{language}", baseline, few, "p99_ms", 2.0,
          at_least=False, place="busy")
      for language, baseline in (("node", "native node"), ("python", "uvicorn")) for few in FEW),
    *(Row(f"bun {many} over deno, apart", "mote hello-bun", "deno", many, "per_second", 1.0,
          place="apart") for many in (64, 256)),
    *(Row(f"deno {many} over deno, apart", "mote hello-deno", "deno", many, "per_second", 0.0,
          place="apart") for many in (64, 256)),
    *(Row(f"bun {many} over bun, apart", "mote hello-bun", "bun", many, "per_second", 0.0,
          place="apart") for many in (64, 256)),
    *(Row(f"node {many} apart", "mote hello-node", "native node", many, "per_second", 2.5,
          place="apart") for many in (64, 256)),
    *(Row(f"python {many} over uvicorn, apart", "mote hello-python", "uvicorn", many, "per_second",
          2.2, place="apart") for many in (64, 256)),
    *(Row(f"python {many} over granian, apart", "mote hello-python", "granian", many, "per_second",
          1.6, place="apart") for many in (64, 256)),
    *(Row(f"coap {clients} over libcoap, apart", "mote coap", "libcoap", clients, "per_second",
          least, place="apart")
      for clients, least in ((1, 0.65), (4, 0.65), (16, 0.0), (64, 1.3), (256, 1.3))),
    *(Row(f"coap over npm coap {few}", "mote coap", "native coap", few, "per_second", 1.2)
      for few in (1, 4)),
    Row("node 64 throughput", "mote hello-node", "native node", 64, "per_second", 2.0),
    Row("node 256 throughput", "mote hello-node", "native node", 256, "per_second", 2.0),
    Row("node 16 throughput", "mote hello-node", "native node", 16, "per_second", 1.4),
    Row("node 1 p99", "mote hello-node", "native node", 1, "p99_ms", 1.0, at_least=False),
    Row("node 64 p99", "mote hello-node", "native node", 64, "p99_ms", 0.6, at_least=False),
    Row("node 256 p99", "mote hello-node", "native node", 256, "p99_ms", 0.6, at_least=False),
    Row("sieve 64", "mote sieve-node", "native node sieve", 64, "per_second", 1.8),
    Row("sieve 256", "mote sieve-node", "native node sieve", 256, "per_second", 1.8),
    Row("python 64 over uvicorn", "mote hello-python", "uvicorn", 64, "per_second", 2.8),
    Row("python 256 over uvicorn", "mote hello-python", "uvicorn", 256, "per_second", 2.8),
    Row("python 64 over granian", "mote hello-python", "granian", 64, "per_second", 1.4),
    Row("share of raw echo at 64", "mote hello-node", "raw echo", 64, "per_second", 0.65),
    Row("process per request 16", "mote answer-bare", "native node", 16, "per_second", 0.06),
    Row("process per request 16, musl", "mote answer-musl", "native node", 16, "per_second", 0.06),
    Row("process per request 16, glibc", "mote answer-glibc", "native node", 16, "per_second",
        0.06),
    Row("plain proxy over node 64", "plain proxy to node", "native node", 64, "per_second", 0.0),
    Row("coap over http 64", "mote coap", "mote hello-node", 64, "per_second", 1.3),
    Row("coap over npm coap 64", "mote coap", "native coap", 64, "per_second", 4.0),
    Row("coap over npm coap 1024", "mote coap", "native coap", 1024, "per_second", 4.0),
]


def start(folder: Path, rows: list[Row]) -> Servers:
    """Everything that the rows compare, running and warm; the caller must stop it."""
    servers = Servers(folder)
    try:
        servers.start_natives()
        servers.start_python()
        servers.start_mote()
        servers.start_coap()
        for name in {name for row in rows for name in (row.subject, row.baseline)}:
            load(servers.targets[name], 16, 1)  # compilers, caches, service times
    except BaseException:
        servers.stop()
        raise
    return servers


def measure(servers: Servers, row: Row, rounds: int, seconds: float) -> list[Outcome]:
    row.runs = {row.subject: [], row.baseline: []}
    with placed(row.place, [servers.targets[name] for name in row.runs]):
        for _ in range(rounds):
            for name, runs in row.runs.items():
                runs.append(load(servers.targets[name], row.connections, seconds))
    return show(row)


# The row whose runs also say what the front costs.
FRONT_CPU_ROW = "node 64 throughput"
FRONT_CPU_BAR_US = 8.0


def median(runs: list[Run], measure: str) -> float:
    return statistics.median(getattr(run, measure) for run in runs)


def ratio(row: Row, measure: str) -> float:
    baseline = median(row.runs[row.baseline], measure)
    return median(row.runs[row.subject], measure) / baseline if baseline else 0.0


def show(row: Row) -> list[Outcome]:
    """Prints a row with the values it was calculated from."""
    detail = {
        "subject": row.subject, "baseline": row.baseline, "connections": row.connections,
        "measure": row.measure, "place": row.place,
        "runs": {name: [vars(run) for run in runs] for name, runs in row.runs.items()},
    }
    bar = row.bar or None
    outcomes = [Outcome(row.name, ratio(row, row.measure), "x", bar, at_least=row.at_least,
                        detail=detail)]
    names = {"p99_ms": "p99", "server_us": "processor time"}
    outcomes += [Outcome(f"  {names[measure]}", ratio(row, measure), "x", most)
                 for measure, most in row.also.items()]
    if row.name == FRONT_CPU_ROW:
        front_us = median(row.runs[row.subject], "front_us")
        outcomes.append(Outcome("front's CPU per request at 64", front_us, "us", FRONT_CPU_BAR_US))
    for outcome in outcomes:
        print(outcome.line())
    for name, runs in row.runs.items():
        line = "  ".join(
            f"{label} {median(runs, key):.2f}"
            for label, key in (("req/s", "per_second"), ("p50 ms", "p50_ms"), ("p99 ms", "p99_ms"),
                               ("front us", "front_us"), ("worker us", "worker_us"),
                               ("generator us", "generator_us"))
        )
        errors = sum(run.errors for run in runs)
        print(f"    {name:22} {line}  errors {errors}")
    sys.stdout.flush()
    return outcomes
