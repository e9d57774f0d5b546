"""What others use to run a function: servers of a language, containers, and the data planes of
other platforms, each with the same workloads behind a thin adapter.

`scripts/lab-setup.sh peers` installs the servers. The data planes are built by whoever measures
them, from their own sources, and named with `--peer NAME=FOLDER`; nothing of them is in this
repository. A data plane is the part of a platform that every call passes in the function's own
container. The parts in front of it (gateways, controllers, message brokers, service meshes) are not
there, so its numbers are the best that the whole platform could reach.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from motelab.catalog import FOLDER, ROOT, Workload
from motelab.client import JSON
from motelab.node import free_port
from motelab.platforms import Function, Native, NotOffered, Wish, is_listening
from motelab.processes import READY_S_MAX, Failed, Program, wait_for
from motelab.services import Services

TOOLS = ROOT / ".cache" / "lab-peers" / "node_modules"
IS_ARM = os.uname().machine == "aarch64"
BUILD_S_MAX, SPECIALIZE_S_MAX = 300, 30


class NotInstalled(NotOffered):
    """A peer is not on this machine; the text says how to get it."""


class PortInUse(NotOffered):
    """Another program uses the port that a peer needs."""


def said(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """The first line that a program prints, or nothing if it cannot be run."""
    try:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, cwd=cwd, check=False
        )
    except OSError:
        return ""
    return (done.stdout.strip().splitlines() or [""])[0]


class Peer(Native):
    """A program of others that the lab starts on a port that it chooses."""

    is_told_port = True
    #: The file without which it cannot run, and how to get it.
    needs: Path
    how = "scripts/lab-setup.sh peers installs it"

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """The arguments that name the port."""
        self.require_file()
        return []

    def require_file(self) -> None:
        """Raises an error that says how to get the peer."""
        if not self.needs.exists():
            raise NotInstalled(f"{self.name} is not installed ({self.needs}): {self.how}")


class Deno(Peer):
    """Deno's own server of fetch handlers."""

    name, adapter = "deno", "fetch"
    needs = TOOLS / ("@deno/linux-arm64-glibc" if IS_ARM else "@deno/linux-x64-glibc") / "deno"
    commands: Mapping[str, Sequence[str]] = {
        "node": (str(needs), "serve", "-A", "--quiet", "--no-check")
    }

    def version(self) -> str:
        """As the program says it."""
        return said([self.needs, "--version"])

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Address and file."""
        self.require_file()
        return ["--host", "127.0.0.1", "--port", str(port), "server.mjs"]


class Bun(Peer):
    """Bun's own server of fetch handlers."""

    name, adapter = "bun", "fetch"
    needs = TOOLS / "@oven"
    needs = needs / ("bun-linux-aarch64" if IS_ARM else "bun-linux-x64-baseline") / "bin" / "bun"
    commands: Mapping[str, Sequence[str]] = {"node": (str(needs), "server.mjs")}

    def version(self) -> str:
        """As the program says it."""
        return f"bun {said([self.needs, '--version'])}"


