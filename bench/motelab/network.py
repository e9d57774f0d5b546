"""Two network namespaces with a link between them that has a delay, loses packets and has a limited
rate: what another machine would be reached over.

The near side is for what is measured, the far side for who calls it. `Link` moves this thread into
the near side, and `beyond` for a moment to the far side; programs start on the side on which their
thread is. A kernel with netem makes the link from a virtual cable, any other from two TUN devices
and the program `relay`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from motelab import relay
from motelab.processes import Failed
from motelab.relay import HELD_MAX, Conditions

#: Addresses for benchmarks (RFC 2544).
NEAR, FAR = "198.18.0.1", "198.18.0.2"
DEVICE = "link"
CLONE_NEWNET = 0x40000000
TUN, TUNSETIFF, IFF_TUN, IFF_NO_PI = "/dev/net/tun", 0x400454CA, 0x0001, 0x1000
#: Packets that a TUN device keeps while the relay does something else.
DEVICE_QUEUE = 10_000
ANSWER_S_MAX = 10.0
FORGET = ("ip", "tcp_metrics", "flush", "all")


def _checked(result: int, what: str) -> None:
    if result:
        raise Failed(f"cannot {what}: {os.strerror(ctypes.get_errno())}; this needs root")


def enter(descriptor: int) -> None:
    """Moves this thread into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.setns(descriptor, CLONE_NEWNET), "enter the network namespace")


def _own() -> int:
    """The network namespace of this thread."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _new() -> int:
    """Moves this thread into a new network namespace, in which it reaches only itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(CLONE_NEWNET), "make a network namespace")
    _run("ip", "link", "set", "dev", "lo", "up")
    # Otherwise IPv6 announces itself on the link, and its packets count as somebody's.
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    return _own()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)} failed: {done.stderr.strip()}")


def has_netem() -> bool:
    """Whether this kernel has netem; tried in the thread's own network namespace."""
    probe = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    if not shutil.which("tc") or subprocess.run(probe, capture_output=True, check=False).returncode:
        return False
    _run("tc", "qdisc", "del", "dev", "lo", "root")
    return True


def netem(conditions: Conditions) -> list[str]:
    """The words that give netem the conditions."""
    words = ["netem", "limit", str(HELD_MAX), "delay", f"{conditions.delay_s * 1e6:.0f}us"]
    words += ["loss", "random", f"{conditions.loss * 100:g}%"]
    # Without a rate, netem keeps the previous one; 0 is no limit.
    return [*words, "rate", f"{conditions.rate_bit_s or 0:.0f}bit"]


def _tun() -> int:
    """A TUN device in this thread's network namespace; it lives as long as its descriptor."""
    try:
        device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        wish = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(device, TUNSETIFF, wish)
    except OSError as error:
        raise Failed(f"{TUN}: {error.strerror}: the link needs netem or TUN devices") from error
    _run("ip", "link", "set", "dev", DEVICE, "txqueuelen", str(DEVICE_QUEUE))
    return device


