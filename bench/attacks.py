"""Hostile clients for fairness.py; standard library only.

Each attack is a generator. It yields once when the attack is at full strength, and then after each
bounded step, until its time is over or it receives SIGTERM. Everything stays on loopback. A client
that is refused reconnects, as a hostile one would. At the end the attack prints what it did as
JSON, so that the result can say how strong the attack was.

Usage: attacks.py NAME SECONDS ADDRESS OPTIONS. ADDRESS is the source address of the attack; OPTIONS
is a JSON object with ports by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

STEP_SECONDS_MAX = 0.05
CONNECT_SECONDS_MAX = 5.0
#: As far as this process may have as many files: above the share of one address on each front.
SILENT_CONNECTIONS = 9_000
FILES_LEFT = 100
#: A client whose silent connections are ended opens so many again, and no flood of them.
REOPENED_PER_S = 500
ASYNC_CALLS_PER_S = 50
ASYNC_CALLS_MAX = 600
KILLS_PER_S = 3
COAP_SOCKETS = 1_000
COAP_PER_S = 4_000
CALLERS = 200
ACCEPTED_ASKED_AT_ONCE = 16
H2_WINDOW_CONNECTIONS = 30
H2_WINDOW_STREAMS = 20

H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
H2_SETTINGS, H2_PING, H2_GOAWAY = 4, 6, 7
ACK = 1
IP_BIND_ADDRESS_NO_PORT = 24  # of Linux: the port is chosen for the connection, not for the address

#: Address that every attack is sent from; `main` sets it.
attacker = "127.0.0.1"

Options = dict[str, int]
Attack = Callable[[Options, Counter[str]], Iterator[None]]


def connect(port: int) -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", port), CONNECT_SECONDS_MAX, source_address=(attacker, 0)
    )


def flooded(port: int, first: bytes, rest: bytes, counts: Counter[str]) -> Iterator[None]:
    """One connection at a time that sends `first` and then `rest` endlessly, and reads what arrives
    meanwhile."""
    poll = STEP_SECONDS_MAX
    while True:
        try:
            stream = connect(port)
        except OSError:
            counts["refused"] += 1
            yield
            continue
        counts["connections"] += 1
        with stream, contextlib.suppress(OSError):
            stream.sendall(first)
            stream.setblocking(False)
            sent = 0
            while True:
                readable, writable, _ = select.select([stream], [stream], [], poll)
                if readable:
                    read = stream.recv(1 << 18)
                    counts["bytes_read"] += len(read)
                    if not read:
                        break
                if writable:
                    # Whole requests or frames follow one another, however many bytes are taken.
                    sent = (sent + stream.send(rest[sent:])) % len(rest)
                    counts["sends"] += 1
                yield
        yield


def pipelined(options: Options, counts: Counter[str]) -> Iterator[None]:
    one = b"GET /nobody HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return flooded(options["http"], b"", one * 2_000, counts)


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def h2_flood(kind: int, stream: int, payload: bytes) -> Attack:
    def attack(options: Options, counts: Counter[str]) -> Iterator[None]:
        first = H2_PREFACE + h2_frame(H2_SETTINGS, 0, 0, b"")
        frames = h2_frame(kind, 0, stream, payload) * 5_000
        return flooded(options["http"], first, frames, counts)

    return attack


def h2_get(stream: int, path: str) -> bytes:
    """A request as one HEADERS frame; every field is from HPACK's static table or a literal."""
    fields = b"\x82\x86\x04" + bytes([len(path)]) + path.encode() + b"\x01\x01a"
    return h2_frame(1, 0x5, stream, fields)


def h2_pong(stream: socket.socket, counts: Counter[str]) -> bool:
    """Reads what has arrived and answers its pings; returns whether the connection is still
    open."""
    try:
        read = stream.recv(1 << 18)
    except BlockingIOError:
        return True
    except OSError:
        return False
    at = 0
    # A frame that is split over two reads is not seen; the next ping is.
    while at + 9 <= len(read):
        length = int.from_bytes(read[at : at + 3])
        kind, flags, payload = read[at + 3], read[at + 4], read[at + 9 : at + 9 + length]
        if kind == H2_GOAWAY:
            counts["told to go"] += 1
            return False
        if flags != ACK and kind in (H2_PING, H2_SETTINGS):
            counts["pings answered"] += kind == H2_PING
            with contextlib.suppress(OSError):
                stream.send(h2_frame(kind, ACK, 0, payload if kind == H2_PING else b""))
        at += 9 + length
    return bool(read)


