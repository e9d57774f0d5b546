"""A node of mote for the lab: its packages stay in the cache from run to run."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from motelab.processes import Failed, Program, cargo_profile, wait_for

GONE_S_MAX = 60.0
#: The address of this machine that no other machine reaches.
LOOPBACK = "127.0.0.1"
#: The default of the node's setting `function_ports`.
FUNCTION_PORTS = range(30_000, 32_768)
#: Functions whose names begin so stay deployed: an installation goes with its last function.
KEEPER = "keep-"


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A port that nothing uses at the moment."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_function_port() -> int:
    """A TCP port that nothing uses at the moment and that a node gives to functions."""
    for port in FUNCTION_PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Failed(f"every port from {FUNCTION_PORTS[0]} to {FUNCTION_PORTS[-1]} is in use")


class Management(http.client.HTTPConnection):
    """HTTP over the management socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        """Over the Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Node:
    """`mote up` on free ports. Functions of an earlier run are removed at the start."""

    def __init__(
        self, binary: Path, data: Path, logs: Path, *flags: str, host: str = LOOPBACK
    ) -> None:
        """`host` is the address at which the fronts listen; anybody who reaches another one than
        that of loopback may call the functions."""
        if not binary.exists():
            profile = cargo_profile(binary)
            raise Failed(f"{binary} is missing: cargo build --profile {profile} -p mote")
        self.binary = binary
        data.mkdir(parents=True, exist_ok=True)
        data.chmod(0o755)  # functions run as users of their own
        self.folder = Path(tempfile.mkdtemp(prefix="lab-node-"))
        self.socket = self.folder / "s"
        self.http, self.coap = free_port(), free_port(socket.SOCK_DGRAM)
        command = [str(binary), "up", "--data", str(data), "--socket", str(self.socket)]
        command += ["--http", f"{host}:{self.http}", "--coap", f"{host}:{self.coap}"]
        if host != LOOPBACK:
            command += ["--lan", "--access", "public"]
        self.program = Program([*command, *flags], logs / "node.log")
        self.program.first_line()
        for name in self.functions():
            if name.startswith(KEEPER):
                continue
            self.mote("remove", name, "--yes")

    def mote(self, *args: str) -> str:
        """A command of the command line."""
        env = {**os.environ, "MOTE_SOCKET": str(self.socket)}
        env.pop("MOTE_NODE", None)
        done = subprocess.run(
            [str(self.binary), *args], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"mote {' '.join(args)} failed:\n{done.stderr.strip()}")
        return done.stdout

    def functions(self) -> list[str]:
        """Names of the deployed functions."""
        return [row["name"] for row in self.get("/v1/functions")["functions"]]

    def ask(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request to the management API: status, fields and body."""
        connection = Management(self.socket)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, fields, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """JSON of the management API."""
        status, _, body = self.ask("GET", path)
        if status != 200:
            raise Failed(f"GET {path}: {status} {body[:200]!r}")
        return json.loads(body)

    def instances(self, name: str) -> list[dict[str, Any]]:
        """The existing instances of a function."""
        found: list[dict[str, Any]] = self.get(f"/v1/functions/{name}")["instances"]
        return [one for one in found if one["state"] not in ("stopped", "failed")]

    def to_zero(self, name: str) -> None:
        """Stops a function's instances and waits until they are gone."""
        self.mote("scale", name, "0")
        wait_for(f"{name} at zero", GONE_S_MAX, lambda: not self.instances(name))

    def stop(self) -> None:
        """Ends the node."""
        self.program.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