class Link:
    """Use as a context manager; this thread is on the near side meanwhile."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self.kind = ""

    def __enter__(self) -> Link:
        if os.geteuid() or not shutil.which("ip"):
            raise Failed("a link between two networks needs root and `ip`")
        with contextlib.ExitStack() as ends:
            home = _own()
            ends.callback(os.close, home)
            ends.callback(enter, home)
            self._far = _new()
            ends.callback(os.close, self._far)
            self._near = _new()
            ends.callback(os.close, self._near)
            self.kind = "netem" if has_netem() else "relay"
            if self.kind == "netem":
                self._lay_cable(ends)
            else:
                self._start_relay(ends)
            with self.beyond():
                self._address(FAR)
            self._address(NEAR)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _lay_cable(self, ends: contextlib.ExitStack) -> None:
        with self.beyond():
            holder = subprocess.Popen(["sleep", "infinity"])
        ends.callback(holder.wait)
        ends.callback(holder.kill)
        peer = ["type", "veth", "peer", "name", DEVICE, "netns", str(holder.pid)]
        _run("ip", "link", "add", "name", DEVICE, *peer)
        # A packet is one that a cable would carry.
        small = ["ip", "link", "set", "dev", DEVICE, "gso_max_segs", "1"]
        _run(*small)
        with self.beyond():
            _run(*small)

    def _start_relay(self, ends: contextlib.ExitStack) -> None:
        near = _tun()
        ends.callback(os.close, near)
        with self.beyond():
            far = _tun()
        ends.callback(os.close, far)
        self._relay = subprocess.Popen(
            # The order of the lanes: to the far side, to the near side.
            [sys.executable, relay.__file__, str(near), str(far)],
            pass_fds=(near, far),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        ends.callback(self._end_relay)

    def _end_relay(self) -> None:
        # It ends with its input.
        self._relay.communicate()

    def _address(self, address: str) -> None:
        _run("ip", "addr", "add", f"{address}/30", "dev", DEVICE)
        _run("ip", "link", "set", "dev", DEVICE, "up")

    @contextlib.contextmanager
    def beyond(self) -> Iterator[None]:
        """This thread is on the far side meanwhile."""
        enter(self._far)
        try:
            yield
        finally:
            enter(self._near)

    def change(self, conditions: Conditions) -> list[dict[str, int]]:
        """Sets new conditions for both directions. Returns what happened under the previous ones
        to the far side and to the near side; netem tells nothing."""
        self._forget()
        if self.kind == "netem":
            command = ["tc", "qdisc", "replace", "dev", DEVICE, "root", *netem(conditions)]
            _run(*command)
            with self.beyond():
                _run(*command)
            return []
        assert self._relay.stdin is not None and self._relay.stdout is not None
        self._relay.stdin.write(json.dumps(asdict(conditions)).encode() + b"\n")
        self._relay.stdin.flush()
        if not select.select([self._relay.stdout], [], [], ANSWER_S_MAX)[0]:
            raise Failed("the relay between the two networks does not answer")
        line = self._relay.stdout.readline()
        if not line:
            raise Failed(f"the relay between the two networks ended: {self._relay.wait()}")
        counts: list[dict[str, int]] = json.loads(line)
        return counts

    def sockets(self, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
        """A socket on each side, near and far, bound to the side's address."""
        near = socket.socket(socket.AF_INET, kind)
        near.bind((NEAR, 0))
        with self.beyond():
            far = socket.socket(socket.AF_INET, kind)
            far.bind((FAR, 0))
        return near, far

    def _forget(self) -> None:
        """Connections begin without what the kernel knows about the link from earlier ones."""
        _run(*FORGET)
        with self.beyond():
            _run(*FORGET)

    def round_trips(self, count: int) -> list[float]:
        """Seconds that datagrams take to the near side and back, one after another. The link must
        not lose any."""
        near, far = self.sockets(socket.SOCK_DGRAM)
        found = []
        with near, far:
            for side in (near, far):
                side.settimeout(ANSWER_S_MAX)
            for _ in range(count):
                begun = time.monotonic()
                far.sendto(b"x" * 64, near.getsockname())
                near.sendto(near.recv(64), far.getsockname())
                far.recv(64)
                found.append(time.monotonic() - begun)
        return found

    def most_packets(self, seconds: float) -> float:
        """Small packets per second that pass in one direction when somebody sends as many as
        possible. Sender and receiver use the same processors, so this is a lower bound."""
        near, far = self.sockets(socket.SOCK_DGRAM)
        with near, far:
            near.setblocking(False)
            begun, passed = time.monotonic(), 0
            while (spent := time.monotonic() - begun) < seconds:
                for _ in range(32):
                    far.sendto(b"x" * 64, near.getsockname())
                with contextlib.suppress(BlockingIOError):
                    while near.recv(64):
                        passed += 1
            return passed / spent

    def copied(self, seconds: float) -> float:
        """Bytes per second of a plain copy over TCP to the near side."""
        near, far = self.sockets(socket.SOCK_STREAM)
        with near, far:
            near.listen()
            far.setblocking(False)
            far.connect_ex(near.getsockname())
            taker, _ = near.accept()
            begun, passed, piece = time.monotonic(), 0, bytes(64 << 10)
            with taker:
                taker.setblocking(False)
                while (spent := time.monotonic() - begun) < seconds:
                    select.select([taker], [far], [], 0.1)
                    with contextlib.suppress(BlockingIOError):
                        far.send(piece)
                    with contextlib.suppress(BlockingIOError):
                        passed += len(taker.recv(1 << 20))
            return passed / spent

    def described(self) -> dict[str, Any]:
        """What the link is made of and what it can do: for the record of a run."""
        self.change(Conditions())
        trips = sorted(self.round_trips(200))
        return {
            "kind": self.kind,
            "packets_per_s_max": round(self.most_packets(1.0)),
            "copied_mbit_s_max": round(self.copied(1.0) * 8 / 1e6),
            "round_trip_without_delay_ms": {
                "p50": round(trips[100] * 1e3, 3),
                "p99": round(trips[198] * 1e3, 3),
            },
        }
