"""Kept connections: the cost of thousands that have each done one request and are now idle."""

from __future__ import annotations

import resource
import socket

from client import connect, get
from node import ROOT, Node, settle
from outcome import Outcome

BAR_KIB = 8.0
CONNECTIONS_MAX = 10_000
FUNCTION = "hello-node"
SETTLE_S = 2.0
SPARE = 200


def measure(node: Node) -> list[Outcome]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A node gives a third of its files to connections, and one address three quarters of these
    # (docs/reference/limits.md).
    files = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    connections = min(CONNECTIONS_MAX, files // 3 * 3 // 4 - SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, connections + SPARE), hard))
    node.deploy(ROOT / "examples" / FUNCTION)
    with connect(node.http) as sock:
        for _ in range(100):
            get(sock, f"/{FUNCTION}").body()
    settle(SETTLE_S)
    before = node.memory_kib()
    sockets: list[socket.socket] = []
    try:
        for _ in range(connections):
            sock = connect(node.http)
            sockets.append(sock)
            answer = get(sock, f"/{FUNCTION}")
            if answer.status != 200 or answer.body() != b"mote":
                raise SystemExit(f"connection {len(sockets)}: {answer.status}")
        settle(SETTLE_S)
        after = node.memory_kib()
        # Still connected: the last thing to say is another answer on the first.
        alive = sum(get(sock, f"/{FUNCTION}").body() == b"mote" for sock in sockets)
    finally:
        for sock in sockets:
            sock.close()
    settle(SETTLE_S)
    released = node.memory_kib()
    each = {key: (after[key] - before[key]) / connections for key in ("VmRSS", "RssAnon")}
    detail = {
        "connections": connections, "alive": alive, "anon_kib_each": each["RssAnon"],
        "before_kib": before, "after_kib": after, "released_kib": released,
    }
    return [
        Outcome("memory of a kept connection", each["VmRSS"], "KiB", BAR_KIB,
                detail=detail),
        Outcome("  of them still served", alive / connections * 100, "%", 100.0, at_least=True),
        Outcome("  node's memory after they closed", released["VmRSS"] / 1024, "MiB"),
    ]
