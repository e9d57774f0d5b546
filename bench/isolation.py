"""Our sandbox beside others: start, memory, throughput, and system calls that are answered.

Contestants: the program without a sandbox, a function of a node, bubblewrap, crun, Docker, and
gVisor (runsc). Each runs the same HTTP server, written for Node without packages. All but ours
share the network of the machine, so that the generator reaches them; ours has a network of its own,
and its calls pass through the node's front.

- Start: from the command, or from the call that reaches a function at zero, to the first answer.
- Memory: what all processes that a further instance needs add to the memory of the machine (PSS),
  without what serves all instances (the node, dockerd).
- Throughput: wrk with 16 connections.
- System calls: how many of those of Linux are answered, as an ordinary user; see
  functions/probe/probe.c. What gVisor answers, it answers itself; the calls of the process that
  does so are not counted.

Contestants that are not installed are named. Needs root.

Usage: isolation.py [--rounds N] [--no-save]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "warm")]

from client import connect, get  # noqa: E402
from machine import machine  # noqa: E402
from node import ROOT, Node, free_port  # noqa: E402
from tree import processes, pss_mib  # noqa: E402
from wrk import wrk  # noqa: E402

SERVER = """const server = require('http').createServer((_, answer) => answer.end('hello'));
server.listen(Number(process.env.PORT), () => console.log('ready'));
"""
MANIFEST = """version = 1
name = "{name}"
runtime = "server"
command = ["{node}", "server.cjs"]
{more}"""
USER = 1000
READY_S_MAX = 30
SETTLE_S = 0.5
CONNECTIONS = 16
IMAGE = "mote-bench-isolation"


def answer(port: int, path: str) -> None:
    with connect(port) as sock:
        got = get(sock, path)
        if got.status != 200 or got.body() != b"hello":
            raise SystemExit(f"port {port} answered {got.status}")


def rate(port: int, path: str, seconds: int) -> float:
    return wrk(f"http://127.0.0.1:{port}{path}", CONNECTIONS, seconds).per_second


class Contestant(ABC):
    """One way to run the server."""

    name: str

    @abstractmethod
    def command(self, inside: list[str], env: dict[str, str]) -> list[str]:
        """A command that runs a program in a new sandbox and stays until it ends."""

    def of_all(self, child: int) -> set[int]:
        """The processes that a sandbox has added, given that of the command."""
        return processes(child)

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[float, int, set[int]]]:
        """A server: milliseconds to the first answer, its port, and its processes."""
        port = free_port()
        began = time.perf_counter()
        command = self.command([NODE, "/function/server.cjs"], {"PORT": str(port)})
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        try:
            if b"ready" not in child.stdout.readline():
                raise SystemExit(f"{self.name}: the server did not start")
            answer(port, "/")
            yield (time.perf_counter() - began) * 1e3, port, self.of_all(child.pid)
        finally:
            self.end(child)

    def end(self, child: subprocess.Popen) -> None:
        child.terminate()
        child.wait(READY_S_MAX)
        child.stdout.close()

    def sample(self, seconds: int) -> tuple[float, float, float]:
        with self.running() as (took, port, pids):
            memory = pss_mib(pids)
            return took, memory, rate(port, "/", seconds) if seconds else 0.0

    def probe(self) -> str:
        done = subprocess.run(self.command(["/function/probe"], {}), capture_output=True, text=True)
        return done.stdout

    def close(self) -> None:
        return


class Bare(Contestant):
    name = "no sandbox"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, inside: list[str], env: dict[str, str]) -> list[str]:
        inside = [word.replace("/function", str(self.folder / "function")) for word in inside]
        identity = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        return ["env", *(f"{key}={value}" for key, value in env.items()), *identity, *inside]


class Bubblewrap(Contestant):
    name = "bubblewrap"

    def __init__(self, folder: Path) -> None:
        if not shutil.which("bwrap"):
            raise FileNotFoundError("bwrap")
        self.folder = folder

    def command(self, inside: list[str], env: dict[str, str]) -> list[str]:
        binds = [word for there, here in folders(self.folder).items()
                 for word in ("--ro-bind", here, there)]
        links = [word for link in ("bin", "lib", "lib64") if Path("/", link).is_symlink()
                 for word in ("--symlink", str(Path("/", link).readlink()), f"/{link}")]
        settings = [word for key, value in env.items() for word in ("--setenv", key, value)]
        return ["bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
                "--unshare-cgroup", "--uid", str(USER), "--gid", str(USER), "--cap-drop", "ALL",
                "--die-with-parent", "--clearenv", *settings, *binds, *links, "--proc", "/proc",
                "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/function", *inside]


class Oci(Contestant):
    """A runtime of the Open Container Initiative: crun, or gVisor's runsc."""

    def __init__(self, folder: Path, name: str, program: str, flags: list[str]) -> None:
        found = shutil.which(program)
        if not found:
            raise FileNotFoundError(program)
        self.name, self.folder = name, folder
        self.base = [found, *flags]
        self.id = ""

    def command(self, inside: list[str], env: dict[str, str]) -> list[str]:
        self.id = f"mote-isolation-{os.getpid()}-{time.monotonic_ns()}"
        bundle = self.folder / self.id
        root = bundle / "rootfs"
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                  {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
                   "options": ["nosuid", "nodev", "mode=1777"]}]
        for there, here in folders(self.folder).items():
            (root / there.strip("/")).mkdir(parents=True, exist_ok=True)
            mounts.append({"destination": there, "type": "bind", "source": here,
                           "options": ["bind", "ro", "nosuid", "nodev"]})
        for name in ("proc", "dev", "tmp"):
            (root / name).mkdir()
        for link in ("bin", "lib", "lib64"):
            if Path("/", link).is_symlink():
                (root / link).symlink_to(Path("/", link).readlink())
        config = {
            "ociVersion": "1.0.0",
            "process": {"args": inside, "cwd": "/function", "noNewPrivileges": True,
                        "user": {"uid": USER, "gid": USER},
                        "env": ["PATH=/usr/bin:/bin", *(f"{k}={v}" for k, v in env.items())]},
            "root": {"path": "rootfs", "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
                      "cgroupsPath": f"/{self.id}",
                      "resources": {"memory": {"limit": 256 << 20}, "pids": {"limit": 64}}},
        }
        (bundle / "config.json").write_text(json.dumps(config))
        return [*self.base, "run", "--bundle", str(bundle), self.id]

    def end(self, child: subprocess.Popen) -> None:
        subprocess.run([*self.base, "kill", self.id, "KILL"], capture_output=True)
        child.wait(READY_S_MAX)
        child.stdout.close()


