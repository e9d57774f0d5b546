"""The engine's side of the worker protocol for tests: a codec and a worker on a socket pair."""

import json
import os
import socket
import struct
import subprocess
import sys

KINDS = ["HELLO", "LOAD", "READY", "INVOKE", "BODY", "RESULT", "ERROR", "CANCEL", "CREDIT", "LOG", "DRAIN",
         "REQUEST", "RESPONSE"]  # fmt: skip
HERE = os.path.dirname(os.path.abspath(__file__))
CONFORMANCE = os.path.join(HERE, "..", "conformance")
SECONDS_MAX = 30  # a test that would wait longer has failed


def fixtures(name):
    with open(os.path.join(CONFORMANCE, name + ".json"), encoding="utf-8") as file:
        return json.load(file)[name]


def pairs(block):
    parts = block.decode("latin-1").split("\n")
    return [list(pair) for pair in zip(parts[0:-1:2], parts[1::2])]


def encode(frame):
    """Encodes a frame described as in the fixtures."""
    if "hex" in frame:
        return bytes.fromhex(frame["hex"])
    kind, flags, stream = KINDS.index(frame["kind"]) + 1, int(frame.get("end", False)), frame["stream"]
    body = frame.get("body", "")
    body = body if isinstance(body, bytes) else body.encode()
    if "repeat" in frame:
        body = frame["repeat"][0].encode() * frame["repeat"][1]
    if frame["kind"] == "INVOKE":
        method, path = frame.get("method", "POST").encode(), frame.get("path", "/").encode()
        query = frame.get("query", "").encode()
        headers = "".join("%s\n%s\n" % tuple(pair) for pair in frame.get("headers", [])).encode("latin-1")
        fixed = (frame.get("sent_ns", 1), frame.get("id", 1).to_bytes(16, "big"), frame.get("remaining_ms", 10000))
        lengths = (len(method), len(path), len(query), 0, len(headers))
        body = struct.pack("<Q16sIBBHHHI", *fixed, frame.get("trigger", 1), *lengths) + method + path + query + headers + body
    elif frame["kind"] == "RESPONSE":
        body = struct.pack("<IB3x", frame["number"], frame["status"]) + bytes.fromhex(frame.get("content", ""))
    elif frame["kind"] == "CREDIT":
        body = struct.pack("<I", frame["credit"])
    elif "json" in frame:
        body = json.dumps(frame["json"]).encode()
    return struct.pack("<IBBHI", len(body), kind, flags, 0, stream) + body


def decode(data):
    """(frame as in the fixtures, bytes used) of frames that a worker sends; (None, 0) if
    incomplete."""
    if len(data) < 12:
        return None, 0
    size, kind, flags, zero, stream = struct.unpack_from("<IBBHI", data)
    if size > 1 << 20:
        raise ValueError("too long")
    if not 1 <= kind <= 13:
        raise ValueError("unknown kind")
    if flags > 1 or zero:
        raise ValueError("reserved")
    if len(data) < 12 + size:
        return None, 0
    payload, kind = bytes(data[12 : 12 + size]), KINDS[kind - 1]
    frame = {"kind": kind, "end": flags == 1, "stream": stream, "payload": payload}
    if kind == "HELLO":
        frame.update(version=struct.unpack_from("<H", payload)[0], shim=payload[2:].decode())
    elif kind in ("LOAD", "READY", "ERROR"):
        frame["json"] = json.loads(payload)
    elif kind == "RESULT":
        if size < 24:
            raise ValueError("malformed")
        entered, returned, status, zero, length = struct.unpack_from("<QQHHI", payload)
        if zero:
            raise ValueError("reserved")
        if length > size - 24 or not 200 <= status <= 599:
            raise ValueError("malformed")
        frame.update(entered_ns=entered, returned_ns=returned, status=status)
        frame.update(headers=pairs(payload[24 : 24 + length]), body=payload[24 + length :])
    elif kind in ("REQUEST", "RESPONSE"):
        if size < 8:
            raise ValueError("malformed")
        frame["number"] = struct.unpack_from("<I", payload)[0]
        if kind == "RESPONSE":
            frame["status"] = payload[4]
        else:
            frame.update(service=payload[4], operation=payload[5])
            if frame["service"] == 1 and size < 32 + payload[8] + struct.unpack_from("<H", payload, 10)[0]:
                raise ValueError("malformed")
    elif kind == "CREDIT":
        frame["credit"] = struct.unpack("<I", payload)[0]
    elif kind == "LOG":
        frame.update(source=payload[0], level=payload[1], text=payload[2:].decode())
    return frame, 12 + size


