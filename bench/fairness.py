"""Measures how much one hostile client or function delays the callers of another function.

For each attack a node of its own. A victim is asked at a fixed rate, alone and then under the
attack, and so on in alternation; the median over the rounds of the p99 under attack, over that of
the p99 alone, is the ratio. The bar is a ratio of 3 and no failed call of the victim; a row without
a bar informs. The exit status is 1 if a bar was missed or an attack could not be run.

The attacker is another client than the victim's caller: it comes from the machine's own address,
the caller from 127.0.0.1. `mote bench` asks the victim, by a schedule, so that a call that had to
wait to be sent counts from when it was due. It and the attacker (attacks.py) are pinned to the same
core where there are several. The caller gets that core whenever it wants it, and the attacker only
when nothing else does: in the field both are other machines. The row `a program that spins` is
the same with a program that attacks nothing: the share of the machine in the ratios. So is `idle
programs on every core`: an attack that keeps the node busy keeps all cores busy, and the host of a
virtual machine may take cores away then.

Usage: fairness.py [--rounds N] [--seconds N] [--only NAME,NAME] [--no-save]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import ROOT, Node, free_port  # noqa: E402

RATIO_BAR = 3.0
#: Between two namespaces, of which one has callers that never pause.
TENANT_BAR = 2.0
RATE = 200
ACCEPTED_RATE = 20  # of calls that are accepted for later and told by a callback
WARM_UP = "1s"
#: An attack ends by itself after this, whatever happens to this program.
ATTACK_SECONDS_MORE = 20
#: After an attack, until what it left under way has ended; a pause of the measurement.
SETTLE_SECONDS = 2.0
#: How long a callback may take before its call counts as failed.
CALLBACK_SECONDS_MAX = 20
BACKLOG = 4_096
#: What `mote bench` says when not even its first connection is accepted, and how long it tries.
CANNOT_CONNECT = "error[M0141]"
CONNECT_SECONDS = 10.0
EGRESS_PORTS = 8
DEAD_NAMES = 16

#: Where this machine has no address but loopback, all of which counts as one client.
LOOPBACK_ATTACKER = "127.0.0.66"

Files = dict[str, str]

KEPT = "[scale]\nmin = 1\n"
#: Manifest of the attacking function. Its deadline is short, so that each phase has several of its
#: calls end, and it has one instance.
SHORT = '[limits]\ntimeout = "3s"\n[scale]\nmax = 1\n'

HELLO = 'def handle(event, ctx):\n    return "hello"\n'
BIG = 'def handle(event, ctx):\n    return "x" * 262144\n'
MORTAL = (
    "import os\n\ndef handle(event, ctx):\n"
    '    if "die" in event.args:\n        os._exit(1)\n    return "hello"\n'
)
#: Work for 20 ms of processor time.
BUSY = (
    "import time\n\ndef handle(event, ctx):\n    end = time.process_time() + 0.02\n"
    '    while time.process_time() < end:\n        pass\n    return "busy"\n'
)
SLOW = 'import time\n\ndef handle(event, ctx):\n    time.sleep(2)\n    return "slow"\n'
CHATTY = (
    "import os, time\n\ndef handle(event, ctx):\n    end = time.monotonic() + 2\n"
    '    while time.monotonic() < end:\n        os.write(1, b"l\\n" * 20000)\n'
)
SERVER = """#!/usr/bin/env python3
import os, socket, threading

ENDLESS = {
    "/early": (b"", b"HTTP/1.1 103 Early Hints\\r\\n\\r\\n" * 2000),
    "/zeros": (b"HTTP/1.1 200 OK\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n", b"0" * 65536),
}

def serve(connection):
    try:
        while request := connection.recv(65536):
            first, rest = ENDLESS[request.split(b" ")[1].decode()]
            connection.sendall(first)
            while True:
                connection.sendall(rest)
    except OSError:
        pass

listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
#: Opens what it can, keeps it for a while, and begins again.
DIALER = """import socket, time

def handle(event, ctx):
    end = time.monotonic() + 2
    while time.monotonic() < end:
        held = []
        try:
            for _ in range(200):
                for address in ADDRESSES:
                    one = socket.socket()
                    one.setblocking(False)
                    held.append(one)
                    one.connect_ex(address)
        except OSError:
            pass
        time.sleep(0.3)
        for one in held:
            one.close()
"""
#: A victim whose calls each open a connection to the outside.
CALLER = """import socket

def handle(event, ctx):
    with socket.create_connection(("localhost", PORT), 5) as one:
        return one.recv(100)
"""


