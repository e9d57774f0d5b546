"""Programs that the lab starts: their output shows when they are ready, and they are ended by
process id."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

READY_S_MAX = 60.0
STOP_S_MAX = 40.0


class Failed(Exception):
    """Something the lab needs did not work; the text says what to do."""


def cargo_profile(binary: Path) -> str:
    """The cargo profile that puts a binary there; only the folder of `dev` has a different name."""
    folder = binary.parent.name
    return "dev" if folder == "debug" else folder


class Program:
    """A program that the lab starts and ends. Use as a context manager."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        inherits: bool = True,
        is_logged: bool = False,
    ) -> None:
        self.name = Path(command[0]).name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = log.open("wb")
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                # A pipe that nobody reads stops a program that prints a line per call.
                stdout=self._log if is_logged else subprocess.PIPE,
                stderr=self._log,
                env={**(os.environ if inherits else {}), **(env or {})},
                cwd=cwd,
            )
        except OSError as error:
            self._log.close()
            raise Failed(f"{command[0]}: {error.strerror}") from error

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def first_line(self, within: float = READY_S_MAX) -> str:
        """The line that the program prints when it is ready."""
        output, end, found = self.process.stdout, time.monotonic() + within, b""
        assert output is not None
        while b"\n" not in found:
            left = end - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                break
            piece = os.read(output.fileno(), 4096)
            if not piece:
                break
            found += piece
        if b"\n" not in found:
            self.stop()
            text = self.log.read_text(errors="replace")[-2000:]
            raise Failed(f"{self.name} did not become ready:\n{text}")
        return found.decode().splitlines()[0]

    def stop(self) -> None:
        """Ends the program, by force if it takes too long."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_for(what: str, within: float, is_there: Callable[[], bool], every: float = 0.01) -> None:
    """Asks until the answer is true."""
    end = time.monotonic() + within
    while not is_there():
        if time.monotonic() > end:
            raise Failed(f"{what}: did not happen within {within:.0f} s")
        time.sleep(every)
