"""A run of wrk, and what it printed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass


@dataclass
class Wrk:
    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    #: Answers with another status than 2xx and 3xx, and errors of sockets.
    errors: int


def milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"(-?[\d.]+)(us|ms|s|m|h)", text).groups()
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[unit]


def wrk(url: str, connections: int, seconds: float, *flags: str) -> Wrk:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{int(seconds)}s", "--latency", *flags, url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    sockets = re.search(r"Socket errors: (.*)", text)
    lost = sum(int(n) for n in re.findall(r"\d+", sockets.group(1))) if sockets else 0
    quantile = lambda share: re.search(rf"^ +{share}% +(\S+)", text, re.MULTILINE).group(1)
    return Wrk(
        requests=int(re.search(r"(\d+) requests in", text).group(1)),
        per_second=float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1)),
        p50_ms=milliseconds(quantile(50)),
        p99_ms=milliseconds(quantile(99)),
        errors=(int(wrong.group(1)) if wrong else 0) + lost,
    )
