"""Bodies of 1 GiB through a node: in, out and both, and the memory they cost the node.

The bytes that arrive are checked by count and hash. Memory is sampled, and the kernel's own peak is
reset before each transfer and read after it, so that no peak between two samples is missed.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from client import Answer, connect, send_post
from node import ROOT, Node, settle
from outcome import Outcome

BAR_MIB = 8.0
PIECE = b"mote" * (64 << 10)
SAMPLE_S = 0.02
SETTLE_S = 0.5
SLOW_BYTES_PER_SECOND = 1 << 20
SLOW_SECONDS = 5
SOCKET_TIMEOUT_S = 120
FUNCTIONS = ("bodies-node", "bodies-python")


@dataclass
class Memory:
    """Samples the node while the block runs; figures are MiB above `idle_kib`."""

    node: Node
    idle_kib: dict[str, int]
    rss_mib: float = 0.0
    anon_mib: float = 0.0
    peak_mib: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Memory:
        settle(SETTLE_S)
        self.node.reset_peak()
        self.thread = threading.Thread(target=self._sample)
        self.thread.start()
        return self

    def _sample(self) -> None:
        while not self.done.wait(SAMPLE_S):
            now = self.node.memory_kib()
            self.rss_mib = max(self.rss_mib, (now["VmRSS"] - self.idle_kib["VmRSS"]) / 1024)
            self.anon_mib = max(self.anon_mib, (now["RssAnon"] - self.idle_kib["RssAnon"]) / 1024)

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()
        self.peak_mib = (self.node.memory_kib()["VmHWM"] - self.idle_kib["VmRSS"]) / 1024


def measure(node: Node, size: int) -> list[Outcome]:
    outcomes = []
    node.deploy(*(ROOT / "bench" / "functions" / name for name in FUNCTIONS))
    settle(SETTLE_S)
    idle = node.memory_kib()  # the functions are there, no body was
    for name in FUNCTIONS:
        for kind, path, sent, received in (
            ("in", "consume", size, 0), ("out", f"produce?bytes={size}", 0, size),
            ("echo", "echo", size, size),
        ):
            with Memory(node, idle) as memory:
                started = time.monotonic()
                transfer(node, f"/{name}/{path}", sent, received)
                seconds = time.monotonic() - started
            outcomes.append(outcome(f"{name}, {size >> 20} MiB {kind}", memory,
                                    size / seconds / (1 << 20)))
        for kind, path, sent in (("out", f"produce?bytes={size}", 0), ("echo", "echo", size)):
            with Memory(node, idle) as memory:
                moved = read_slowly(node, f"/{name}/{path}", sent)
            outcomes.append(outcome(f"{name}, slow reader {kind}", memory, moved / SLOW_SECONDS))
        with Memory(node, idle) as memory:
            transfer(node, f"/{name}/consume", SLOW_SECONDS * SLOW_BYTES_PER_SECOND, paced=True)
        outcomes.append(outcome(f"{name}, slow writer in", memory, SLOW_BYTES_PER_SECOND >> 20))
    return outcomes


def outcome(name: str, memory: Memory, mib_per_second: float) -> Outcome:
    detail = {
        "sampled_rss_mib": memory.rss_mib, "sampled_anon_mib": memory.anon_mib,
        "mib_per_second": mib_per_second,
    }
    return Outcome(name, memory.peak_mib, "MiB", BAR_MIB, detail=detail)


def pieces(size: int, paced: bool = False) -> Iterator[bytes]:
    view = memoryview(PIECE)
    for start in range(0, size, len(PIECE)):
        if paced:
            time.sleep(len(PIECE) / SLOW_BYTES_PER_SECOND)
        yield view[: min(len(PIECE), size - start)]


def expected(size: int) -> str:
    digest = hashlib.sha256()
    for piece in pieces(size):
        digest.update(piece)
    return digest.hexdigest()


def transfer(node: Node, path: str, sent: int, received: int = 0, paced: bool = False) -> None:
    """Sends and receives this many bytes and checks every one of them."""
    with connect(node.http) as sock:
        sock.settimeout(SOCKET_TIMEOUT_S)
        # What is echoed must be read while the rest is still being sent.
        sender = threading.Thread(target=send_post, args=(sock, path, sent, pieces(sent, paced)))
        sender.start()
        answer = Answer(sock)
        if answer.status != 200:
            raise SystemExit(f"{path}: status {answer.status}: {answer.body()!r}")
        if path.endswith("/consume"):
            said = json.loads(answer.body())
            seen, digest, wanted = said["bytes"], said["sha256"], sent
        else:
            hashing, seen, wanted = hashlib.sha256(), 0, received or sent
            for chunk in answer.chunks():
                hashing.update(chunk)
                seen += len(chunk)
            digest = hashing.hexdigest()
        sender.join()
    if seen != wanted or digest != expected(wanted):
        raise SystemExit(f"{path}: {seen} bytes of {wanted}, or not the right ones")


def read_slowly(node: Node, path: str, sent: int) -> float:
    """Reads 1 MiB a second for a while, then disconnects; returns how many MiB it read."""
    with connect(node.http, receive_buffer=64 << 10) as sock:
        sock.settimeout(SOCKET_TIMEOUT_S)
        sender = threading.Thread(target=send_until_closed, args=(sock, path, sent))
        sender.start()
        answer = Answer(sock)
        until = time.monotonic() + SLOW_SECONDS
        taken, began = 0, time.monotonic()
        for chunk in answer.chunks(limit=32 << 10):
            taken += len(chunk)
            time.sleep(max(0.0, began + taken / SLOW_BYTES_PER_SECOND - time.monotonic()))
            if time.monotonic() > until:
                break
        sock.shutdown(2)
        sender.join()
    return taken / (1 << 20)


def send_until_closed(sock: socket.socket, path: str, sent: int) -> None:
    try:
        send_post(sock, path, sent, pieces(sent))
    except OSError:
        pass  # the reader has gone away, as planned