class Workerd(Peer):
    """The runtime of Cloudflare Workers, without the service around it."""

    name, adapter = "workerd", "fetch"
    needs = TOOLS / "@cloudflare" / ("workerd-linux-arm64" if IS_ARM else "workerd-linux-64")
    needs = needs / "bin" / "workerd"
    commands: Mapping[str, Sequence[str]] = {"node": (str(needs), "serve", "workerd.capnp")}
    CONFIG = """using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "internet", network = (allow = ["public", "private"])),
  ],
  sockets = [(name = "http", address = "127.0.0.1:%d", http = (), service = "main")],
);
const worker :Workerd.Worker = (
  modules = [
    (name = "server.mjs", esModule = embed "server.mjs"),
    (name = "workload.mjs", esModule = embed "workload.mjs"),
  ],
  bindings = [%s],
  compatibilityDate = "2025-09-15",
  compatibilityFlags = ["nodejs_compat", "nodejs_compat_populate_process_env"],
);
"""

    def version(self) -> str:
        """As the program says it."""
        return said([self.needs, "--version"])

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Writes the configuration, in which a worker finds its environment."""
        self.require_file()
        texts = ", ".join(
            f"(name = {json.dumps(name)}, text = {json.dumps(value)})"
            for name, value in env.items()
            if name != "PATH"
        )
        (into / "workerd.capnp").write_text(self.CONFIG % (port, texts))
        return []


class Asgi(Peer):
    """A Python server of ASGI applications, with one process."""

    adapter = "asgi"

    @property
    def _module(self) -> str:
        return self.name

    def version(self) -> str:
        """The version of the package."""
        try:
            return f"{self.name} {metadata.version(self.name)}"
        except metadata.PackageNotFoundError:
            return ""

    def require_file(self) -> None:
        """Raises an error that says how to get the package."""
        if not self.version():
            raise NotInstalled(f"{self.name} is not installed: {self.how}")


class Uvicorn(Asgi):
    """uvicorn with its fastest loop and parser."""

    name = "uvicorn"
    commands: Mapping[str, Sequence[str]] = {
        "python": (sys.executable, "-B", "-m", "uvicorn", "server:app", "--loop", "uvloop")
    }

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Address, and no log."""
        self.require_file()
        quiet = ["--http", "httptools", "--no-access-log", "--log-level", "warning"]
        return ["--host", "127.0.0.1", "--port", str(port), *quiet]


class Granian(Asgi):
    """granian, whose HTTP is in Rust."""

    name = "granian"
    commands: Mapping[str, Sequence[str]] = {
        "python": (sys.executable, "-B", "-m", "granian", "server:app", "--interface", "asgi")
    }

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Address, one process, and no log."""
        self.require_file()
        quiet = ["--workers", "1", "--no-access-log", "--log-level", "error"]
        return ["--host", "127.0.0.1", "--port", str(port), *quiet]


class Go(Native):
    """The workload written in Go behind net/http."""

    name, adapter = "go", "native"

    def version(self) -> str:
        """As the toolchain says it."""
        return said(["go", "version"]).removeprefix("go version ")

    def note(self) -> str:
        """The code is not the same."""
        return "the same work, written in Go and compiled: not the same code as on the others"

    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """The workload in Go, for whatever language the others run."""
        if not (workload.folder / "workload.go").exists():
            raise NotOffered(f"{workload.name} is not written in Go")
        if shutil.which("go") is None:
            raise NotInstalled("go is not installed: see https://go.dev/doc/install")
        return super().deploy(workload, profile, replace(wish, runtime="go"))

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Builds the server, once."""
        if not (into / "server").exists():
            (into / "go.mod").write_text("module workload\n\ngo 1.21\n")
            command = ["go", "build", "-buildvcs=false", "-o", "server", "."]
            done = subprocess.run(
                command, cwd=into, capture_output=True, text=True, check=False, timeout=BUILD_S_MAX
            )
            if done.returncode:
                raise Failed(f"go build of {into} failed:\n{done.stderr.strip()}")
        return []


