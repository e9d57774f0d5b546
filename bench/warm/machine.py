"""The environment in which a result was measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from node import ROOT


def machine() -> dict:
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text()).group(1))
    asked = {"capture_output": True, "text": True}
    return {
        "cpu": model.group(1) if model else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory // 1024,
        "kernel": os.uname().release,
        "load_before": os.getloadavg(),
        "python": sys.version.split()[0],
        "node": subprocess.run(["node", "--version"], **asked).stdout.strip(),
        "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT,
                                 **asked).stdout.strip(),
    }
