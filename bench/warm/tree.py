"""The memory and the processor time of a process and of all that descend from it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path


def processes(root: int) -> set[int]:
    """A process and all that descend from it and still run."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = set(), [root]
    while left:
        pid = left.pop()
        found.add(pid)
        left += children.get(pid, [])
    return found


def pss_mib(pids: set[int]) -> float:
    """The memory of processes together, pages that several share in shares (proc(5),
    smaps_rollup)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            if share := re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE):
                total += int(share[1])
    return total / 1024


def cpu_ns(pids: set[int]) -> int:
    """The processor time of all threads of processes that still run (proc(5), schedstat)."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int(task.read_text().split()[0])
    return total
