"""The minimum of HTTP/1.1 that a measurement needs: exact about framing, without hidden buffers."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator

READ_BYTES = 256 << 10


class Answer:
    """A head, and the way to read its body."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.held = b""
        while b"\r\n\r\n" not in self.held:
            self._more()
        head, self.held = self.held.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        pairs = (line.split(":", 1) for line in lines[1:])
        self.headers = {name.lower(): value.strip() for name, value in pairs}

    def _more(self, limit: int = READ_BYTES) -> None:
        data = self.sock.recv(limit)
        if not data:
            raise ConnectionError("the connection ended inside an answer")
        self.held += data

    def _take(self, size: int, limit: int) -> Iterator[bytes]:
        while size:
            if not self.held:
                self._more(min(size, limit))
            piece, self.held = self.held[:size], self.held[size:]
            size -= len(piece)
            yield piece

    def chunks(self, limit: int = READ_BYTES) -> Iterator[bytes]:
        """The body in pieces; at most `limit` bytes are read from the socket at once."""
        if "content-length" in self.headers:
            yield from self._take(int(self.headers["content-length"]), limit)
            return
        if self.headers.get("transfer-encoding") != "chunked":
            return
        while True:
            size = int(self._line(), 16)
            yield from self._take(size, limit)
            if self._line():
                raise ValueError("a chunk is longer than it said")
            if not size:
                return

    def _line(self) -> bytes:
        while b"\r\n" not in self.held:
            self._more(4096)
        line, self.held = self.held.split(b"\r\n", 1)
        return line

    def body(self) -> bytes:
        return b"".join(self.chunks())


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def get(sock: socket.socket, path: str) -> Answer:
    sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return Answer(sock)


def send_post(sock: socket.socket, path: str, length: int, pieces: Iterable[bytes]) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
    sock.sendall(head.encode())
    for piece in pieces:
        sock.sendall(piece)