class Docker(Contestant):
    """Containers of Debian's Docker, whose daemon is started for the measurement."""

    name = "Docker"

    def __init__(self, folder: Path) -> None:
        daemon = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin")
        if not daemon or not shutil.which("docker"):
            raise FileNotFoundError("dockerd")
        self.folder, self.number = folder, 0
        self.socket = folder / "docker.sock"
        self.log = (folder / "dockerd.log").open("w")
        self.daemon = subprocess.Popen(
            [daemon, "--host", f"unix://{self.socket}", "--data-root", str(folder / "docker"),
             "--exec-root", str(folder / "docker-run"), "--pidfile", str(folder / "docker.pid"),
             "--iptables=false", "--ip6tables=false", "--bridge=none"],
            stdout=self.log, stderr=self.log)
        self.base = ["docker", "--host", f"unix://{self.socket}"]
        end = time.monotonic() + READY_S_MAX
        while subprocess.run([*self.base, "version"], capture_output=True).returncode:
            if time.monotonic() > end or self.daemon.poll() is not None:
                self.close()
                text = (folder / "dockerd.log").read_text()[-300:]
                raise FileNotFoundError(f"dockerd did not start: {text}")
            time.sleep(0.1)
        root = folder / "image"
        for name in (*folders(folder), "/tmp"):
            (root / name.strip("/")).mkdir(parents=True, exist_ok=True)
        for link in ("bin", "lib", "lib64"):
            if Path("/", link).is_symlink():
                (root / link).symlink_to(Path("/", link).readlink())
        pack = ["tar", "-C", str(root), "-c", "."]
        packed = subprocess.run(pack, capture_output=True, check=True)
        subprocess.run([*self.base, "import", "-", IMAGE], input=packed.stdout, check=True,
                       stdout=subprocess.DEVNULL)

    def container(self) -> str:
        return f"mote-isolation-{os.getpid()}-{self.number}"

    def command(self, inside: list[str], env: dict[str, str]) -> list[str]:
        self.number += 1
        binds = [f"--volume={here}:{there}:ro" for there, here in folders(self.folder).items()]
        settings = [f"--env={key}={value}" for key, value in env.items()]
        return [*self.base, "run", "--rm", "--name", self.container(), "--network=host",
                f"--user={USER}:{USER}", "--cap-drop=ALL", "--security-opt=no-new-privileges",
                "--memory=256m", "--pids-limit=64", "--workdir=/function", *binds, *settings, IMAGE,
                *inside]

    def of_all(self, child: int) -> set[int]:
        asked = [*self.base, "inspect", "--format", "{{.State.Pid}}", self.container()]
        pid = int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return processes(int(fields[1]))  # the shim, from which the container descends

    def end(self, child: subprocess.Popen) -> None:
        subprocess.run([*self.base, "kill", self.container()], capture_output=True)
        child.wait(READY_S_MAX)
        child.stdout.close()

    def close(self) -> None:
        self.daemon.terminate()
        self.daemon.wait(READY_S_MAX)
        self.log.close()


