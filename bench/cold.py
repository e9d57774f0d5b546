"""Cold starts as a caller sees them, in alternation with `crun run` of the same root and command.

Every round calls each contestant once: a function that has scaled to zero on a node that keeps
prewarmed interpreters, the same function on a node that keeps none, and crun until its worker has
answered the same first invocation over the same protocol. Then come two ways to avoid a cold start:
paused instances, and spare instances of a function that takes long to load. See bench/README.md.

Usage: cold.py [--rounds N]
"""

from __future__ import annotations

import argparse
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
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm"), str(HERE.parent / "shims" / "python")]

import engine_double  # noqa: E402
from client import connect, get  # noqa: E402
from machine import machine  # noqa: E402
from node import ROOT, Node  # noqa: E402
from outcome import Outcome, exit_status  # noqa: E402

ABOVE_WARM_MS_BAR = 4.0
OF_CRUN_BAR = 0.2
WITHOUT_POOL_BAR = 1.0
PAUSED_MS_BAR = 1.0
#: Where a worker expects its channel.
CHANNEL_FD = 3
#: The pool is filled in the background; how long it is left alone before it is asked again.
SETTLE_S = 0.25
ZERO_S_MAX = 20
IDLE = '\n[scale]\nidle = "1ms"\n'
PAUSED = '\n[scale]\nstart = "always"\npause = "0s"\n'
SPARE = '\n[scale]\nidle = "1ms"\nspare = 1\nmax = 4\n[limits]\nmemory = "256MiB"\n'
HEAVY = "import numpy\ndef handle(event, ctx):\n    return str(numpy.arange(4).sum())\n"
EXAMPLES = {"Python": "hello-python", "Node": "hello-node"}


class Api:
    """The management socket, for requests that would take too long with the command line."""

    def __init__(self, path: str) -> None:
        self.path = path

    def states(self, name: str) -> list[str]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.path)
        connection.request("GET", f"/v1/functions/{name}")
        found = json.loads(connection.getresponse().read())
        connection.close()
        return [instance["state"] for instance in found["instances"]]

    def wait(self, name: str, wanted: list[str]) -> None:
        end = time.monotonic() + ZERO_S_MAX
        while self.states(name) != wanted:
            if time.monotonic() > end:
                raise SystemExit(f"{name}: {self.states(name)} and not {wanted}")
            time.sleep(0.005)
        time.sleep(SETTLE_S)


def call(node: Node, name: str) -> tuple[float, float]:
    """Milliseconds of a first call and of the following call, each on a fresh connection."""
    times = []
    for _ in range(2):
        with connect(node.http) as sock:
            since = time.perf_counter()
            answer = get(sock, f"/{name}")
            answer.body()
            times.append((time.perf_counter() - since) * 1e3)
            if answer.status != 200:
                raise SystemExit(f"{name} answered {answer.status}")
    return times[0], times[1]


