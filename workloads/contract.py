"""What every workload is given and what every answer holds, whatever platform calls it.

A workload is a module with `NAME`, `VERSION` and `run(params, ctx) -> dict`. `respond` calls it and
adds the fields that are the same everywhere. Standard library only; adapters are in `adapters/`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

#: Process ids repeat, as sandboxes have their own: this half tells copies apart.
INSTANCE = secrets.token_hex(4)


class CheckFailed(Exception):
    """The work was not done, or wrongly. Fails the call."""


class Missing(Exception):
    """A parameter or a variable of the environment that the workload needs."""


_s3_clients: dict[int, Any] = {}


class Context:
    """What surrounds one call. Removes the private folder of the call at its end, also on error."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.environ = environ
        self._folder: Path | None = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def folder(self) -> Path:
        """A fresh folder nobody else uses."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="work-"))
        return self._folder

    def setting(self, name: str) -> str:
        """A variable of the environment."""
        value = self.environ.get(name)
        if not value:
            raise Missing(f"{name}: not set; workloads find their endpoints in the environment")
        return value

    def s3(self) -> Any:
        """A client of the object store; one per process."""
        import boto3
        from botocore.config import Config

        client = _s3_clients.get(os.getpid())
        if client is None:
            client = boto3.client(
                "s3",
                endpoint_url=self.setting("S3_ENDPOINT"),
                aws_access_key_id=self.setting("S3_ACCESS_KEY"),
                aws_secret_access_key=self.setting("S3_SECRET_KEY"),
                region_name=self.environ.get("S3_REGION", "us-east-1"),
                config=Config(s3={"addressing_style": "path"}),
            )
            _s3_clients[os.getpid()] = client
        return client


def number(params: Mapping[str, str], name: str) -> int:
    """A whole number above zero."""
    text = params.get(name, "")
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise Missing(f"{name}: a whole number above 0, and not {text!r}")
    return int(text)


def text(params: Mapping[str, str], name: str) -> str:
    """A parameter that is there."""
    if not params.get(name):
        raise Missing(f"{name}: not given")
    return params[name]


def require(holds: bool, what: str) -> None:
    """Fails the call unless the work shows what it must."""
    if not holds:
        raise CheckFailed(what)


def respond(
    workload: ModuleType, query: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> tuple[int, dict[str, Any]]:
    """Runs a workload: status and body. Errors other than a wrong check or a wrong parameter are
    the platform's to report."""
    started = time.monotonic_ns()
    body: dict[str, Any] = {}
    status = 200
    try:
        with Context(environ) as ctx:
            body = dict(workload.run(query, ctx))
    except CheckFailed as failed:
        status, body = 500, {"error": f"check failed: {failed}"}
    except Missing as missing:
        status, body = 400, {"error": str(missing)}
    body |= {
        "test_name": workload.NAME,
        "start_time": query.get("start_time", ""),
        "uuid": query.get("uuid", ""),
        "workload_version": workload.VERSION,
        "start_ns": started,
        "end_ns": time.monotonic_ns(),
        "worker": f"{os.getpid()}-{INSTANCE}",
    }
    return status, body
