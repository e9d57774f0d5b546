"""One of our nodes on a temporary folder: started, deployed to, inspected, and ended by process
id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
READY_SECONDS_MAX = 30
STOP_SECONDS_MAX = 40


def binaries(profile: str = "") -> Path:
    """Where cargo puts the measured binaries; MOTE_BENCH_PROFILE names a profile other than
    release."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / (profile or os.environ.get("MOTE_BENCH_PROFILE", "release"))


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Node:
    """`mote up` with everything it needs in a temporary folder. Use as a context manager."""

    def __init__(self, *flags: str, under: tuple[str, ...] = (), binary: str = "",
                 path: str = "", address: str = "127.0.0.1") -> None:
        """`under` is a command that executes what follows it, such as `unshare`; `binary` is a
        build other than that of this tree; `path` is where the node finds interpreters; `address`
        is where its fronts listen."""
        self.folder = Path(tempfile.mkdtemp(prefix="mote-warm"))
        self.folder.chmod(0o755)  # functions run as users of their own
        self.http, self.coap = free_port(), free_port(socket.SOCK_DGRAM)
        self.binary = binary or str(binaries() / "mote")
        admin = self.folder / "s"
        self.socket = str(admin)
        self.environment = {**os.environ, "MOTE_SOCKET": str(admin)}
        self.environment.pop("MOTE_NODE", None)
        if path:
            self.environment["PATH"] = path
        self.log = (self.folder / "log").open("w")
        self.process = subprocess.Popen(
            [*under, self.binary, "up", "--data", str(self.folder / "data"), "--socket", str(admin),
             "--http", f"{address}:{self.http}", "--coap", f"{address}:{self.coap}", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.environment,
        )
        # It says so once it is ready, or closes its output.
        if " is ready in " not in self.process.stdout.readline():
            text = (self.folder / "log").read_text()
            self.stop()
            raise SystemExit(f"the node did not start:\n{text}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def mote(self, *args: str) -> str:
        done = subprocess.run([self.binary, *args], env=self.environment, capture_output=True,
                              text=True)
        if done.returncode:
            raise SystemExit(f"mote {' '.join(args)} failed:\n{done.stderr}")
        return done.stdout

    def deploy(self, *folders: Path) -> None:
        for folder in folders:
            self.mote("deploy", str(folder))

    def memory_kib(self) -> dict[str, int]:
        """Resident memory of the node's own process, without helper and functions."""
        found = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in ("VmRSS", "VmHWM", "RssAnon"):
                found[key] = int(rest.split()[0])
        return found

    def reset_peak(self) -> None:
        """Resets VmHWM to the memory that is resident now (proc(5), clear_refs)."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def settle(seconds: float) -> None:
    """Pauses so that buffers of earlier work are given back; a measurement's pause, not a wait."""
    time.sleep(seconds)
