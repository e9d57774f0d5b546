"""The environment in which a result was measured."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from motelab.catalog import ROOT

PACKAGES = ("numpy", "scipy", "pandas", "matplotlib", "boto3", "Chameleon", "pillow")


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    except OSError:
        return "not there"
    return (done.stdout.strip().splitlines() or ["not there"])[0]


def machine_ticks() -> tuple[int, int]:
    """Processor time of the machine since its start: busy time, and total time."""
    line = Path("/proc/stat").read_text().split("\n")[0]
    fields = [int(word) for word in line.split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def own_ticks() -> int:
    """Processor time of this process and of what it started, and they, as far as it still runs."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = int(fields[11]) + int(fields[12])
    total = 0
    for pid, ticks in used.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        total += ticks if above == os.getpid() else 0
    return total


def busy_now(seconds: float = 0.5) -> float:
    """How busy other programs keep the machine while the lab does nothing."""
    before = machine_ticks()
    time.sleep(seconds)
    after = machine_ticks()
    return round((after[0] - before[0]) / max(after[1] - before[1], 1), 3)


def now() -> str:
    """The time, RFC 3339 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def record(binary: Path | None = None) -> dict[str, Any]:
    """The machine, and the versions of the programs that take part."""
    info = Path("/proc/cpuinfo").read_text()
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    model = re.search(r"(?:model name|Model)\s*: (.*)", info)
    versions = {name: metadata.version(name) for name in PACKAGES}
    versions |= {"python": sys.version.split()[0], "node": _first_line(["node", "--version"])}
    if binary:
        versions["mote"] = _first_line([str(binary), "--version"])
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int(memory.group(1)) // 1024 if memory else 0,
        "arch": platform.machine(),
        "kernel": platform.release(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
        "busy_before": busy_now(),
        "commit": _first_line(["git", "rev-parse", "--short", "HEAD"]),
        "is_changed": _first_line(["git", "status", "--porcelain", "-uno"]) != "not there",
        "versions": versions,
        "load_from": "the same machine",
    }
