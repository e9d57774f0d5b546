"""Serves one function over HTTP without mote, in a separate container.

`mote export kubernetes` puts this file into the image of each function. It needs Python 3.9 or newer
and nothing else. `function.json`, next to it, describes the function. What answers depends on the
runtime:

    python, node   the shim of mote loads the function; this program speaks the worker protocol with it
    exec           the program runs once for each request
    server         the program listens on 127.0.0.1:$PORT; bytes are passed on in both directions

A container is one instance. The port is open only once the function is ready, so a probe of the port
is a probe of the function. If the worker ends or is stuck, this program ends too, and whoever runs
the container starts it again. On SIGTERM it goes on for some seconds, until nobody sends requests to
it any more, and then finishes what runs.

`serve.py call URL [METHOD [BODY [NAME: VALUE]...]]` sends one request, for CronJobs.
"""

import collections
import fcntl
import http.server
import json
import os
import queue
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

HELLO, LOAD, READY, INVOKE, BODY, RESULT, ERROR, CANCEL, CREDIT, LOG, DRAIN, REQUEST, RESPONSE = range(1, 14)
END = 1
HEADER = struct.Struct("<IBBHI")
CHUNK = 64 << 10
WINDOW = 256 << 10
ANSWER_MAX = 64 << 20  # bytes of what a program writes in answer to one request
CONNECTIONS_MAX = 1_000
IDLE_SECONDS = 60  # of a connection without a request
LEAVING_SECONDS = float(os.environ.get("LEAVING_SECONDS", "5"))  # from SIGTERM until nothing more is accepted
STUCK_SECONDS = 2  # from a deadline until the worker counts as stuck
HERE = os.path.dirname(os.path.abspath(__file__))
# Fields that belong to one connection and not to the request.
FRAMING = frozenset(
    ["connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"]
)
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def is_passed_on(name):
    # Nobody has checked a caller here, so a name that a client sends is forged.
    return name not in FRAMING and name.replace("_", "-") not in ("mote-caller", "mote-params")


def say(text):
    sys.stderr.write("%s\n" % text)
    sys.stderr.flush()


def give_up(text):
    """Ends the container; whoever runs it starts it again."""
    say(text)
    os._exit(1)


def new_id():
    """16 bytes that sort by time."""
    return int(time.time() * 1000).to_bytes(6, "big") + secrets.token_bytes(10)


def id_text(raw):
    number = int.from_bytes(raw, "big")
    return "".join(LETTERS[number >> (5 * place) & 31] for place in reversed(range(26)))