class Ours(Contestant):
    name = "mote"

    def __init__(self, folder: Path) -> None:
        self.node = Node()
        for name, more in (
            ("zero", '[scale]\nidle = "1ms"\nmax = 1\n'),
            ("warm", "[scale]\nmin = 1\nmax = 1\n"),
        ):
            code = self.node.folder / name
            shutil.copytree(folder / "function", code)
            (code / "mote.toml").write_text(MANIFEST.format(name=name, node=NODE, more=more))
        probe = self.node.folder / "probe"
        shutil.copytree(folder / "function", probe)
        (probe / "mote.toml").write_text(
            'version = 1\nname = "probe"\nruntime = "exec"\ncommand = ["./probe"]\n'
            '[limits]\ntimeout = "120s"\n')
        self.node.deploy(self.node.folder / "zero", probe)

    def command(self, inside: list[str], env: dict[str, str]) -> list[str]:
        raise NotImplementedError

    def instances(self) -> int:
        shown = json.loads(self.node.mote("describe", "zero", "-o", "json"))
        return len(shown["instances"])

    def sample(self, seconds: int) -> tuple[float, float, float]:
        end = time.monotonic() + READY_S_MAX
        while self.instances():
            if time.monotonic() > end:
                raise SystemExit("the function did not scale to zero")
            time.sleep(0.01)
        before = pss_mib(processes(self.node.pid))
        began = time.perf_counter()
        answer(self.node.http, "/zero")
        took = (time.perf_counter() - began) * 1e3
        if not seconds:
            return took, 0.0, 0.0
        # An instance that stays, to be measured at rest.
        self.node.deploy(self.node.folder / "warm")
        while self.instances():
            time.sleep(0.01)
        answer(self.node.http, "/warm")
        memory = pss_mib(processes(self.node.pid)) - before
        answers = rate(self.node.http, "/warm", seconds)
        self.node.mote("remove", "warm", "--yes")
        return took, memory, answers

    def probe(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.node.http, timeout=120)
        connection.request("GET", "/probe")
        return connection.getresponse().read().decode()

    def close(self) -> None:
        self.node.stop()