class Runc(Native):
    """A container of runc per function, started for a call and killed afterwards. The container has
    the machine's files, read-only, and the machine's network."""

    name = "runc"
    is_told_port = True

    def version(self) -> str:
        """As the program says it."""
        return said(["runc", "--version"])

    def note(self) -> str:
        """What is not compared."""
        return (
            "a container without image, system call filter, user namespace or"
            " network of its own; mote's starts include all of these but the image"
        )

    def programs(self, into: Path, runtime: str, env: dict[str, str], log: Path) -> list[Program]:
        """Runs the native server in a container."""
        if shutil.which("runc") is None or os.geteuid() != 0:
            raise NotInstalled("runc needs root and the program runc: apt-get install runc")
        bundle = into / "bundle"
        self._root(into, bundle / "rootfs")
        (bundle / "config.json").write_text(json.dumps(self._config(into, runtime, env)))
        command = ["runc", "run", "--bundle", str(bundle)]
        return [Program([*command, self._id(into)], log)]

    def _id(self, into: Path) -> str:
        return f"lab-{os.getpid()}-{into.name}"

    def stop(self, programs: Sequence[Program], into: Path) -> None:
        """Kills the container, whose first process ignores SIGTERM."""
        subprocess.run(
            ["runc", "delete", "--force", self._id(into)],
            capture_output=True,
            check=False,
        )
        super().stop(programs, into)

    def _folders(self, into: Path) -> list[Path]:
        """The folders of the machine that the container sees."""
        folders = {Path("/usr"), Path("/etc"), into}
        folders |= {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {Path("/usr")}
        return sorted(folders)

    def _root(self, into: Path, root: Path) -> None:
        """Writes the root of the container: empty folders, and the links of the machine's root."""
        for folder in (*(Path("/", name) for name in ("proc", "dev", "tmp")), *self._folders(into)):
            (root / str(folder).strip("/")).mkdir(parents=True, exist_ok=True)
        for link in ("bin", "lib", "lib64"):
            if Path("/", link).is_symlink() and not (root / link).is_symlink():
                (root / link).symlink_to(Path("/", link).readlink())

    def _command(self, runtime: str) -> list[str]:
        command = list(self.commands[runtime])
        program = Path(shutil.which(command[0]) or command[0])
        # The container sees folders by their real names; that of the program itself may be a link
        # that leads out of an environment of Python.
        command[0] = str(program.parent.resolve() / program.name)
        return command

    def _config(self, into: Path, runtime: str, env: Mapping[str, str]) -> dict[str, object]:
        mounts: list[dict[str, object]] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs"},
        ]
        for folder in self._folders(into):
            mounts.append(
                {
                    "destination": str(folder),
                    "type": "bind",
                    "source": str(folder),
                    "options": ["bind", "ro"],
                }
            )
        kinds = ("pid", "mount", "ipc", "uts")
        return {
            "ociVersion": "1.0.0",
            "process": {
                "args": self._command(runtime),
                "cwd": str(into),
                "noNewPrivileges": True,
                "user": {"uid": 0, "gid": 0},
                "env": [f"{name}={value}" for name, value in env.items()],
            },
            "root": {"path": "rootfs", "readonly": True},
            "mounts": mounts,
            "linux": {
                "namespaces": [{"type": kind} for kind in kinds],
            },
        }