class Refused(Exception):
    """A request that gets this status, for a reason that callers may know."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status, self.text = status, text


class Places:
    """How many requests run at once, and how many more may wait."""

    def __init__(self, running, waiting):
        self.free, self.waiting_max = running, waiting
        self.waiting = collections.deque()
        self.running = 0
        self.lock = threading.Lock()

    def enter(self, deadline):
        with self.lock:
            if self.free:
                self.free -= 1
                self.running += 1
                return
            if len(self.waiting) >= self.waiting_max:
                raise Refused(429, "the queue is full; try again later")
            turn = threading.Event()
            self.waiting.append(turn)
        if turn.wait(max(0, deadline - time.monotonic())):
            return
        with self.lock:
            if turn in self.waiting:
                self.waiting.remove(turn)
                raise Refused(504, "the deadline passed while the request waited")

    def leave(self):
        with self.lock:
            if self.waiting:
                self.waiting.popleft().set()
            else:
                self.free += 1
                self.running -= 1


class Worker:
    """A function behind the worker protocol (docs/reference/worker-protocol.md of mote)."""

    def __init__(self, function, folder):
        self.function = function
        self.streams = {}  # number to the queue of its frames
        self.number = 0
        self.lock = threading.Lock()
        self.sending = threading.Lock()
        ours, theirs = socket.socketpair()
        self.sock = ours
        # A number above 3, so that the copy to 3 is a copy and not the same descriptor.
        high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
        argv = function["worker"]
        actions = [(os.POSIX_SPAWN_DUP2, high, 3)]
        self.pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions)
        os.close(high)
        theirs.close()
        threading.Thread(target=self.watch, daemon=True).start()
        ours.settimeout(function["init_timeout_ms"] / 1000)
        try:
            self.started = self.start(folder)
        except socket.timeout:
            give_up("the function did not start in time")
        ours.settimeout(None)
        threading.Thread(target=self.read_all, daemon=True).start()

    def start(self, folder):
        """Loads the function; returns what READY says."""
        kind, _, _, payload = self.read()
        if kind != HELLO or struct.unpack_from("<H", payload)[0] != 1:
            give_up("the worker speaks another version of the protocol")
        packages = self.function.get("packages")
        load = {
            "function": self.function["name"],
            "revision": 1,
            "code_dir": folder,
            "packages_dir": packages if packages and os.path.isdir(packages) else None,
            "entry": self.function["entry"],
            "concurrency": self.function.get("concurrency"),
            "env": {},
        }
        for key in ("compat", "template", "memory_bytes"):
            if self.function.get(key):
                load[key] = self.function[key]
        self.send((LOAD, 0, 0, json.dumps(load).encode()))
        while True:
            kind, _, _, payload = self.read()
            if kind == READY:
                return json.loads(payload)
            if kind == ERROR:
                problem = json.loads(payload)
                give_up("the function cannot be loaded: %(kind)s: %(message)s\n%(trace)s" % problem)
            self.log(kind, payload)

    def watch(self):
        _, status = os.waitpid(self.pid, 0)
        if not leaving.is_set():
            give_up("the worker ended with %d" % os.waitstatus_to_exitcode(status))

    def send(self, *frames):
        data = b"".join(HEADER.pack(len(body), kind, flags, 0, stream) + body for kind, flags, stream, body in frames)
        with self.sending:
            self.sock.sendall(data)

    def read(self):
        size, kind, flags, _, stream = HEADER.unpack(self.exactly(HEADER.size))
        return kind, flags, stream, self.exactly(size)

    def exactly(self, size):
        data = bytearray()
        while len(data) < size:
            piece = self.sock.recv(min(size - len(data), WINDOW))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def log(self, kind, payload):
        if kind == LOG:
            out = sys.stdout if payload[0] == 1 else sys.stderr
            out.write(payload[2:].decode("utf-8", "replace") + "\n")
            out.flush()

    def read_all(self):
        try:
            while True:
                kind, flags, stream, payload = self.read()
                if kind == LOG:
                    self.log(kind, payload)
                elif kind == REQUEST:
                    text = b"the function runs without a node of mote"
                    self.send((RESPONSE, 0, stream, payload[:4] + b"\x06\0\0\0" + text))
                elif kind == ERROR and stream == 0:
                    give_up("the worker ended: %s" % payload.decode("utf-8", "replace"))
                else:
                    frames = self.streams.get(stream)
                    if frames is not None:
                        frames.put((kind, flags, payload))
        except (EOFError, OSError):
            # `watch` says how the worker ended.
            time.sleep(STUCK_SECONDS)
            if not leaving.is_set():
                give_up("the worker closed its connection")

    def call(self, request, deadline):
        """Runs an invocation; returns (status, pairs, chunks), where `chunks` is None for an answer
        in one piece: (status, pairs, bytes)."""
        with self.lock:
            self.number = self.number % 0xFFFFFFFF + 1
            stream = self.number
            frames = self.streams[stream] = queue.SimpleQueue()
        answering = False
        try:
            left = max(1, int((deadline - time.monotonic()) * 1000))
            method, path, query, block, body = request
            head = struct.pack("<Q16sIBBHHHI", time.monotonic_ns(), new_id(), left, 1, len(method), len(path), len(query), 0, len(block))
            first, rest = body[:CHUNK], body[CHUNK:]
            self.send((INVOKE, 0 if rest else END, stream, head + method + path + query + block + first))
            window = WINDOW
            while True:
                while rest and window:
                    piece, rest = rest[: min(CHUNK, window)], rest[min(CHUNK, window) :]
                    window -= len(piece)
                    self.send((BODY, 0 if rest else END, stream, piece))
                kind, flags, payload = self.next(frames, stream, deadline)
                if kind == CREDIT:
                    window += struct.unpack("<I", payload)[0]
                elif kind == ERROR:
                    raise self.failed(payload)
                elif kind == RESULT:
                    status, _, length = struct.unpack_from("<HHI", payload, 16)
                    pairs = header_pairs(payload[24 : 24 + length])
                    inline = payload[24 + length :]
                    if flags & END:
                        return status, pairs, inline
                    answering = True
                    return status, pairs, self.chunks(frames, stream, inline, rest, window)
        finally:
            if not answering:
                del self.streams[stream]

    def chunks(self, frames, stream, inline, rest, window):
        """The rest of an answer, as it arrives; also sends what is left of the request."""
        try:
            yield inline
            while True:
                while rest and window:
                    piece, rest = rest[: min(CHUNK, window)], rest[min(CHUNK, window) :]
                    window -= len(piece)
                    self.send((BODY, 0 if rest else END, stream, piece))
                kind, flags, payload = self.next(frames, stream, time.monotonic() + self.function["stream_idle_ms"] / 1000)
                if kind == CREDIT:
                    window += struct.unpack("<I", payload)[0]
                elif kind == ERROR:
                    raise self.failed(payload)
                else:
                    yield payload
                    if flags & END:
                        return
                    self.send((CREDIT, 0, stream, struct.pack("<I", len(payload))))
        except GeneratorExit:
            self.send((CANCEL, 0, stream, b""))
            raise
        finally:
            del self.streams[stream]

    def next(self, frames, stream, deadline):
        try:
            return frames.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            pass
        self.send((CANCEL, 0, stream, b""))
        until = time.monotonic() + STUCK_SECONDS
        while True:
            try:
                kind, flags, _ = frames.get(timeout=max(0.001, until - time.monotonic()))
            except queue.Empty:
                threading.Timer(0.2, give_up, ["the function is stuck: it did not end after its deadline"]).start()
                break
            if kind == ERROR or (flags & END and kind in (RESULT, BODY)):
                break
        raise Refused(504, "the deadline passed while the function ran")

    def failed(self, payload):
        error = json.loads(payload)
        say("%(kind)s: %(message)s\n%(trace)s" % error)
        if error["kind"] == "Cancelled":
            return Refused(504, "the deadline passed while the function ran")
        return Refused(500, "the function failed")

    def stop(self):
        self.send((DRAIN, 0, 0, b""))


class Program:
    """A program that runs once for each request."""

    started = {"concurrency": 8}

    def __init__(self, function, folder):
        self.function, self.folder = function, folder

    def call(self, request, deadline):
        method, path, query, block, body = request
        facts = {
            "MOTE_METHOD": method, "MOTE_PATH": path, "MOTE_QUERY": query, "MOTE_TRIGGER": "http",
            "MOTE_INVOCATION": id_text(new_id()), "MOTE_FUNCTION": self.function["name"],
            "MOTE_DEADLINE_MS": str(max(1, int((deadline - time.monotonic()) * 1000))),
        }  # fmt: skip
        fields = {}
        for name, value in header_pairs(block):
            name = "".join(c.upper() if c.isalnum() and c.isascii() else "_" for c in name)
            fields.setdefault("MOTE_HEADER_" + name, []).append(value)
        facts.update((name, ", ".join(values)) for name, values in fields.items())
        texts = {name: value.decode("latin-1") if isinstance(value, bytes) else value for name, value in facts.items()}
        env = {**os.environ, **{name: value for name, value in texts.items() if "\0" not in value}}
        head_read, head_write = os.pipe()
        out_read, out_write = os.pipe()
        in_read, in_write = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (in_read, out_write, head_write)]
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 0), (os.POSIX_SPAWN_DUP2, high[1], 1), (os.POSIX_SPAWN_DUP2, high[2], 3)]
        argv = self.function["command"]
        try:
            pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setpgroup=0)
        except OSError as error:
            for fd in (head_read, out_read, in_write):
                os.close(fd)
            say("%s: %s" % (argv[0], error))
            raise Refused(500, "the function cannot run") from None
        finally:
            for fd in (head_write, out_write, in_read, *high):
                os.close(fd)
        late = threading.Event()

        def end():
            late.set()
            end_group(pid)

        timer = threading.Timer(max(0.001, deadline - time.monotonic()), end)
        timer.start()
        head = bytearray()
        threads = [
            threading.Thread(target=write_all, args=(in_write, body)),
            threading.Thread(target=read_into, args=(head_read, head, CHUNK)),
        ]
        for thread in threads:
            thread.start()
        answer = bytearray()
        whole = read_into(out_read, answer, ANSWER_MAX)
        if not whole:
            end_group(pid)
        _, status = os.waitpid(pid, 0)
        timer.cancel()
        end_group(pid)  # background processes end with the request
        for thread in threads:
            thread.join()
        code = os.waitstatus_to_exitcode(status)
        if late.is_set():
            raise Refused(504, "the deadline passed while the function ran")
        if code or not whole:
            say("%s ended with %d" % (argv[0], code))
            raise Refused(500, "the function failed")
        return (*program_head(bytes(head)), bytes(answer))

    def stop(self):
        pass


def end_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def write_all(fd, data):
    try:
        with os.fdopen(fd, "wb", 0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except BrokenPipeError:
        pass  # the program does not read its input


def read_into(fd, data, most):
    """Reads up to `most` bytes; returns whether that was everything."""
    with os.fdopen(fd, "rb", 0) as file:
        while piece := file.read(CHUNK):
            data += piece
            if len(data) > most:
                return False
    return True


def program_head(text):
    """(status, pairs) from what a program wrote to descriptor 3."""
    status, pairs = 200, []
    for line in text.decode("latin-1").splitlines():
        name, colon, value = line.partition(":")
        if not colon and line.startswith("status "):
            status = int(line[7:]) if line[7:].strip().isdigit() else 500
        elif colon:
            pairs.append((name.strip().lower(), value.strip()))
    if all(name != "content-type" for name, _ in pairs):
        pairs.append(("content-type", "text/plain; charset=utf-8"))
    return status, pairs


def header_pairs(block):
    parts = block.decode("latin-1").split("\n")
    return list(zip(parts[0:-1:2], parts[1::2]))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "function", ""
    timeout = IDLE_SECONDS
    wbufsize = CHUNK
    function = target = places = None

    def log_message(self, *_):
        pass

    def parse_request(self):
        """Every method leads to `answer`."""
        if not super().parse_request():
            return False
        allowed = self.function.get("methods")
        if allowed and self.command not in allowed and not self.is_probe():
            self.refuse(Refused(405, "the function does not accept this method"), [("allow", ", ".join(allowed))])
            return False
        setattr(self, "do_" + self.command, self.answer)
        return True

    def is_probe(self):
        # OpenFaaS asks at a fixed path whether the container is ready.
        return self.path == self.function.get("health") and self.command in ("GET", "HEAD")

    def body(self):
        most = self.function["body_bytes"]
        coding = self.headers.get_all("transfer-encoding")
        lengths = self.headers.get_all("content-length") or []
        if coding:
            if lengths or [value.strip().lower() for value in coding] != ["chunked"]:
                raise Refused(400, "the framing of the request is ambiguous")
            data = bytearray()
            while size := int(self.line().partition(b";")[0], 16):
                if len(data) + size > most:
                    raise Refused(413, "the body is too long")
                data += self.whole(size)
                self.line()
            while self.line():
                pass
            return bytes(data)
        if len(set(lengths)) > 1 or any(not value.isdigit() for value in lengths):
            raise Refused(400, "the framing of the request is ambiguous")
        length = int(lengths[0]) if lengths else 0
        if length > most:
            raise Refused(413, "the body is too long")
        return self.whole(length)

    def whole(self, size):
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionError
        return data

    def line(self):
        return self.rfile.readline(CHUNK).rstrip(b"\r\n")

    def answer(self):
        deadline = time.monotonic() + self.function["timeout_ms"] / 1000
        try:
            try:
                body = self.body()
            except (ValueError, Refused) as error:
                self.close_connection = True
                raise error if isinstance(error, Refused) else Refused(400, "the body is not valid") from None
            path, _, query = self.path.partition("?")
            if self.is_probe():
                return self.pass_on(200, [], b"OK\n")
            fields = [(name.lower(), value) for name, value in self.headers.items() if is_passed_on(name.lower())]
            block = "".join("%s\n%s\n" % pair for pair in fields if "\n" not in pair[1]).encode("latin-1")
            request = (self.command.encode(), (path or "/").encode(), query.encode(), block, body)
            self.places.enter(deadline)
            try:
                self.pass_on(*self.target.call(request, deadline))
            finally:
                self.places.leave()
        except Refused as error:
            self.refuse(error)
        except (ConnectionError, socket.timeout):
            self.close_connection = True

    def pass_on(self, status, pairs, body):
        self.send_response_only(status)
        for name, value in pairs:
            if name not in FRAMING:
                self.send_header(name, value)
        bare = self.command == "HEAD" or status in (204, 304)
        if isinstance(body, bytes):
            if not bare or self.command == "HEAD":
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            if not bare:
                self.wfile.write(body)
            self.wfile.flush()
            return
        chunked = self.request_version != "HTTP/1.0" and not bare
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.flush()
        try:
            for piece in body:
                if piece and not bare:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                    self.wfile.flush()
            if chunked:
                self.wfile.write(b"0\r\n\r\n")
                self.wfile.flush()
        except Refused:
            # The head was already sent, so only closing the connection can report the error.
            self.close_connection = True
        finally:
            body.close()

    def refuse(self, error, more=()):
        text = json.dumps({"status": error.status, "title": error.text}).encode()
        self.send_response_only(error.status)
        self.send_header("content-type", "application/problem+json")
        self.send_header("content-length", str(len(text)))
        if error.status == 429:
            self.send_header("retry-after", "1")
        for name, value in more:
            self.send_header(name, value)
        if error.status in (400, 405, 413):
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
        self.wfile.flush()


class Server(http.server.ThreadingHTTPServer):
    """Serves at most `CONNECTIONS_MAX` connections; further ones wait in the backlog."""

    daemon_threads = True
    request_queue_size = 128
    places = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request, client_address):
        self.places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (ConnectionError, socket.timeout)):
            super().handle_error(request, client_address)


def relay(function, folder, port):
    """Runs a program that is an HTTP server on loopback, and passes connections on to it."""
    inner = function.get("port") or 8081
    env = {**os.environ, "PORT": str(inner), "MOTE_FUNCTION": function["name"]}
    if function.get("packages"):
        env.update(PYTHONPATH=function["packages"], NODE_PATH=os.path.join(folder, "node_modules"))
    process = subprocess.Popen(function["command"], cwd=folder, env=env)
    until = time.monotonic() + function["init_timeout_ms"] / 1000
    while True:
        try:
            socket.create_connection(("127.0.0.1", inner), 1).close()
            break
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                give_up("the server does not listen on 127.0.0.1:%d" % inner)
            time.sleep(0.02)

    def watch():
        code = process.wait()
        if not leaving.is_set():
            give_up("the server ended with %d" % code)

    threading.Thread(target=watch, daemon=True).start()
    places = threading.BoundedSemaphore(CONNECTIONS_MAX)
    open_now = set()
    listener = socket.create_server(("", port), backlog=128)

    def one_way(source, sink):
        try:
            while data := source.recv(CHUNK):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for sock in (source, sink):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def serve(outer):
        try:
            with outer, socket.create_connection(("127.0.0.1", inner), 10) as own:
                own.settimeout(None)
                open_now.add(own)
                back = threading.Thread(target=one_way, args=(own, outer), daemon=True)
                back.start()
                one_way(outer, own)
                back.join()
                open_now.discard(own)
        except OSError:
            pass
        finally:
            places.release()

    def accept():
        while True:
            places.acquire()
            outer, _ = listener.accept()
            threading.Thread(target=serve, args=(outer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    say("serving %s on port %d" % (function["name"], listener.getsockname()[1]))
    leave_requested.wait()
    time.sleep(LEAVING_SECONDS)
    leaving.set()
    listener.close()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(function["timeout_ms"] / 1000)
    except subprocess.TimeoutExpired:
        process.kill()


leave_requested = threading.Event()
leaving = threading.Event()


def main(description):
    with open(description, encoding="utf-8") as file:
        function = json.load(file)
    folder = os.path.join(os.path.dirname(os.path.abspath(description)), function.get("folder", "."))
    port = int(os.environ.get("LISTEN_PORT", "8080"))
    signal.signal(signal.SIGTERM, lambda *_: leave_requested.set())
    signal.signal(signal.SIGINT, lambda *_: leave_requested.set())
    if function["runtime"] == "server":
        return relay(function, folder, port)
    os.chdir(folder)
    target = (Program if function["runtime"] == "exec" else Worker)(function, folder)
    running = target.started["concurrency"]
    if function.get("concurrency"):
        running = min(running, function["concurrency"])
    places = Places(running, function["queue"])
    handler = type("Bound", (Handler,), {"function": function, "target": target, "places": places})
    server = Server(("", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say("serving %s on port %d" % (function["name"], server.server_address[1]))
    leave_requested.wait()
    # Some proxies still send requests until they learn that this container is shutting down.
    time.sleep(LEAVING_SECONDS)
    leaving.set()
    server.shutdown()
    until = time.monotonic() + function["timeout_ms"] / 1000
    while places.running and time.monotonic() < until:
        time.sleep(0.02)
    target.stop()
    os._exit(0)


def call(url, method="POST", body="", *fields):
    pairs = (field.partition(":") for field in fields)
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    request = urllib.request.Request(url, body.encode() if body else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=3600) as answer:
            sys.stdout.buffer.write(answer.read())
    except urllib.error.HTTPError as error:
        say("%s: %d" % (url, error.code))
        sys.exit(1)
    except OSError as error:
        say("%s: %s" % (url, error))
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["call"]:
        call(*sys.argv[2:])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "function.json"))
