"""Load: single calls whose answers are read, and runs of the load engine (`mote bench`)."""

from __future__ import annotations

import http.client
import json
import subprocess
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pandas as pd

from motelab.processes import Failed

NS = 1e-9
#: The head of a call that has a body.
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Call:
    """One call and its answer; times in seconds of the monotonic clock."""

    begun: float
    ended: float
    status: int
    bytes: int
    body: Any
    timing: dict[str, float]

    @property
    def response_s(self) -> float:
        """The duration of the whole request, as its caller saw it."""
        return self.ended - self.begun

    def row(self) -> dict[str, Any]:
        """The call as a row of the raw table."""
        body = self.body if isinstance(self.body, dict) else {}
        return {
            "intended_s": self.begun,
            "start_s": self.begun,
            "end_s": self.ended,
            "response_s": self.response_s,
            "status": self.status,
            "bytes": self.bytes,
            "worker": body.get("worker", ""),
            "inner_start_s": body.get("start_ns", 0) * NS,
            "inner_end_s": body.get("end_ns", 0) * NS,
            **{f"{name}_ms": value for name, value in self.timing.items()},
        }


def server_timing(text: str) -> dict[str, float]:
    """Milliseconds by name (W3C Server-Timing)."""
    found = {}
    for metric in text.split(","):
        name, _, rest = metric.strip().partition(";")
        for part in rest.split(";"):
            key, _, value = part.partition("=")
            if key.strip() == "dur":
                found[name] = float(value)
    return found


class Client:
    """A persistent connection to one URL."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.parts = urlsplit(url)
        self.connection = http.client.HTTPConnection(self.parts.netloc, timeout=timeout_s)

    def call(self, params: dict[str, str], body: str | None = None) -> Call:
        """Makes one call, a GET or a POST of JSON; an answer declared as JSON is parsed, other
        answers are text."""
        marks = {"start_time": str(time.time()), "uuid": uuid.uuid4().hex}
        query = urlencode({**params, **marks})
        begun = time.monotonic()
        try:
            path = f"{self.parts.path or '/'}?{query}"
            if body is None:
                self.connection.request("GET", path)
            else:
                self.connection.request("POST", path, body, JSON)
            answer = self.connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            return Call(begun, time.monotonic(), 0, 0, f"{type(error).__name__}: {error}", {})
        ended = time.monotonic()
        kind = answer.getheader("content-type") or ""
        found: Any = data.decode(errors="replace")
        # A program that runs once per call sends no type.
        if "json" in kind or found.startswith("{"):
            found = json.loads(data)
        timing = server_timing(answer.getheader("server-timing") or "")
        return Call(begun, ended, answer.status, len(data), found, timing)

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()


def call(url: str, params: dict[str, str], timeout_s: float = 120, body: str | None = None) -> Call:
    """One call on a separate connection."""
    client = Client(url, timeout_s)
    try:
        return client.call(params, body)
    finally:
        client.close()


def at_once(url: str, params: dict[str, str], count: int, timeout_s: float) -> list[Call]:
    """This many calls that begin together, each on a separate connection."""
    barrier = threading.Barrier(count)
    calls: list[Call | None] = [None] * count

    def one(at: int) -> None:
        barrier.wait()
        calls[at] = call(url, params, timeout_s)

    threads = [threading.Thread(target=one, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [done for done in calls if done is not None]


def required(done: Call, what: str) -> Call:
    """Returns the call, whose status must be 200."""
    if done.status != 200:
        raise Failed(f"{what}: status {done.status}: {str(done.body)[:300]}")
    return done


@dataclass(frozen=True)
class Load:
    """A run of the load engine."""

    clients: int
    #: Of each client.
    operations: int | None = None
    duration_s: float | None = None
    #: Operations per second by a schedule; without it, as fast as clients are answered.
    rate: float | None = None
    warmup_s: float = 0.0
    timeout_s: float = 10.0
    #: JSON to POST; without it, calls are GETs.
    body: str | None = None
    #: Whether each operation opens a connection, which the answer ends.
    closes: bool = False


def bench(binary: Path, url: str, load: Load) -> tuple[dict[str, Any], Any]:
    """Makes a run: the report of `mote bench`, and a row per operation with times in seconds."""
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
        raw, report = Path(folder, "raw.csv"), Path(folder, "report.json")
        command = [str(binary), "bench", url, "-c", str(load.clients), "--raw", str(raw)]
        command += ["--save", str(report), "--timeout", f"{load.timeout_s:.0f}", "-q"]
        command += ["--warmup", f"{int(load.warmup_s * 1000)}ms" if load.warmup_s else "0"]
        if load.operations is not None:
            command += ["-n", str(load.operations)]
        else:
            command += ["--duration", f"{int((load.duration_s or 1) * 1000)}ms"]
        if load.rate is not None:
            command += ["--rate", str(load.rate)]
        if load.closes:
            command += ["--header", "Connection: close"]
        if load.body is not None:
            command += ["--data", load.body]
            command += ["--header", ": ".join(next(iter(JSON.items())))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():
            raise Failed(f"{' '.join(command)}:\n{done.stderr.strip()}")
        table = pd.read_csv(raw)
        saved: dict[str, Any] = json.loads(report.read_text())
    rows = pd.DataFrame(
        {
            "intended_s": table.intended_ns * NS,
            "start_s": table.begun_ns * NS,
            "end_s": table.ended_ns * NS,
            "response_s": (table.ended_ns - table.intended_ns) * NS,
            "is_ok": table.outcome == "answered",
            "outcome": table.outcome,
            "bytes": table.bytes,
        }
    )
    for phase in ("queue", "init", "handover", "invoke"):
        rows[f"{phase}_ms"] = table[f"{phase}_ns"] / 1e6
    return saved, rows