def folders(folder: Path) -> dict[str, str]:
    """What a sandbox shows, and where it comes from."""
    shown = {"/usr": "/usr", "/function": str(folder / "function")}
    prefix = str(Path(NODE).parent.parent)
    if not prefix.startswith("/usr"):
        shown[prefix] = prefix
    return shown


def contestants(folder: Path) -> tuple[list[Contestant], list[str]]:
    rootless = ["--network=host", "--ignore-cgroups", f"--root={folder / 'runsc'}"]
    makers = {
        "no sandbox": lambda: Bare(folder),
        "mote": lambda: Ours(folder),
        "bubblewrap": lambda: Bubblewrap(folder),
        "crun": lambda: Oci(folder, "crun", "crun", ["--cgroup-manager=cgroupfs"]),
        "gVisor": lambda: Oci(folder, "gVisor (runsc)", os.environ.get("RUNSC", "runsc"), rootless),
        "Docker": lambda: Docker(folder),
    }
    found, missing = [], []
    for name, make in makers.items():
        try:
            found.append(make())
        except FileNotFoundError as error:
            missing.append(f"{name}: {error} is not installed")
    return found, missing


def versions() -> dict[str, str]:
    asked = {"bubblewrap": ["bwrap", "--version"], "crun": ["crun", "--version"],
             "Docker": ["docker", "--version"], "Node": [NODE, "--version"],
             "gVisor": [os.environ.get("RUNSC", "runsc"), "--version"]}
    found = {}
    for name, command in asked.items():
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True)
            found[name] = (done.stdout or done.stderr).splitlines()[0]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-isolation", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="starts of each contestant")
    parser.add_argument("--seconds", type=int, default=2, help="of wrk, in three of the rounds")
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    if os.geteuid():
        raise SystemExit("needs root")
    described = machine()
    folder = Path(tempfile.mkdtemp(prefix="mote-isolation"))
    folder.chmod(0o755)
    (folder / "function").mkdir()
    (folder / "function" / "server.cjs").write_text(SERVER)
    subprocess.run(["cc", "-O2", "-static", "-o", folder / "function" / "probe",
                    HERE / "functions" / "probe" / "probe.c"], check=True)
    all_of, missing = [], []
    try:
        all_of, missing = contestants(folder)
        samples: dict[str, list[tuple[float, float, float]]] = {each.name: [] for each in all_of}
        for number in range(options.rounds):
            for each in all_of:
                # A measurement's pause, not a wait: the one before is still cleaning up.
                time.sleep(SETTLE_S)
                samples[each.name].append(each.sample(options.seconds if number < 3 else 0))
        rows = []
        for each in all_of:
            starts = [took for took, _, _ in samples[each.name]]
            first = samples[each.name][:3]
            reached, tried = each.probe().split()
            rows.append({
                "name": each.name,
                "start_ms": statistics.median(starts),
                "start_p90_ms": statistics.quantiles(starts, n=10)[8],
                "memory_mib": statistics.median(memory for _, memory, _ in first),
                "requests_s": statistics.median(answers for _, _, answers in first),
                "system_calls": int(reached),
                "system_calls_tried": int(tried),
            })
            print(f"{each.name:16} start {rows[-1]['start_ms']:7.1f} ms  memory "
                  f"{rows[-1]['memory_mib']:6.1f} MiB  {rows[-1]['requests_s']:8.0f} requests/s  "
                  f"{reached} of {tried} system calls", flush=True)
    finally:
        for each in all_of:
            each.close()
        shutil.rmtree(folder, ignore_errors=True)
    for line in missing:
        print(f"left out: {line}")
    if not options.no_save:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
        path = ROOT / "bench" / "results" / f"isolation-{stamp}.json"
        record = {"machine": described, "rounds": options.rounds, "versions": versions(),
                  "left_out": missing, "rows": rows}
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    return 0


NODE = os.path.realpath(shutil.which("node") or "node")

if __name__ == "__main__":
    sys.exit(main())
