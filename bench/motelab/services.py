"""The services that workloads use: an S3 store and a static file server, both real."""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from motelab import datasets
from motelab.catalog import ROOT, Workload
from motelab.processes import Failed, Program, cargo_profile, wait_for

STORE = ROOT / ".cache" / "lab-tools" / "bin" / "s3s-fs"
BUCKETS = ("input", "output")
#: Where a sandbox finds a service of this machine that its manifest names.
INSIDE = "127.0.0.1"
#: Number of the system call, the same on every architecture; Python has no name for it.
PIDFD_GETFD = 438


class MissingService(Failed):
    """A service is not installed. Its workloads are left out, and the lab reports that."""


def send_at_once(pid: int) -> None:
    """Makes a server send small pieces at once, which the server does not request itself.

    s3s-fs writes objects in pieces of 8 KiB, and the kernel holds each piece back until the
    previous one is acknowledged. A download then takes 30 or 150 ms, depending on how its reader
    happens to read, and the measurement would attribute this to the platform. Connections inherit
    the setting from their listener.
    """
    libc, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if not str(entry.readlink()).startswith("socket:"):
                continue
            found = libc.syscall(PIDFD_GETFD, process, int(entry.name), 0)
            if found < 0:
                why = os.strerror(ctypes.get_errno())
                raise Failed(f"cannot read the sockets of process {pid}: {why}")
            with socket.socket(fileno=found) as shared:
                if shared.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    shared.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    finally:
        os.close(process)


class S3Store:
    """s3s-fs on a temporary folder, which is removed with it."""

    def __init__(self, log: Path) -> None:
        if not STORE.exists():
            raise MissingService("the S3 store is not built: scripts/lab-setup.sh store builds it")
        self.folder = Path(tempfile.mkdtemp(prefix="lab-store-"))
        self.access_key, self.secret_key = "lab", secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = [str(STORE), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--access-key", self.access_key, "--secret-key", self.secret_key]
        self.program = Program([*command, str(self.folder)], log)
        try:
            wait_for("the S3 store", 20, self._is_up)
            send_at_once(self.program.pid)
            for bucket in BUCKETS:
                self.client().create_bucket(Bucket=bucket)
        except Failed:
            self.stop()
            raise

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def client(self) -> Any:
        """A client with the store's keys."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )

    def put(self, path: Path) -> None:
        """Stores an input object, with its MD5 next to it."""
        client = self.client()
        try:
            client.head_object(Bucket="input", Key=path.name)
        except ClientError:
            digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            client.upload_file(
                str(path), "input", path.name, ExtraArgs={"Metadata": {"md5": digest}}
            )

    def count(self, bucket: str) -> int:
        """Objects in a bucket."""
        return int(self.client().list_objects_v2(Bucket=bucket).get("KeyCount", 0))

    def stop(self) -> None:
        """Ends the store and removes what it stored."""
        self.program.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class StaticServer:
    """Pages and the JSON file."""

    def __init__(self, binary: Path, folder: Path, log: Path) -> None:
        if not binary.exists():
            raise MissingService(
                f"{binary} is missing: cargo build --profile {cargo_profile(binary)}"
                " -p mote-bench-peers"
            )
        self.program = Program([str(binary), str(folder)], log)
        self.port = int(self.program.first_line())

    def stop(self) -> None:
        """Ends the server."""
        self.program.stop()


class Services:
    """Services that are started on first use and ended together."""

    def __init__(self, cache: Path, binaries: Path, logs: Path) -> None:
        self.cache, self.binaries, self.logs = cache, binaries, logs
        self._store: S3Store | None = None
        self._static: dict[str, StaticServer] = {}

    def store(self) -> S3Store:
        """The S3 store."""
        if self._store is None:
            self._store = S3Store(self.logs / "s3.log")
        return self._store

    def static(self, profile: str) -> StaticServer:
        """The file server with a profile's data."""
        if profile not in self._static:
            folder = datasets.make_static(self.cache, profile)
            binary = self.binaries / "bench_static"
            self._static[profile] = StaticServer(binary, folder, self.logs / "static.log")
        return self._static[profile]

    def environment(
        self, workload: Workload, profile: str, host: str, outside: str = "127.0.0.1"
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """The environment variables of a workload, and the addresses to which it may connect:
        the servers are at `host` for the workload, and at `outside` for the platform that
        connects it."""
        env, net = {}, []
        if "s3" in workload.needs:
            store = self.store()
            store.put(datasets.make_object(self.cache, workload.name, profile))
            env["S3_ENDPOINT"] = f"http://{host}:{store.port}"
            env["S3_ACCESS_KEY"], env["S3_SECRET_KEY"] = store.access_key, store.secret_key
            net.append(f"{outside}:{store.port}")
        if "static" in workload.needs:
            port = self.static(profile).port
            env["PAGES_URL"] = f"http://{host}:{port}/"
            env["JSON_LINK"] = f"http://{host}:{port}/{datasets.STATIC[0].format(profile)}"
            net.append(f"{outside}:{port}")
        return env, tuple(net)

    def stop(self) -> None:
        """Ends all."""
        if self._store:
            self._store.stop()
        for server in self._static.values():
            server.stop()
        self._store, self._static = None, {}
