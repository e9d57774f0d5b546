"""Processors that do not fall asleep between calls.

A virtual processor that was idle for a fifth of a second runs up to 40 % slower for the next tenth
(its host saves power), and waking it costs 0.1 ms. Which of two processors fell asleep depends on
where the last call ran: two platforms that are called in turn get unlike shares of it. One loop on
each processor, in a group that runs only where nothing else wants to, keeps them alike.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from motelab.processes import Failed

LOOP = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write("0")
os.sched_setaffinity(0, {int(sys.argv[2])})
print(flush=True)
parent = int(sys.argv[3])
while os.getppid() == parent:
    for _ in range(100000):
        pass
"""


class Awake:
    """Use as a context manager. `why_not` says what kept it from working, where something did."""

    def __init__(self) -> None:
        self.why_not: str | None = None
        self._group: Path | None = None
        self._loops: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Awake:
        try:
            group = _cpu_root() / f"mote-lab-{os.getpid()}"
            group.mkdir()
            self._group = group
            (group / "cpu.idle").write_text("1")
            for cpu in sorted(os.sched_getaffinity(0)):
                self._start(group / "cgroup.procs", cpu)
        except (OSError, Failed) as why:
            self._end()
            self.why_not = f"processors sleep between calls here, and are slow after it: {why}"
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self, procs: Path, cpu: int) -> None:
        command = [sys.executable, "-c", LOOP, str(procs), str(cpu), str(os.getpid())]
        loop = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._loops.append(loop)
        assert loop.stdout is not None
        if not loop.stdout.readline():
            raise Failed(f"no process may be put into {procs.parent}")

    def _end(self) -> None:
        for loop in self._loops:
            loop.kill()
            loop.communicate()
        self._loops.clear()
        if self._group:
            self._group.rmdir()
            self._group = None


def _cpu_root() -> Path:
    """Where groups of the processor controller are made: its own tree (v1) or the one tree (v2)."""
    unified = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        path = Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), before.split()[4]))
        if kind == "cgroup" and "cpu" in options.split(","):
            return path
        if kind == "cgroup2" and "cpu" in (path / "cgroup.controllers").read_text().split():
            unified = path
    if unified is None:
        raise Failed("there is no cpu controller")
    return unified
