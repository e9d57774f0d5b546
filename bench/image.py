"""First answers of an image's server at zero, in alternation with the bare program, crun, Docker.

A static HTTP server is the only file of an image. Every round asks each contestant once, from its
start to its first answer: the program itself as a process; the program as a function; the image
as a function; `crun run` of the same root; and `docker run`, if Docker's daemon works on this
machine. See bench/README.md.

Usage: image.py [--rounds N] [--docker-rounds N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from client import connect, get  # noqa: E402
from machine import machine  # noqa: E402
from node import Node, free_port  # noqa: E402
from outcome import Outcome, exit_status  # noqa: E402

from cold import IDLE, Api, call, spread  # noqa: E402

ABOVE_PROGRAM_MS_BAR = 10.0
OF_CRUN_BAR = 0.5
OF_DOCKER_BAR = 0.1
ANSWER_S_MAX = 20

SERVER = r"""
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The smallest HTTP server: it answers each connection once. */
int main(void) {
  static const char answer[] =
    "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nmote";
  char request[65536];
  int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  const char *port = getenv("PORT");
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port ? atoi(port) : 8080)};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (void *)&at, sizeof at) || listen(listener, 64)) return 1;
  for (;;) {
    int caller = accept(listener, 0, 0);
    if (caller < 0) continue;
    size_t have = 0;
    ssize_t got;
    while ((got = read(caller, request + have, sizeof request - have - 1)) > 0) {
      have += got;
      request[have] = 0;
      if (strstr(request, "\r\n\r\n")) {
        if (write(caller, answer, sizeof answer - 1) < 0) break;
        shutdown(caller, SHUT_WR);
        break;
      }
    }
    close(caller);
  }
}
"""


def build(folder: Path) -> Path:
    source = folder / "server.c"
    source.write_text(SERVER)
    program = folder / "root" / "server"
    program.parent.mkdir()
    subprocess.run(["cc", "-O2", "-static", "-o", str(program), str(source)], check=True)
    return program


def image(folder: Path, program: Path) -> Path:
    """An archive as `docker save` writes it."""
    archive = folder / "hello.tar"
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(program, "server")
    digest = subprocess.run(
        ["sha256sum", str(layer)], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "config": {"Entrypoint": ["/server"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    )
    (folder / "config.json").write_text(config)
    (folder / "manifest.json").write_text(
        json.dumps([{"Config": "config.json", "RepoTags": ["hello:1"], "Layers": ["layer.tar"]}])
    )
    with tarfile.open(archive, "w") as tar:
        for name in ("config.json", "manifest.json", "layer.tar"):
            tar.add(folder / name, name)
    return archive


def answered(port: int) -> None:
    end = time.monotonic() + ANSWER_S_MAX
    while True:
        try:
            with connect(port) as sock:
                if get(sock, "/").status == 200:
                    return
        except OSError:
            pass
        if time.monotonic() > end:
            raise SystemExit("a server did not answer")
        time.sleep(0.0002)


def started(
    command: list[str], environment: dict[str, str], end: Callable[[], None] | None
) -> float:
    """Milliseconds from the start of a command to the first answer of the server that it starts."""
    port = free_port()
    since = time.perf_counter()
    child = subprocess.Popen(
        [part.replace("PORT_HERE", str(port)) for part in command],
        env={**environment, "PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    answered(port)
    took = (time.perf_counter() - since) * 1e3
    end() if end else child.kill()
    child.wait()
    return took


class Crun:
    """A bundle with the image's root, in the machine's network so that the caller reaches it."""

    def __init__(self, folder: Path) -> None:
        self.bundle = folder / "bundle"
        self.id = f"mote-image-{os.getpid()}"
        shutil.copytree(folder / "root", self.bundle / "rootfs")
        for inside in ("proc", "dev", "tmp"):
            (self.bundle / "rootfs" / inside).mkdir()

    def first_answer(self) -> float:
        port = free_port()
        config = {
            "ociVersion": "1.0.0",
            "process": {
                "args": ["/server"],
                "cwd": "/",
                "noNewPrivileges": True,
                "user": {"uid": 1000, "gid": 1000},
                "env": [f"PORT={port}"],
            },
            "root": {"path": "rootfs", "readonly": True},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/tmp",
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["nosuid", "nodev", "size=16m", "mode=1777"],
                },
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            ],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
                "cgroupsPath": f"/{self.id}",
                "resources": {"memory": {"limit": 128 << 20}, "pids": {"limit": 64}},
            },
        }
        (self.bundle / "config.json").write_text(json.dumps(config))
        since = time.perf_counter()
        child = subprocess.Popen(
            ["crun", "--cgroup-manager=cgroupfs", "run", "--bundle", str(self.bundle), self.id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        answered(port)
        took = (time.perf_counter() - since) * 1e3
        subprocess.run(["crun", "--cgroup-manager=cgroupfs", "kill", self.id, "KILL"], check=True)
        child.wait()
        return took


class Docker:
    """A daemon of its own, or nothing where it does not work."""

    def __init__(self, folder: Path, archive: Path) -> None:
        self.host = f"unix://{folder}/docker.sock"
        self.daemon = subprocess.Popen(
            [
                "dockerd",
                "--host",
                self.host,
                "--data-root",
                str(folder / "docker"),
                "--exec-root",
                str(folder / "docker-exec"),
                "--pidfile",
                str(folder / "docker.pid"),
                "--bridge",
                "none",
                "--iptables=false",
            ],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "dockerd.log").open("w"),
        )
        end = time.monotonic() + ANSWER_S_MAX
        self.works = False
        while not self.works and time.monotonic() < end and self.daemon.poll() is None:
            time.sleep(0.2)
            self.works = self.run("version").returncode == 0
        self.works = self.works and self.run("load", "--input", str(archive)).returncode == 0
        if not self.works:
            print("docker left out:", (folder / "dockerd.log").read_text()[-400:], file=sys.stderr)

    def run(self, *args: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["docker", "--host", self.host, *args], capture_output=True, text=True
        )

    def first_answer(self) -> float:
        def end() -> None:
            self.run("rm", "--force", "hello")

        return started(
            [
                "docker",
                "--host",
                self.host,
                "run",
                "--name",
                "hello",
                "--network",
                "host",
                "--env",
                "PORT=PORT_HERE",
                "hello:1",
            ],
            dict(os.environ),
            end,
        )

    def stop(self) -> None:
        self.daemon.terminate()
        self.daemon.wait()


def compare(folder: Path, rounds: int, docker_rounds: int) -> list[Outcome]:
    program = build(folder)
    archive = image(folder, program)
    code = folder / "program"
    code.mkdir()
    shutil.copy(program, code / "server")
    (code / "mote.toml").write_text(
        'version = 1\nname = "program"\nruntime = "server"\ncommand = ["./server"]\n' + IDLE
    )
    of_image = folder / "image"
    of_image.mkdir()
    shutil.copy(archive, of_image / "hello.tar")
    (of_image / "mote.toml").write_text(
        'version = 1\nname = "image"\nimage = "./hello.tar"\n' + IDLE
    )
    crun, docker = Crun(folder), Docker(folder, archive)
    times: dict[str, list[float]] = {}
    try:
        with Node() as node:
            api = Api(node.socket)
            node.deploy(code, of_image)
            for at in range(rounds):
                times.setdefault("bare", []).append(started([str(program)], {}, None))
                for name in ("program", "image"):
                    api.wait(name, [])
                    times.setdefault(name, []).append(call(node, name)[0])
                times.setdefault("crun", []).append(crun.first_answer())
                if docker.works and at < docker_rounds:
                    times.setdefault("docker", []).append(docker.first_answer())
    finally:
        docker.stop()
    medians = {name: statistics.median(found) for name, found in times.items()}
    outcomes = [
        Outcome(
            "image above the program",
            medians["image"] - medians["bare"],
            "ms",
            ABOVE_PROGRAM_MS_BAR,
        ),
        Outcome("image over crun", medians["image"] / medians["crun"], "", OF_CRUN_BAR),
    ]
    if "docker" in medians:
        outcomes.append(
            Outcome("image over docker", medians["image"] / medians["docker"], "", OF_DOCKER_BAR)
        )
    labels = {
        "bare": "the program, as a process",
        "program": "the program, as a function",
        "image": "the image, as a function",
        "crun": "crun run",
        "docker": "docker run",
    }
    return outcomes + [
        Outcome(labels[name], medians[name], "ms", detail=spread(found))
        for name, found in times.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-image", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="starts of each kind")
    parser.add_argument("--docker-rounds", type=int, default=20, help="starts with Docker")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mote-image"))
    folder.chmod(0o755)
    started_at = datetime.datetime.now(datetime.UTC)
    try:
        described = machine()
        outcomes = compare(folder, options.rounds, options.docker_rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for outcome in outcomes:
        print(outcome.line())
    path = HERE / "results" / started_at.strftime("image-%Y-%m-%dT%H%M%SZ.json")
    record = {
        "machine": described,
        "rounds": options.rounds,
        "outcomes": [outcome.as_json() for outcome in outcomes],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {path.name}")
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
