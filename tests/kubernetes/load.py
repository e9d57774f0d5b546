"""Calls functions of a cluster and counts; runs on a node of the cluster.

Usage: load.py first URL             waits for the first answer; prints its body
       load.py steady PATH FOLDER    calls with a new connection for each request, until FOLDER/stop
                                     exists; then writes FOLDER/result.json

`steady` calls the pods that FOLDER/endpoints names, in turn and without repeating a call, as a proxy
for Ingress does. It does not use the address of the Service: from the node itself, about one of 3,000
connections to that address is not translated by the packet filter of this kernel, also when nothing
changes.

The function answers with the number of its revision. FOLDER/newest has the number that every answer
must at least have, and FOLDER/stage the word under which failures are counted.
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

#: A call that takes longer has failed.
PATIENCE = 20.0
THREADS = 8


def call(url: str, patience: float = PATIENCE) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=patience
    )
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        body = answer.read().decode()
        # Without this, each port waits a minute before it can be used again, and after 28,000 calls
        # in a minute there is none left.
        if connection.sock:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return answer.status, body
    finally:
        connection.close()


def first(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            status, body = call(url, 1)
            if status == 200:
                print(body)
                return
        except OSError:
            pass
        if time.monotonic() > end:
            raise SystemExit(f"{url} did not answer")
        time.sleep(0.005)


def word(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


class Steady:
    def __init__(self, path: str, folder: Path) -> None:
        self.path = path
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.lock = threading.Lock()
        self.newest = 0
        self.stage = ""
        self.endpoints: list[str] = []
        self.turn = itertools.count()
        self.ended = False
        self.slowest: dict[str, float] = {}

    def look(self) -> None:
        """What the test says, read by one thread."""
        while not self.ended:
            self.newest = int(word(self.folder / "newest") or 0)
            self.stage = word(self.folder / "stage")
            self.endpoints = word(self.folder / "endpoints").split()
            self.ended = (self.folder / "stop").exists()
            time.sleep(0.01)

    def calls(self) -> None:
        while not self.ended:
            least, stage, endpoints = self.newest, self.stage, self.endpoints
            if not endpoints:
                time.sleep(0.01)
                continue
            endpoint = endpoints[next(self.turn) % len(endpoints)]
            since = time.monotonic()
            problem = ""
            try:
                status, body = call(f"http://{endpoint}{self.path}")
                if status != 200:
                    problem = f"status {status}: {body[:200]}"
                elif int(body) < least:
                    problem = f"revision {body} answered after {least} was live"
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            took = time.monotonic() - since
            with self.lock:
                self.counts[stage] += 1
                self.slowest[stage] = max(took, self.slowest.get(stage, 0))
                if problem:
                    self.counts[f"failed in {stage}"] += 1
                    said = f"{stage}: {endpoint} after {took:.2f} s: {problem}"
                    self.failures.append(said)

    def run(self) -> None:
        threads = [threading.Thread(target=self.calls) for _ in range(THREADS)]
        threads.append(threading.Thread(target=self.look))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        result = {
            "counts": dict(self.counts),
            "failures": self.failures[:200],
            "slowest": self.slowest,
        }
        (self.folder / "result.json").write_text(json.dumps(result))


def main() -> None:
    verb, *rest = sys.argv[1:] or [""]
    if verb == "first" and len(rest) == 1:
        first(rest[0])
    elif verb == "steady" and len(rest) == 2:
        Steady(rest[0], Path(rest[1])).run()
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