class Docker(Runc):
    """A container of Docker per function, started for a call and removed afterwards, by a daemon of
    the lab. Its image is an empty root; the machine's files are mounted."""

    name = "docker"
    IMAGE = "lab:1"

    def __init__(self, services: Services, work: Path, logs: Path) -> None:
        super().__init__(services, work, logs)
        self.daemon: Program | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="lab-docker-"))

    def version(self) -> str:
        """The version of the daemon."""
        return said(["dockerd", "--version"])

    def note(self) -> str:
        """What is not compared."""
        return "a container on the machine's network, whose image is on the machine and empty"

    def _docker(self, *args: str) -> list[str]:
        return ["docker", "--host", f"unix://{self.folder}/docker.sock", *args]

    def _answers(self) -> bool:
        if self.daemon is not None and self.daemon.process.poll() is not None:
            raise NotInstalled("dockerd does not run here; the log docker.log says why")
        done = subprocess.run(self._docker("version"), capture_output=True, check=False)
        return done.returncode == 0

    def _start_daemon(self, into: Path) -> None:
        if shutil.which("dockerd") is None or os.geteuid() != 0:
            raise NotInstalled("docker needs root and the program dockerd")
        command = ["dockerd", "--host", f"unix://{self.folder}/docker.sock", "--bridge", "none"]
        command += ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        command += ["--pidfile", f"{self.folder}/docker.pid", "--iptables=false"]
        self.daemon = Program(command, self.logs / "docker.log", is_logged=True)
        wait_for("dockerd", READY_S_MAX, self._answers, 0.2)
        self._root(into, self.folder / "root")
        archive = self.folder / "root.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(self.folder / "root", ".")
        command = self._docker("import", str(archive), self.IMAGE)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"docker import failed: {done.stderr.strip()}")

    def programs(self, into: Path, runtime: str, env: dict[str, str], log: Path) -> list[Program]:
        """Runs the native server in a container."""
        if self.daemon is None:
            self._start_daemon(into)
        run = ["run", "--rm", "--name", self._id(into), "--network", "host", "--workdir", str(into)]
        for folder in self._folders(into):
            run += ["--volume", f"{folder}:{folder}:ro"]
        for name, value in env.items():
            run += ["--env", f"{name}={value}"]
        command = self._docker(*run, self.IMAGE, *self._command(runtime))
        return [Program(command, log, is_logged=True)]

    def stop(self, programs: Sequence[Program], into: Path) -> None:
        """Removes the container."""
        command = self._docker("rm", "--force", self._id(into))
        subprocess.run(command, capture_output=True, check=False)
        Native.stop(self, programs, into)

    def close(self) -> None:
        """Ends the containers and the daemon."""
        super().close()
        if self.daemon is not None:
            self.daemon.stop()
            self.daemon = None
            # The daemon leaves this mount behind.
            names = str(self.folder / "exec" / "netns" / "default")
            subprocess.run(["umount", names], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Plane(Peer):
    """The data plane of another platform, in a folder that the user names: a checkout of its
    sources in which it has been built."""

    #: How to build it in its checkout, as documentation and in errors.
    build: str
    #: The port that it always uses; 0 if it can be told.
    fixed_port = 0
    offers = frozenset({"threads"})

    def __init__(self, services: Services, work: Path, logs: Path, folder: Path) -> None:
        super().__init__(services, work, logs)
        self.folder = folder

    @property
    def how(self) -> str:  # type: ignore[override]
        """How to get it."""
        return f"in a checkout of its sources: {self.build}"

    def version(self) -> str:
        """The version of the checkout."""
        return said(["git", "describe", "--tags", "--always"], self.folder)

    def port(self) -> int:
        """Its fixed port, if nothing uses it."""
        if not self.fixed_port:
            return free_port()
        if is_listening(self.fixed_port):
            raise PortInUse(f"{self.name} needs port {self.fixed_port}, which is in use")
        return self.fixed_port

    def programs(self, into: Path, runtime: str, env: dict[str, str], log: Path) -> list[Program]:
        """Its output goes to the log, as it would to the log of its container."""
        command = [*self.commands[runtime], *self.prepare(into, env, int(env["PORT"]))]
        return [Program(command, log, env=env, cwd=into, inherits=False, is_logged=True)]


def await_port(port: int, who: str) -> None:
    """Waits until a program listens on a second port."""
    wait_for(f"{who}: listening on port {port}", READY_S_MAX, lambda: is_listening(port))


def post(url: str, value: object) -> None:
    """Posts JSON, and raises an error if the answer is not a success."""
    request = urllib.request.Request(url, json.dumps(value).encode(), JSON)
    try:
        with urllib.request.urlopen(request, timeout=SPECIALIZE_S_MAX):
            return
    except OSError as error:
        raise Failed(f"POST {url}: {error}") from None


class OpenWhisk(Plane):
    """OpenWhisk's Node runtime: what runs in the container of an action."""

    name, adapter, fixed_port = "openwhisk", "openwhisk", 8080
    build = "cd core/nodejsActionBase && npm install --omit=dev"

    def __init__(self, services: Services, work: Path, logs: Path, folder: Path) -> None:
        super().__init__(services, work, logs, folder)
        self.needs = folder / "core" / "nodejsActionBase" / "app.js"
        self.commands = {"node": ("node", str(self.needs))}

    def note(self) -> str:
        """What is not compared."""
        return (
            "the runtime in an action's container, with concurrent activations on; without API"
            " gateway, controller, Kafka and invoker"
        )

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Lets calls overlap, as they do in the other runtimes."""
        self.require_file()
        env["__OW_ALLOW_CONCURRENT"] = "true"
        return []

    def specialize(self, into: Path, env: Mapping[str, str], port: int) -> None:
        """Gives the action its code."""
        code = (into / "handler.js").read_text()
        names = {"WORKLOAD_FILE": str(into / "workload.mjs")}
        value = {"name": "f", "main": "main", "code": code, "binary": False, "env": names}
        post(f"http://127.0.0.1:{port}/init", {"value": value})

    def function(self, name: str, port: int) -> Function:
        """An activation is a POST with the parameters."""
        return Function(name, f"http://127.0.0.1:{port}/run", body='{"value":{}}')


class Fission(Plane):
    """Fission's Node environment: what runs in the pod of a function."""

    name, adapter = "fission", "fission"
    build = "cd nodejs && npm install --omit=dev"

    def __init__(self, services: Services, work: Path, logs: Path, folder: Path) -> None:
        super().__init__(services, work, logs, folder)
        self.needs = folder / "nodejs" / "server.js"
        self.commands = {"node": ("node", str(self.needs))}

    def note(self) -> str:
        """What is not compared."""
        return "the environment in a function's pod, with its default log; without the router"

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """The port."""
        self.require_file()
        return ["--port", str(port)]

    def specialize(self, into: Path, env: Mapping[str, str], port: int) -> None:
        """Gives the environment its function."""
        value = {"filepath": str(into / "handler.mjs"), "functionName": ""}
        post(f"http://127.0.0.1:{port}/v2/specialize", value)


class Nuclio(Plane):
    """Nuclio's processor with its Node runtime: what runs in the container of a function."""

    name, adapter = "nuclio", "nuclio"
    build = "go build -o processor ./cmd/processor"

    def __init__(self, services: Services, work: Path, logs: Path, folder: Path) -> None:
        super().__init__(services, work, logs, folder)
        self.needs = folder / "processor"
        self.wrapper = folder / "pkg" / "processor" / "runtime" / "nodejs" / "js" / "wrapper.js"
        self.commands = {"node": (str(self.needs),)}

    def note(self) -> str:
        """What is not compared."""
        return "the processor with one worker, its default; without ingress"

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Writes the configuration."""
        self.require_file()
        env["NUCLIO_NODEJS_WRAPPER_PATH"] = str(self.wrapper)
        env["NUCLIO_HANDLER_DIR"] = str(into)
        config = {
            "metadata": {"name": into.name, "namespace": "nuclio"},
            "spec": {
                "runtime": "nodejs",
                "handler": "handler.js:handler",
                "triggers": {
                    "http": {
                        "kind": "http",
                        "numWorkers": 1,
                        "workerAvailabilityTimeoutMilliseconds": 10_000,
                        "url": f"127.0.0.1:{port}",
                    }
                },
            },
        }
        admin = {"webAdmin": {"enabled": False}, "healthCheck": {"enabled": False}}
        # YAML reads JSON.
        (into / "processor.yaml").write_text(json.dumps(config))
        (into / "platform.yaml").write_text(json.dumps(admin))
        return ["--config", "processor.yaml", "--platform-config", "platform.yaml"]


class OfWatchdog(Plane):
    """OpenFaaS's of-watchdog: in its mode `http` in front of the native server, otherwise with a
    program per call."""

    name, adapter = "of-watchdog", "native"
    build = "go build -o of-watchdog ."
    #: The port of its metrics, which no setting changes.
    METRICS = 8081

    def __init__(self, services: Services, work: Path, logs: Path, folder: Path) -> None:
        super().__init__(services, work, logs, folder)
        self.needs = folder / "of-watchdog"
        self.commands = {"node": (str(self.needs),), "python": (str(self.needs),)}

    def note(self) -> str:
        """What is not compared."""
        return "the watchdog in a function's container; without the gateway"

    def port(self) -> int:
        """A free port, unless another watchdog runs."""
        if is_listening(self.METRICS):
            raise PortInUse(f"{self.name} needs port {self.METRICS}, which is in use")
        return super().port()

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Settings, all of which are environment variables."""
        self.require_file()
        env |= {"port": str(port), "healthcheck_interval": "1s"}
        if env.get("mode", "http") != "http":
            shutil.copy(FOLDER / "adapters" / "program.mjs", into)
            env["fprocess"] = "node program.mjs"
            return []
        inner = free_port()
        runtime = "node" if (into / "server.mjs").exists() else "python"
        env |= {
            "mode": "http",
            "fprocess": " ".join(Native.commands[runtime]),
            "upstream_url": f"http://127.0.0.1:{inner}",
            "PORT": str(inner),
        }
        return []

    def specialize(self, into: Path, env: Mapping[str, str], port: int) -> None:
        """Waits for the server, because the watchdog does not."""
        if env["mode"] == "http":
            await_port(int(env["PORT"]), "the server behind of-watchdog")


class ClassicWatchdog(Plane):
    """OpenFaaS's classic watchdog, which runs a program for each call."""

    name, adapter = "classic-watchdog", "program"
    build = "go build -o fwatchdog ."

    def __init__(self, services: Services, work: Path, logs: Path, folder: Path) -> None:
        super().__init__(services, work, logs, folder)
        self.needs = folder / "fwatchdog"
        self.commands = {"node": (str(self.needs),)}

    def note(self) -> str:
        """What is not compared."""
        return "the watchdog in a function's container; without the gateway"

    def prepare(self, into: Path, env: dict[str, str], port: int) -> list[str]:
        """Settings, all of which are environment variables."""
        self.require_file()
        env |= {"port": str(port), "metrics_port": str(free_port()), "healthcheck_interval": "1s"}
        env["fprocess"] = "node program.mjs"
        return []


class TinyFaas(Plane):
    """tinyFaaS's reverse proxy, and its handler for Node as a process of this machine."""

    name, adapter, fixed_port = "tinyfaas", "tinyfaas", 8000
    build = (
        "go build -o rproxy ./cmd/rproxy && cd pkg/docker/runtimes/nodejs"
        " && npm install express body-parser"
    )
    offers = frozenset({"threads", "coap"})

    def __init__(self, services: Services, work: Path, logs: Path, folder: Path) -> None:
        super().__init__(services, work, logs, folder)
        self.needs = folder / "rproxy"
        self.runtime = folder / "pkg" / "docker" / "runtimes" / "nodejs"
        self.commands = {"node": ("node", str(self.runtime / "functionhandler.js"))}
        self.manage, self.http, self.coap = free_port(), free_port(), free_port(socket.SOCK_DGRAM)

    def note(self) -> str:
        """What is not compared."""
        return "the reverse proxy and its handler for Node as processes; without Docker"

    def programs(self, into: Path, runtime: str, env: dict[str, str], log: Path) -> list[Program]:
        """The handler, which listens on its fixed port, and the proxy in front of it."""
        self.require_file()
        inside = into / "fn"
        inside.mkdir(exist_ok=True)
        for name in ("index.js", "workload.mjs"):
            if (into / name).exists():
                (into / name).rename(inside / name)
        env["NODE_PATH"] = f"{into}:{self.runtime / 'node_modules'}"
        handler = Program(
            list(self.commands[runtime]), log, env=env, cwd=into, inherits=False, is_logged=True
        )
        ways = [f"http:127.0.0.1:{self.http}", f"coap:127.0.0.1:{self.coap}"]
        command = [str(self.needs), f"127.0.0.1:{self.manage}", *ways]
        return [handler, Program(command, log.with_suffix(".proxy.log"), is_logged=True)]

    def specialize(self, into: Path, env: Mapping[str, str], port: int) -> None:
        """Tells the proxy where the handler is."""
        await_port(self.manage, "the proxy of tinyFaaS")
        post(f"http://127.0.0.1:{self.manage}/", {"name": "f", "ips": ["127.0.0.1"]})
        await_port(self.http, "the proxy of tinyFaaS")

    def function(self, name: str, port: int) -> Function:
        """The proxy's addresses."""
        http, coap = f"http://127.0.0.1:{self.http}/f", f"coap://127.0.0.1:{self.coap}/f"
        return Function(name, http, coap)


#: The peers that the lab starts from installed programs.
INSTALLED: dict[str, type[Native]] = {
    one.name: one for one in (Deno, Bun, Workerd, Uvicorn, Granian, Go, Runc, Docker)
}
#: The data planes, each of which needs `--peer NAME=FOLDER`.
PLANES: dict[str, type[Plane]] = {
    one.name: one for one in (OpenWhisk, Fission, Nuclio, OfWatchdog, ClassicWatchdog, TinyFaas)
}


def target(
    name: str, folders: Mapping[str, Path], services: Services, work: Path, logs: Path
) -> Native:
    """A peer by its name."""
    if name in INSTALLED:
        return INSTALLED[name](services, work, logs)
    if name not in folders:
        how = PLANES[name].build
        raise Failed(f"--target {name} needs --peer {name}=FOLDER, a checkout with: {how}")
    return PLANES[name](services, work, logs, folders[name])