def reserve_channel() -> None:
    """Reserves the descriptor number at which a worker expects its channel, so that nothing else
    uses it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing != CHANNEL_FD:
        os.dup2(nothing, CHANNEL_FD, inheritable=False)
        os.close(nothing)


class Crun:
    """One bundle: the folders that one of our functions sees, and the command that runs it."""

    def __init__(self, folder: Path, name: str, argv: list[str], binds: dict[str, str],
                 load: dict | None) -> None:
        self.bundle = folder / name
        self.load = load
        self.id = f"mote-cold-{os.getpid()}-{name}"
        root = self.bundle / "rootfs"
        for inside in ("proc", "tmp", "dev", *binds):
            (root / inside.strip("/")).mkdir(parents=True, exist_ok=True)
        for link in ("bin", "sbin", "lib", "lib64"):
            if Path("/", link).is_symlink():
                (root / link).symlink_to(os.readlink(Path("/", link)))
        options = ["bind", "ro", "nosuid", "nodev"]
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
                   "options": ["nosuid", "nodev", "size=16m", "mode=1777"]},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}]
        mounts += [{"destination": inside, "type": "bind", "source": outside, "options": options}
                   for inside, outside in binds.items()]
        config = {
            "ociVersion": "1.0.0",
            "process": {"args": argv, "cwd": "/function", "noNewPrivileges": True,
                        "user": {"uid": 1000, "gid": 1000},
                        "env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8"]},
            "root": {"path": "rootfs", "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in
                                     ("pid", "mount", "ipc", "uts", "network")],
                      "cgroupsPath": f"/{self.id}",
                      "resources": {"memory": {"limit": 128 << 20}, "pids": {"limit": 64}}},
        }
        (self.bundle / "config.json").write_text(json.dumps(config))

    def command(self, *more: str) -> list[str]:
        return ["crun", "--cgroup-manager=cgroupfs", "run", "--bundle", str(self.bundle),
                *more, self.id]

    def first_answer(self) -> float:
        """Milliseconds from the start of crun to the worker's answer."""
        if self.load is None:
            since = time.perf_counter()
            done = subprocess.run(self.command(), input=b"", capture_output=True)
            took = (time.perf_counter() - since) * 1e3
            if done.returncode or not done.stdout:
                raise SystemExit(f"crun failed:\n{done.stderr.decode()}")
            return took
        ours, theirs = socket.socketpair()
        ours.settimeout(20)
        since = time.perf_counter()
        # The container inherits this one.
        os.dup2(theirs.fileno(), CHANNEL_FD, inheritable=True)
        child = subprocess.Popen(self.command("--preserve-fds=1"), pass_fds=[CHANNEL_FD],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        reserve_channel()
        theirs.close()
        data = bytearray()
        for kind, answer in (
            ("HELLO", {"kind": "LOAD", "stream": 0, "json": self.load}),
            ("READY", {"kind": "INVOKE", "stream": 1, "method": "GET", "path": "/", "end": True}),
            ("RESULT", None),
        ):
            self.read(ours, data, kind)
            if answer:
                ours.sendall(engine_double.encode(answer))
        took = (time.perf_counter() - since) * 1e3
        ours.close()
        child.wait(timeout=20)
        return took

    @staticmethod
    def read(sock: socket.socket, data: bytearray, wanted: str) -> None:
        while True:
            frame, used = engine_double.decode(data)
            if used:
                del data[:used]
                if frame["kind"] == wanted:
                    return
                if frame["kind"] == "ERROR":
                    raise SystemExit(f"the worker in crun failed: {frame}")
                continue
            got = sock.recv(65536)
            if not got:
                raise SystemExit("the worker in crun ended")
            data += got


def host_folders(shims: Path, prefix: str, code: Path) -> dict[str, str]:
    folders = {"/usr": "/usr", "/function": str(code), "/mote": str(shims)}
    if not prefix.startswith("/usr"):
        folders[prefix] = prefix
    return folders


def contestants(folder: Path, shims: Path) -> dict[str, Crun]:
    """The same workers in crun. `shims` is the folder in which a node has put them, one file
    each."""
    asked = {"capture_output": True, "text": True, "check": True}
    python = subprocess.run(["python3", "-c", "import sys; print(sys.executable); "
                             "print(sys.base_prefix)"], **asked).stdout.split()
    node = subprocess.run(["node", "-p", "process.execPath"], **asked).stdout.strip()
    load = {"function": "hello", "revision": 1, "code_dir": "/function", "packages_dir": None,
            "concurrency": None, "env": {}}
    examples = ROOT / "examples"
    return {
        "Python": Crun(folder, "python", [python[0], "-sSEuB", "/mote/python/mote_shim.py"],
                       host_folders(shims, python[1], examples / "hello-python"),
                       {**load, "entry": "hello:handle"}),
        "Node": Crun(folder, "node", [node, "/mote/node/mote_shim.mjs"],
                     host_folders(shims, str(Path(node).parent.parent), examples / "hello-node"),
                     {**load, "entry": "hello.mjs"}),
        "static binary": Crun(folder, "binary", ["/function/answer"],
                              host_folders(shims, "/usr", folder / "answer"), None),
    }


def deploy(node: Node, folder: Path, name: str, code: Path, more: str) -> None:
    copy = folder / f"{name}-{time.monotonic_ns()}" / name
    shutil.copytree(code, copy)
    with (copy / "mote.toml").open("a") as manifest:
        manifest.write(more)
    node.deploy(copy)


def program(folder: Path) -> Path:
    code = folder / "answer"
    shutil.copytree(HERE / "functions" / "answer-program", code)
    command = ["cc", "-O2", "-static", "-o", str(code / "answer"), str(code / "answer.c")]
    subprocess.run(command, check=True)
    return code


def median(times: list[float]) -> float:
    return statistics.median(times)


def spread(times: list[float]) -> dict:
    quantiles = statistics.quantiles(times, n=100)
    return {"count": len(times), "p10_ms": quantiles[9], "p50_ms": median(times),
            "p90_ms": quantiles[89], "p99_ms": quantiles[98]}


def compare(folder: Path, rounds: int) -> list[Outcome]:
    names = {**EXAMPLES, "static binary": "answer"}
    code = {name: ROOT / "examples" / name for name in EXAMPLES.values()}
    code["answer"] = program(folder)
    times: dict[tuple[str, str], list[float]] = {}
    with Node() as pooled, Node("--prewarm", "off") as bare:
        nodes = {"pool": pooled, "no pool": bare}
        cruns = contestants(folder, pooled.folder / "data" / "shims")
        apis = {kind: Api(node.socket) for kind, node in nodes.items()}
        for node in nodes.values():
            for name in names.values():
                deploy(node, folder, name, code[name], IDLE)
        for _ in range(rounds):
            for runtime, name in names.items():
                for kind, node in nodes.items():
                    apis[kind].wait(name, [])
                    first, second = call(node, name)
                    times.setdefault((runtime, kind), []).append(first)
                    times.setdefault((runtime, f"warm, {kind}"), []).append(second)
                times.setdefault((runtime, "crun"), []).append(cruns[runtime].first_answer())
        logs = {name: pooled.mote("logs", name) for name in EXAMPLES.values()}
    outcomes = []
    for runtime, name in names.items():
        of = {kind: median(times[runtime, kind]) for kind in ("pool", "no pool", "crun")}
        warm = median(times[runtime, "warm, pool"])
        detail = {kind: spread(values) for (of_, kind), values in times.items() if of_ == runtime}
        if name in logs:
            detail["waited"] = logs[name].count("in a prewarmed sandbox")
        above = Outcome(f"{runtime}: cold above warm", of["pool"] - warm, "ms",
                        ABOVE_WARM_MS_BAR, detail=detail)
        outcomes += [above,
                     Outcome(f"{runtime}: cold over crun", of["pool"] / of["crun"], "",
                             OF_CRUN_BAR),
                     Outcome(f"{runtime}: no pool over crun", of["no pool"] / of["crun"], "",
                             WITHOUT_POOL_BAR)]
        for kind in ("warm, pool", "pool", "no pool", "crun"):
            outcomes.append(Outcome(f"{runtime}: {kind}", median(times[runtime, kind]), "ms"))
    return outcomes


def around(folder: Path, rounds: int) -> list[Outcome]:
    """Paused instances, and spare instances of a function with a heavy import."""
    outcomes = []
    heavy = folder / "heavy"
    heavy.mkdir()
    (heavy / "app.py").write_text(HEAVY)
    (heavy / "requirements.txt").write_text("numpy\n")
    (heavy / "mote.toml").write_text(
        'version = 1\nname = "heavy"\nruntime = "python"\nentry = "app:handle"\n')
    with Node() as node:
        api = Api(node.socket)
        for runtime, name in EXAMPLES.items():
            deploy(node, folder, name, ROOT / "examples" / name, PAUSED)
            paused, warm = [], []
            for _ in range(rounds):
                api.wait(name, ["paused"])
                first, second = call(node, name)
                paused.append(first)
                warm.append(second)
            outcomes.append(Outcome(f"{runtime}: paused above warm", median(paused) - median(warm),
                                    "ms", PAUSED_MS_BAR,
                                    detail={"paused": spread(paused), "warm": spread(warm)}))
        for kind, more, rest in (
            ("cold", IDLE + '[limits]\nmemory = "256MiB"\n', []),
            ("spare", SPARE, ["spare"]),
        ):
            deploy(node, folder, "heavy", heavy, more)
            times = []
            for _ in range(max(rounds // 5, 5)):
                api.wait("heavy", rest)
                times.append(call(node, "heavy")[0])
            outcomes.append(Outcome(f"numpy: {kind}", median(times), "ms", detail=spread(times)))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-cold", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="starts of each kind")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mote-cold"))
    folder.chmod(0o755)
    started = datetime.datetime.now(datetime.timezone.utc)
    reserve_channel()
    try:
        described = machine()
        outcomes = compare(folder, options.rounds) + around(folder, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for outcome in outcomes:
        print(outcome.line())
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    path = results / started.strftime("cold-%Y-%m-%dT%H%M%SZ.json")
    record = {"machine": described, "rounds": options.rounds,
              "outcomes": [outcome.as_json() for outcome in outcomes]}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {path.relative_to(ROOT)}")
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