class Connection:
    """The engine's end of a worker's socket."""

    def __init__(self, sock):
        sock.settimeout(SECONDS_MAX)
        self.sock, self.data, self.logs, self.alive, self.next_stream = sock, bytearray(), [], [], 100

    def send(self, *frames):
        self.sock.sendall(b"".join(map(encode, frames)))

    def read(self, logs=False):
        """The next frame; LOG frames are set aside unless requested, and answers to CANCEL always
        are."""
        while True:
            frame, used = decode(self.data)
            if frame is None:
                data = self.sock.recv(1 << 18)
                if not data:
                    raise EOFError("the worker closed the connection")
                self.data += data
                continue
            del self.data[:used]
            if frame["kind"] == "LOG" and not logs:
                self.logs.append(frame)
                continue
            if frame["kind"] == "CREDIT" and frame["credit"] == 0:
                self.alive.append(frame["stream"])
                continue
            return frame

    def stream(self):
        self.next_stream += 1
        return self.next_stream

    def invoke(self, path="/", body=b"", **fields):
        """One invocation from start to end: the RESULT or ERROR frame with its complete body."""
        stream = self.stream()
        first, rest = body[: 64 << 10], body[64 << 10 :]
        self.send({"kind": "INVOKE", "stream": stream, "end": not rest, "path": path, "body": first, **fields})
        window = 256 << 10
        head = None
        while True:
            while rest and window >= min(len(rest), 64 << 10):
                chunk, rest = rest[: 64 << 10], rest[64 << 10 :]
                window -= len(chunk)
                self.send({"kind": "BODY", "stream": stream, "end": not rest, "body": chunk})
            frame = self.read()
            assert frame["stream"] == stream, frame
            if frame["kind"] == "CREDIT":
                window += frame["credit"]
            elif frame["kind"] == "RESULT":
                head = frame
            elif frame["kind"] == "BODY":
                head["body"] += frame["payload"]
                self.send({"kind": "CREDIT", "stream": stream, "credit": len(frame["payload"])})
            else:
                return frame
            if frame["end"] and head:
                return head


class Engine(Connection):
    """A worker process and the engine's end of its socket."""

    def __init__(self, code_dir, entry, load=True, ready=True, concurrency=None, env=None, packages_dir=None, argv=None, **more):
        ours, theirs = socket.socketpair()
        # A shell moves the socket to fd 3 in the child, so no preexec function is needed.
        fd = theirs.fileno()
        os.set_inheritable(fd, True)
        argv = argv or [sys.executable, "-u", "-s", "-B", os.path.join(HERE, "mote_shim.py")]
        script = "exec 3<&%d; [ %d = 3 ] || exec %d<&-; exec \"$@\"" % (fd, fd, fd)
        self.process = subprocess.Popen(
            ["bash", "-c", script, "-", *argv],
            pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        theirs.close()
        super().__init__(ours)
        self.hello = self.read()
        if load:
            self.send({"kind": "LOAD", "stream": 0, "json": {
                "function": "fn", "revision": 3, "code_dir": code_dir, "packages_dir": packages_dir,
                "entry": entry, "concurrency": concurrency, "env": env or {}, **more}})  # fmt: skip
            self.ready = self.read() if ready else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()
        self.process.kill()
        self.process.communicate()

    def copy(self):
        """Lets a seed make a copy of itself. Returns the copy's connection and its number."""
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "w") as output:
            socket.send_fds(self.sock, [b"c"], [theirs.fileno(), output.fileno()])
        answer, fds, _, _ = socket.recv_fds(self.sock, 256, 1)
        for fd in fds:
            os.close(fd)
        return Connection(ours), int(answer)

    def exit_code(self):
        return self.process.wait(SECONDS_MAX)