def h2_window(options: Options, counts: Counter[str]) -> Iterator[None]:
    """Connections that request large answers, read nothing of them, and answer pings."""
    first = H2_PREFACE + h2_frame(H2_SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    asked = b"".join(h2_get(1 + 2 * n, "/big") for n in range(H2_WINDOW_STREAMS))
    held: list[socket.socket] = []
    while True:
        while len(held) < H2_WINDOW_CONNECTIONS:
            try:
                stream = connect(options["http"])
                stream.sendall(first + asked)
                stream.setblocking(False)
            except OSError:
                counts["refused"] += 1
                break
            counts["connections"] += 1
            held.append(stream)
        yield
        readable, _, _ = select.select(held, [], [], STEP_SECONDS_MAX)
        for stream in readable:
            if not h2_pong(stream, counts):
                held.remove(stream)
                stream.close()


def asked_again(path: str) -> Attack:
    """One caller that repeats the same request again and again."""

    def attack(options: Options, counts: Counter[str]) -> Iterator[None]:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        while True:
            try:
                with connect(options["http"]) as stream:
                    stream.settimeout(STEP_SECONDS_MAX)
                    stream.sendall(request)
                    counts["calls"] += 1
                    yield
                    while True:
                        try:
                            if not stream.recv(1 << 18):
                                break
                        except TimeoutError:
                            yield
            except OSError:
                counts["refused"] += 1
                yield

    return attack


def many_callers(request: bytes, connections: int) -> Attack:
    """This many connections, each of which sends its next request as soon as it has its answer."""

    def attack(options: Options, counts: Counter[str]) -> Iterator[None]:
        poll = select.poll()
        asking: dict[int, socket.socket] = {}
        while True:
            while len(asking) < connections:
                try:
                    stream = connect(options["http"])
                    stream.sendall(request)
                except OSError:
                    counts["refused"] += 1
                    break
                asking[stream.fileno()] = stream
                poll.register(stream, select.POLLIN)
                counts["calls"] += 1
            for number, _ in poll.poll(STEP_SECONDS_MAX * 1_000):
                stream = asking[number]
                with contextlib.suppress(OSError):
                    # An answer is short and comes in one piece.
                    answer = stream.recv(1 << 16)
                    if answer:
                        counts[f"answered {answer[9:12].decode()}"] += 1
                        stream.sendall(request)
                        counts["calls"] += 1
                        continue
                poll.unregister(stream)
                stream.close()
                del asking[number]
            yield

    return attack


def silent(port_name: str) -> Attack:
    """Connections that never send anything, and are reopened when the node closes them."""

    def attack(options: Options, counts: Counter[str]) -> Iterator[None]:
        held: set[socket.socket] = set()
        poll = select.epoll()
        by_number: dict[int, socket.socket] = {}
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        most = wanted = min(SILENT_CONNECTIONS, files - FILES_LEFT)
        began, opened = time.monotonic(), 0
        while True:
            for _ in range(min(wanted, most - len(held))):
                stream = socket.socket()
                stream.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                stream.setblocking(False)
                try:
                    stream.bind((attacker, 0))
                    stream.connect_ex(("127.0.0.1", options[port_name]))
                except OSError:
                    counts["no port left"] += 1
                    stream.close()
                    break
                held.add(stream)
                by_number[stream.fileno()] = stream
                poll.register(stream, select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
                counts["connections"] += 1
                opened += 1
            yield
            wanted = int((time.monotonic() - began) * REOPENED_PER_S) + most - opened
            for number, _ in poll.poll(STEP_SECONDS_MAX):
                stream = by_number.pop(number)
                poll.unregister(stream)
                stream.close()
                held.discard(stream)
                counts["ended by the node"] += 1

    return attack


def hanging_callbacks(options: Options, counts: Counter[str]) -> Iterator[None]:
    """Accepted calls whose callback goes to a port that accepts connections and never answers."""
    request = (
        "POST /async-function/later HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
        f"X-Callback-Url: http://127.0.0.1:{options['silent']}/\r\nConnection: close\r\n\r\n"
    ).encode()
    next_at = time.monotonic()
    for n in range(ASYNC_CALLS_MAX):
        try:
            with connect(options["openfaas"]) as stream:
                stream.sendall(request)
                status = stream.recv(4_096).split(b" ")[1:2]
                counts[f"answered {b''.join(status).decode()}"] += 1
        except OSError:
            counts["refused"] += 1
        # As many as were enough to hold all places, at once; then more of them.
        if n >= 100:
            yield
            next_at += 1 / ASYNC_CALLS_PER_S
            time.sleep(max(0.0, next_at - time.monotonic()))
        else:
            next_at = time.monotonic()
    while True:
        yield
        time.sleep(STEP_SECONDS_MAX)


def kills(options: Options, counts: Counter[str]) -> Iterator[None]:
    request = b"GET /mortal?die=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    held: list[socket.socket] = []
    next_at = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            stream = connect(options["http"])
            stream.sendall(request)
            counts["calls"] += 1
            # A caller that hangs up could cancel its call.
            held.append(stream)
            if len(held) > 100:
                held.pop(0).close()
        yield
        next_at += 1 / KILLS_PER_S
        time.sleep(max(0.0, next_at - time.monotonic()))


def coap_forged(path: str) -> Attack:
    """Non-confirmable requests to a function, from many ports."""
    option = bytes([0xB0 | len(path)]) + path.encode()

    def attack(options: Options, counts: Counter[str]) -> Iterator[None]:
        sockets = []
        for _ in range(COAP_SOCKETS):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.bind((attacker, 0))
            one.setblocking(False)
            sockets.append(one)
        to = ("127.0.0.1", options["coap"])
        sent, began = 0, time.monotonic()
        while True:
            due = int((time.monotonic() - began) * COAP_PER_S) + 1
            for n in range(sent, min(due, sent + COAP_SOCKETS)):
                # Version 1, NON, a token of two bytes, GET; one option, Uri-Path.
                token = struct.pack(">H", n & 0xFFFF)
                datagram = struct.pack(">BBH", 0x52, 1, n & 0xFFFF) + token + option
                with contextlib.suppress(OSError):
                    sockets[n % COAP_SOCKETS].sendto(datagram, to)
                    counts["datagrams"] += 1
            sent = due
            yield
            time.sleep(0.002)

    return attack


def spinning(_: Options, counts: Counter[str]) -> Iterator[None]:
    """Not an attack: shows what the attacker's processor time alone does to the measurement."""
    while True:
        for _ in range(10_000):
            counts["turns"] += 1
        yield


def spinning_everywhere(_: Options, counts: Counter[str]) -> Iterator[None]:
    """Not an attack either: every core is busy with a program that yields to all other programs.

    In this case the kernel of this machine never makes the node wait. The node waits only for the
    host of a virtual machine, which takes cores away once all of them are busy.
    """
    this = os.getpid()
    for core in range(os.cpu_count() or 1):
        if os.fork() == 0:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {core})
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            while os.getppid() == this:
                for _ in range(10_000):
                    pass
            os._exit(0)
        counts["programs"] += 1
    while True:
        yield
        time.sleep(0.05)


ATTACKS: dict[str, Attack] = {
    "spinning": spinning,
    "spinning-everywhere": spinning_everywhere,
    "pipelined": pipelined,
    "early": asked_again("/server/early"),
    "zeros": asked_again("/server/zeros"),
    "stdout": asked_again("/chatty"),
    "egress": asked_again("/dialer"),
    "lookups": asked_again("/seeker"),
    "h2-ping": h2_flood(H2_PING, 0, bytes(8)),
    "h2-settings": h2_flood(H2_SETTINGS, 0, b""),
    "h2-priority": h2_flood(2, 3, b"\0\0\0\0\1"),
    "h2-window-update": h2_flood(8, 0, b"\0\0\0\1"),
    "h2-window-0": h2_window,
    "silent-http": silent("http"),
    "silent-openfaas": silent("openfaas"),
    "callbacks": hanging_callbacks,
    "kills": kills,
    "coap": coap_forged("slow"),
    "tenant": many_callers(b"GET /busy.a HTTP/1.1\r\nHost: localhost\r\n\r\n", CALLERS),
    "tenant-accepted": many_callers(
        b"POST /busy.a HTTP/1.1\r\nHost: localhost\r\nPrefer: respond-async\r\n"
        b"Content-Length: 0\r\n\r\n", ACCEPTED_ASKED_AT_ONCE
    ),
    "tenant-coap": coap_forged("busy.a"),
}


def told_to_end(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    global attacker
    name, seconds, attacker = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    options = json.loads(sys.argv[4])
    signal.signal(signal.SIGTERM, told_to_end)
    counts: Counter[str] = Counter()
    steps = ATTACKS[name](options, counts)
    end = time.monotonic() + seconds
    try:
        next(steps)
        print("on", flush=True)
        while time.monotonic() < end:
            next(steps)
    except KeyboardInterrupt:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