@dataclass
class Bench:
    """What an attack works with: the node, and what the attack and its functions may reach."""

    folder: Path
    node: Node
    openfaas: int
    #: A port that takes connections and never says anything.
    silent: int
    egress: list[int]
    answering: int

    def ports(self) -> dict[str, int]:
        ports = {"http": self.node.http, "coap": self.node.coap}
        return ports | {"openfaas": self.openfaas, "silent": self.silent}

    def deploy(self, name: str, files: Files, manifest: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        for file, text in (files | {"mote.toml": f"version = 1\n{manifest}"}).items():
            path = folder / file
            path.write_text(text)
            path.chmod(0o755 if text.startswith("#!") else 0o644)
        self.node.mote("deploy", str(folder), "--name", name)


Prepare = Callable[[Bench], None]


def python(name: str, code: str, more: str = SHORT) -> Prepare:
    return lambda bench: bench.deploy(name, {"app.py": code}, more)


def server(bench: Bench) -> None:
    bench.deploy(
        "server", {"serve.py": SERVER}, 'runtime = "server"\ncommand = ["./serve.py"]\n' + SHORT
    )


def allowed(hosts: list[str]) -> str:
    return f"[allow]\nnet = {json.dumps(hosts)}\n"


def caller(bench: Bench) -> None:
    code = CALLER.replace("PORT", str(bench.answering))
    bench.deploy("caller", {"app.py": code}, KEPT + allowed([f"localhost:{bench.answering}"]))


def dialer(bench: Bench) -> None:
    caller(bench)
    addresses = [("127.0.0.1", port) for port in bench.egress]
    hosts = [f"127.0.0.1:{port}" for port in bench.egress]
    code = f"ADDRESSES = {addresses}\n{DIALER}"
    bench.deploy("dialer", {"app.py": code}, SHORT + allowed(hosts))


def seeker(bench: Bench) -> None:
    caller(bench)
    addresses = [(f"127.77.0.{2 + n}", 80) for n in range(DEAD_NAMES)]
    hosts = [f"n{n}.nobody.example:80" for n in range(DEAD_NAMES)]
    code = f"ADDRESSES = {addresses}\n{DIALER}"
    bench.deploy("seeker", {"app.py": code}, SHORT + allowed(hosts))


def tenants(*limits: str) -> Prepare:
    """The attacker's function in one namespace, and the victim in another."""

    def prepare(bench: Bench) -> None:
        cpu = '[limits]\ncpu = 0.5\n' if "--cpu" in limits else ""
        bench.node.mote("namespace", "create", "a", *limits)
        bench.node.mote("namespace", "create", "b")
        bench.deploy("busy.a", {"app.py": BUSY}, cpu)
        bench.deploy("hello.b", {"app.py": HELLO}, KEPT)

    return prepare


def half_of_the_processors() -> str:
    return str(max(0.5, len(os.sched_getaffinity(0)) / 2))


def nothing(_: Bench) -> None:
    pass


@dataclass
class Side:
    """The victim in one phase; times in milliseconds."""

    p50: float
    p99: float
    slowest: float
    offered: int
    failures: dict[str, int]
    machine_busy: float | None = None

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


Ask = Callable[[Bench, float], Side]


def bench_of(url: Callable[[Bench], str]) -> Ask:
    """Measures with `mote bench`, on one core if there are several."""

    def ask(bench: Bench, seconds: float) -> Side:
        command = [
            *pinned(), *going_first(), bench.node.binary, "bench", url(bench), "--rate", str(RATE),
            "--threads", "1", "--warmup", WARM_UP, "--duration", f"{seconds * 1000:.0f}ms",
            "-o", "json",
        ]  # fmt: skip
        done = subprocess.run(
            command, env=bench.node.environment, capture_output=True, text=True, check=False
        )
        if CANNOT_CONNECT in done.stderr:
            slowest, count = CONNECT_SECONDS * 1000, int(RATE * seconds)
            return Side(slowest, slowest, slowest, count, {"cannot connect": count})
        if not done.stdout.startswith("{"):
            raise Broken(f"{' '.join(command)}: {done.stderr}")
        result = json.loads(done.stdout)
        # Where no operation was answered, a call took as long as it was waited for.
        p50, p99, slowest = (
            result["latency"][key] or result["timeout_s"] * 1000
            for key in ("p50_ms", "p99_ms", "max_ms")
        )
        busy = result["generator"]["machine_busy"]
        return Side(p50, p99, slowest, result["offered"], result["failures"], busy)

    return ask


def accepted(bench: Bench, seconds: float) -> Side:
    """Calls that OpenFaaS's API accepts for later: the time from when each was due until its
    callback."""
    told: dict[str, float] = {}

    class Told(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told[self.headers["X-Call-Id"]] = time.monotonic()
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    due: dict[str, float] = {}
    failures: dict[str, int] = {}
    count, began = int(seconds * ACCEPTED_RATE), time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", bench.openfaas, timeout=10)
    for n in range(count):
        at = began + n / ACCEPTED_RATE
        time.sleep(max(0.0, at - time.monotonic()))
        url = f"http://127.0.0.1:{receiver.server_port}/"
        connection.request("POST", "/async-function/hello", b"", {"X-Callback-Url": url})
        answer = connection.getresponse()
        answer.read()
        if answer.status == 202:
            due[answer.headers["X-Call-Id"]] = at
        else:
            failures[str(answer.status)] = failures.get(str(answer.status), 0) + 1
    end = time.monotonic() + CALLBACK_SECONDS_MAX
    while len(told) < len(due) and time.monotonic() < end:
        time.sleep(0.01)
    receiver.shutdown()
    receiver.server_close()
    connection.close()
    missing = [call for call in due if call not in told]
    if missing:
        failures["no callback"] = len(missing)
    times = sorted((told[call] - at) * 1000 for call, at in due.items() if call in told)
    times = times or [CALLBACK_SECONDS_MAX * 1000.0]
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
    return Side(statistics.median(times), p99, times[-1], count, failures)


OVER_HTTP = bench_of(lambda bench: f"http://127.0.0.1:{bench.node.http}/hello")
OVER_COAP = bench_of(lambda bench: f"coap://127.0.0.1:{bench.node.coap}/hello")
OVER_OPENFAAS = bench_of(lambda bench: f"http://127.0.0.1:{bench.openfaas}/function/hello")
TO_OUTSIDE = bench_of(lambda bench: f"http://127.0.0.1:{bench.node.http}/caller")
OF_TENANT = bench_of(lambda bench: f"http://127.0.0.1:{bench.node.http}/hello.b")
OF_TENANT_OVER_COAP = bench_of(lambda bench: f"coap://127.0.0.1:{bench.node.coap}/hello.b")
OF_MORTAL = bench_of(lambda bench: f"http://127.0.0.1:{bench.node.http}/mortal")


@dataclass
class Attack:
    """`client` names the attacker in attacks.py; `prepare` deploys what it needs."""

    name: str
    title: str
    client: str
    prepare: Prepare = nothing
    ask: Ask = OVER_HTTP
    bar: float | None = RATIO_BAR
    dead_names: bool = False
    #: Whether the attacker must be another client than the victim's caller.
    apart: bool = False


ATTACKS = [
    Attack("spinning", "a program that spins", "spinning", bar=None),
    Attack("spinning-everywhere", "idle programs on every core", "spinning-everywhere", bar=None),
    Attack("pipelined", "pipelined requests, no such function", "pipelined"),
    Attack("early", "a server function: endless 1xx", "early", server),
    Attack("zeros", "a server function: endless chunk size", "zeros", server),
    Attack("stdout", "a function: short lines on stdout", "stdout", python("chatty", CHATTY)),
    Attack("egress", "a function: connections to outside", "egress", dialer, TO_OUTSIDE),
    Attack("lookups", "a function: names nobody answers", "lookups", seeker, TO_OUTSIDE,
           dead_names=True),
    Attack("h2-ping", "HTTP/2: PING", "h2-ping"),
    Attack("h2-settings", "HTTP/2: SETTINGS", "h2-settings"),
    Attack("h2-priority", "HTTP/2: PRIORITY", "h2-priority"),
    Attack("h2-window-update", "HTTP/2: WINDOW_UPDATE", "h2-window-update"),
    Attack("h2-window-0", "HTTP/2: window 0, pings answered", "h2-window-0",
           python("big", BIG)),
    Attack("silent-http", "silent connections, HTTP", "silent-http", apart=True),
    Attack("silent-openfaas", "silent connections, OpenFaaS", "silent-openfaas",
           ask=OVER_OPENFAAS, apart=True),
    Attack("callbacks", "callbacks that hang", "callbacks", python("later", HELLO, ""),
           OVER_OPENFAAS),
    Attack("callbacks-accepted", "callbacks that hang, accepted calls", "callbacks",
           python("later", HELLO, ""), accepted),
    Attack("kills", "GETs that kill their worker", "kills", python("mortal", MORTAL, "")),
    Attack("kills-own", "the same, calls of that function", "kills",
           python("mortal", MORTAL, KEPT), OF_MORTAL, bar=None),
    Attack("coap", "CoAP: NON to a slow function", "coap", python("slow", SLOW, ""), OVER_COAP),
    Attack("tenant", "a namespace asks for too much", "tenant", tenants(), OF_TENANT,
           bar=TENANT_BAR),
    Attack("tenant-cpu", "the same, with a limit of processors", "tenant",
           tenants("--cpu", half_of_the_processors()), OF_TENANT, bar=TENANT_BAR),
    Attack("tenant-accepted", "the same, accepted calls", "tenant-accepted",
           tenants("--cpu", half_of_the_processors()), accepted, bar=TENANT_BAR),
    Attack("tenant-coap", "the same, over CoAP", "tenant-coap",
           tenants("--cpu", half_of_the_processors()), OF_TENANT_OVER_COAP, bar=TENANT_BAR),
]  # fmt: skip


class Broken(Exception):
    """An attack could not be run, or the node did not survive the attack."""


class Skipped(Exception):
    """This machine lacks what an attack needs."""


def own_address() -> str | None:
    """An address of this machine other than loopback; traffic from the machine to it stays
    inside."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # Connecting a datagram socket sends nothing; it only chooses the address to send from.
    with probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return None


def pinned() -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or not shutil.which("taskset"):
        return []
    return ["taskset", "-c", str(cores[-1])]


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A port on which the kernel accepts connections that no program takes."""
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def answering() -> Iterator[int]:
    """A port that says `hello` and ends the connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    stream, _ = listener.accept()
                    with stream, contextlib.suppress(OSError):
                        stream.sendall(b"hello")

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def bench_for(attack: Attack) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="mote-fairness"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        if attack.apart and not own_address():
            raise Skipped("this machine has no address but loopback to attack from")
        under: tuple[str, ...] = ()
        if attack.dead_names:
            # A resolver of this node's own, which answers nothing, so that no look-up leaves
            # this machine.
            resolver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                resolver.bind(("127.0.0.66", 53))
            except OSError as error:
                raise Skipped(f"a silent resolver on 127.0.0.66:53: {error}") from error
            conf = folder / "resolv.conf"
            conf.write_text("nameserver 127.0.0.66\n")
            mount = 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'
            under = ("unshare", "--mount", "sh", "-c", mount, str(conf))
        openfaas = free_port()
        silent = stack.enter_context(listening())
        egress = [stack.enter_context(listening()) for _ in range(EGRESS_PORTS)]
        greeter = stack.enter_context(answering())
        # The attacker counts as another machine, which functions without [access] refuse.
        flags = ("--openfaas", f"127.0.0.1:{openfaas}", "--access", "public")
        node = stack.enter_context(Node(*flags, under=under))
        yield Bench(folder, node, openfaas, silent, egress, greeter)


def going_first() -> list[str]:
    """A command that gives its program the core as soon as the program needs it, as a caller on
    another machine has its own core. Otherwise the caller waits for a tick when the scheduler puts
    a busy function onto its core, and the result measures that wait. The program uses a few
    thousandths of a core in all."""
    command = ["chrt", "--fifo", "1"]
    allowed = shutil.which("chrt") and subprocess.run([*command, "true"], check=False,
                                                      stderr=subprocess.DEVNULL).returncode == 0
    return command if allowed else []


def giving_way() -> list[str]:
    """A command that lets its program run only while nothing else needs the core. Niceness is not
    enough: since Linux 6.6 a running program keeps its core for a whole turn whatever its niceness,
    and the caller would wait for up to a tick, although a real attacker runs on another machine."""
    return ["chrt", "--idle", "0"] if shutil.which("chrt") else ["nice", "-n", "19"]


@contextlib.contextmanager
def attacked(attack: Attack, bench: Bench, seconds: float) -> Iterator[dict[str, int]]:
    """The attack at full strength; after its end, the dictionary says what the attack did."""
    did: dict[str, int] = {}
    command = [
        *pinned(), *giving_way(), sys.executable, "-B", str(HERE / "attacks.py"),
        attack.client, str(seconds + ATTACK_SECONDS_MORE), own_address() or LOOPBACK_ATTACKER,
        json.dumps(bench.ports()),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "on\n":
            raise Broken("the attacker did not begin")
        yield did
        process.terminate()
        told = process.communicate(timeout=30)[0]
        if not told:
            raise Broken("the attacker ended too early; its error is above")
        did.update(json.loads(told))
        if refused := did.get("answered 403"):
            raise Broken(f"the attack attacked nothing: {refused} of its calls were refused (403)")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@dataclass
class Row:
    attack: Attack
    alone: list[Side] = field(default_factory=list)
    under: list[Side] = field(default_factory=list)
    did: list[dict[str, int]] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)

    def medians(self) -> tuple[float, float, float, float]:
        alone, under = self.alone, self.under
        return (
            statistics.median(side.p50 for side in alone),
            statistics.median(side.p99 for side in alone),
            statistics.median(side.p50 for side in under),
            statistics.median(side.p99 for side in under),
        )

    @property
    def ratio(self) -> float:
        _, alone, _, under = self.medians()
        return under / alone

    @property
    def errors(self) -> int:
        return sum(side.failed for side in self.under)

    @property
    def met(self) -> bool | None:
        if self.attack.bar is None:
            return None
        return self.ratio <= self.attack.bar and self.errors == 0

    def line(self) -> str:
        times = "".join(f"{value:9.2f}" for value in self.medians())
        verdict = {None: "no bar", True: "met", False: "MISSED"}[self.met]
        return f"{self.attack.title:38}{times}{self.ratio:8.2f}{self.errors:8}  {verdict}"

    def as_json(self) -> dict[str, Any]:
        alone_p50, alone_p99, under_p50, under_p99 = self.medians()
        return {
            "name": self.attack.name, "title": self.attack.title,
            "alone_p50_ms": alone_p50, "alone_p99_ms": alone_p99,
            "attack_p50_ms": under_p50, "attack_p99_ms": under_p99,
            "ratio": self.ratio, "errors": self.errors,
            "errors_alone": sum(side.failed for side in self.alone),
            "bar": self.attack.bar, "met": self.met,
            "alone": [vars(side) for side in self.alone],
            "attack": [vars(side) for side in self.under],
            "attacker_did": self.did, "load_1min": self.load, "node_memory_kib": self.memory,
        }  # fmt: skip


HEADING = (
    f"{'':38}{'alone':>9}{'':9}{'attack':>9}\n"
    f"{'attack':38}{'p50 ms':>9}{'p99 ms':>9}{'p50 ms':>9}{'p99 ms':>9}{'ratio':>8}{'errors':>8}"
)


def measure(attack: Attack, rounds: int, seconds: float) -> Row:
    row = Row(attack)
    with bench_for(attack) as bench:
        bench.deploy("hello", {"hello.py": HELLO}, KEPT)
        attack.prepare(bench)
        attack.ask(bench, 1.0)  # what is called for the first time is slower
        for _ in range(rounds):
            row.alone.append(attack.ask(bench, seconds))
            if row.alone[-1].failed == row.alone[-1].offered:
                raise Broken(f"the victim was not served alone: {row.alone[-1].failures}")
            with attacked(attack, bench, seconds) as did:
                row.under.append(attack.ask(bench, seconds))
            row.did.append(did)
            row.load.append(os.getloadavg()[0])
            time.sleep(SETTLE_SECONDS)
            if bench.node.process.poll() is not None:
                raise Broken("the node ended")
        row.memory = bench.node.memory_kib()
        log = (bench.node.folder / "log").read_text()
        if "panicked" in log:
            raise Broken(f"the node panicked: {log[log.index('panicked') :][:500]}")
    if not all(any(did.values()) for did in row.did):
        raise Broken(f"the attacker did nothing: {row.did}")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-fairness", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each phase")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of attacks")
    parser.add_argument("--no-save", action="store_true", help="write no result file")
    options = parser.parse_args()
    unknown = set(options.only or ()) - {attack.name for attack in ATTACKS}
    if unknown:
        parser.error(f"no attack named {', '.join(sorted(unknown))}")
    # Hanging callbacks go to this machine.
    os.environ["MOTE_OUTGOING"] = "machine"
    started = datetime.datetime.now(datetime.UTC)
    described, rows, broken, skipped = machine(), [], {}, {}
    print(HEADING, flush=True)
    for attack in ATTACKS:
        if options.only and attack.name not in options.only:
            continue
        try:
            row = measure(attack, options.rounds, options.seconds)
        except Skipped as error:
            skipped[attack.name] = str(error)
            print(f"{attack.title:38} SKIPPED: {error}", flush=True)
        except (Exception, SystemExit) as error:
            broken[attack.name] = repr(error)
            print(f"{attack.title:38} BROKEN: {error}", flush=True)
        else:
            rows.append(row)
            print(row.line(), flush=True)
    described["load_after"] = os.getloadavg()
    if not options.no_save:
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        path = results / started.strftime("fairness-%Y-%m-%dT%H%M%SZ.json")
        record = {
            "machine": described, "rate": RATE, "rounds": options.rounds,
            "seconds": options.seconds, "rows": [row.as_json() for row in rows],
            "broken": broken, "skipped": skipped,
        }  # fmt: skip
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    return int(bool(broken) or any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
