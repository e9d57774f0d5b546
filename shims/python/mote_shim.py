"""The Python worker of mote: loads one function and answers its invocations over fd 3.

The contract is docs/reference/worker-protocol.md. Where to start reading: `main`, then
`Worker.load`, then one of the three ways to serve, picked once by the shape of the function:

    serve_inline   `def handle`, one at a time: no threads, no event loop, the fastest path
    serve_threads  `def handle` or WSGI with concurrency above 1
    serve_async    `async def handle` and ASGI

Standard library only, Python 3.9 or newer. Modules that few functions need (asyncio, logging,
inspect, traceback) are imported late: they are most of an interpreter's start.
"""

import collections.abc
import contextvars
import functools
import io
import json
import os
import socket
import struct
import sys
import threading
import time

VERSION = 1
NAME = b"python/" + sys.version.split()[0].encode()
HELLO, LOAD, READY, INVOKE, BODY, RESULT, ERROR, CANCEL, CREDIT, LOG, DRAIN = range(1, 12)
END = 1
PAYLOAD_MAX = 1 << 20
INLINE_MAX = 64 << 10
CHUNK_MAX = 64 << 10
WINDOW = 256 << 10
HEADERS_MAX = 64 << 10
LINE_MAX = 16 << 10
RECEIVE_BYTES = 256 << 10
# A batch is written no later than this after the previous write, so that a slow invocation does
# not hold back the answers in front of it.
FLUSH_NS = 200_000
FLUSH_BYTES = 64 << 10

STDOUT, STDERR, LOGGED = 1, 2, 3
TRIGGERS = {1: "http", 2: "coap", 3: "admin"}

HEADER = struct.Struct("<IBBHI")
INVOKE_LENGTHS = struct.Struct("<BHHHI")  # at byte 29 of an INVOKE payload
INVOKE_FIXED = struct.Struct("<Q16sIB")
RESULT_FRAME = struct.Struct("<IBBHIQQHHI")  # header and fixed part in one go
U32 = struct.Struct("<I")

TEXT = b"content-type\ntext/plain; charset=utf-8\n"
BYTES = b"content-type\napplication/octet-stream\n"
JSON = b"content-type\napplication/json\n"
# The front frames the answer; a function's own idea of it would contradict the bytes sent.
FRAMING = frozenset(
    "connection content-length keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")

now_ns = time.monotonic_ns
encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class ProtocolError(Exception):
    """The engine broke the contract; the connection cannot be used any more."""


class BadReply(Exception):
    """The function returned something that is not an answer."""


class Cancelled(Exception):
    """The caller went away while the answer was being sent."""


# What a function sees ---------------------------------------------------------------------------


class Headers(collections.abc.Mapping):
    """Header fields by name, in any case. Duplicates are joined by ", "; `getall` keeps them."""

    __slots__ = ("pairs", "_first")

    def __init__(self, block):
        parts = block.decode("latin-1").split("\n")
        self.pairs = list(zip(parts[0:-1:2], parts[1::2]))
        self._first = {}
        for name, value in self.pairs:
            known = self._first.get(name)
            self._first[name] = value if known is None else known + ", " + value

    def __getitem__(self, name):
        return self._first[name.lower()]

    def __contains__(self, name):
        return isinstance(name, str) and name.lower() in self._first

    def __iter__(self):
        return iter(self._first)

    def __len__(self):
        return len(self._first)

    def __repr__(self):
        return "Headers(%r)" % (self.pairs,)

    def getall(self, name):
        """Every value of this name, in order."""
        name = name.lower()
        return [value for key, value in self.pairs if key == name]


class Event:
    """One invocation. Fields are cut out of the frame when first touched (`__getattr__` is called
    only for slots that are still empty), since most functions read one or two of them. Its course
    (`_cancelled`, `_done`, `_task`) stays empty until something happens to it."""

    __slots__ = (
        "_payload", "_lengths", "_head", "_stream", "_incoming", "_output",
        "_cancelled", "_done", "_task",
        "body", "text", "method", "path", "query", "args", "headers", "trigger", "id",
        "sent_ns", "deadline_ns",
    )  # fmt: skip

    def __init__(self, stream, payload, lengths, head):
        self._stream = stream
        self._payload = payload
        self._lengths = lengths
        self._head = head  # where the body starts, or would
        self._incoming = None
        self._output = None

    def _cut(self, part):
        lengths = self._lengths
        start = 40 + (lengths[0] if part else 0) + (lengths[1] if part == 2 else 0)
        return self._payload[start : start + lengths[part]]

    def __getattr__(self, name):
        if name == "body":
            if self._incoming is not None and not self._incoming.whole:
                raise RuntimeError("the body is still arriving: use event.astream()")
            value = self._payload[self._head :]
        elif name == "text":
            value = self.body.decode("utf-8", "replace")
        elif name == "method":
            value = self._cut(0).decode("latin-1")
        elif name == "path":
            value = self._cut(1).decode("latin-1")
        elif name == "query":
            value = self._cut(2).decode("latin-1")
        elif name == "headers":
            value = Headers(self.header_block())
        elif name == "args":
            from urllib.parse import parse_qsl

            value = dict(parse_qsl(self.query, keep_blank_values=True))
        elif name in ("sent_ns", "deadline_ns", "trigger", "id"):
            sent, number, remaining_ms, trigger = INVOKE_FIXED.unpack_from(self._payload)
            self.sent_ns = sent
            # The clock is the machine's, so the deadline needs no reading of it here.
            self.deadline_ns = sent + remaining_ms * 1_000_000
            self.trigger = TRIGGERS.get(trigger, "unknown")
            if name == "id":
                self.id = ulid(int.from_bytes(number, "big"))
            return object.__getattribute__(self, name)
        elif name in ("_cancelled", "_done", "_task"):
            return None
        else:
            raise AttributeError("event has no attribute %r" % name)
        setattr(self, name, value)
        return value

    def header_block(self):
        return self._payload[self._head - self._lengths[4] : self._head]

    def json(self):
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def stream(self):
        """The body in chunks."""
        body = self.body
        for start in range(0, len(body), CHUNK_MAX):
            yield body[start : start + CHUNK_MAX]

    async def astream(self):
        """The body in chunks, as they arrive when the module says `stream_request = True`."""
        if self._incoming is None or self._incoming.whole:
            for chunk in self.stream:
                yield chunk
            return
        while True:
            chunk = await self._incoming.next()
            if chunk is None:
                return
            yield chunk


def ulid(number):
    return "".join([PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


PAIRS = [a + b for a in "0123456789ABCDEFGHJKMNPQRSTVWXYZ" for b in "0123456789ABCDEFGHJKMNPQRSTVWXYZ"]


class Context:
    """What surrounds an invocation: the function, the deadline, the log."""

    __slots__ = ("_worker", "_event")

    def __init__(self, worker, event):
        self._worker = worker
        self._event = event  # None inside `init`

    @property
    def function(self):
        """Name of the function."""
        return self._worker.spec["function"]

    @property
    def revision(self):
        """Number of the revision."""
        return self._worker.spec["revision"]

    @property
    def log(self):
        """A `logging.Logger` whose records are tagged with this invocation."""
        return self._worker.logger()

    @property
    def cancelled(self):
        """Whether the caller is gone. Long loops should look at it and return."""
        worker, event = self._worker, self._event
        if event is None:
            return False
        if not event._cancelled and worker.inline is event and threading.get_ident() == worker.reader:
            worker.receive(block=False)  # nobody else reads while an inline handler runs
        return bool(event._cancelled)

    def remaining_ms(self):
        """Milliseconds until the deadline, at least 0; `None` inside `init`."""
        if self._event is None:
            return None
        return max(0, (self._event.deadline_ns - now_ns()) // 1_000_000)


# Answers ----------------------------------------------------------------------------------------


@functools.lru_cache(512)
def checked_name(name):
    """A header name as bytes of the wire, empty for a framing field."""
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    name = name.lower()
    if not name or not TOKEN.issuperset(name):
        raise BadReply("header name %r is not a token" % name)
    return b"" if name in FRAMING else name.encode()


def header_block(headers):
    """A checked header block from a mapping or pairs."""
    if hasattr(headers, "items"):
        headers = headers.items()
    block = bytearray()
    for name, value in headers:
        name = checked_name(name)
        if not name:
            continue
        if not isinstance(value, (str, bytes)):
            if isinstance(value, (list, tuple)):
                block += header_block((name, one) for one in value)
                continue
            value = str(value)
        if isinstance(value, str):
            try:
                value = value.encode("latin-1")
            except UnicodeEncodeError:
                value = value.encode("utf-8")
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise BadReply("header %s holds a line break or NUL" % name.decode())
        block += b"%b\n%b\n" % (name, value.strip(b" \t"))
    if len(block) > HEADERS_MAX:
        raise BadReply("headers of %d bytes, at most 64 KiB are allowed" % len(block))
    return bytes(block)


def checked_status(status):
    if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
        raise BadReply("status %r is not 200 to 599" % (status,))
    return int(status)


def content(value):
    """(header block, bytes) of a plain value, or (None, iterator) for a stream."""
    if isinstance(value, str):
        try:
            return TEXT, value.encode()
        except UnicodeEncodeError as error:
            raise BadReply("text is not UTF-8: %s" % error) from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BYTES, bytes(value)
    if value is None:
        return b"", b""
    if isinstance(value, (dict, list, tuple, bool, int, float)):
        try:
            return JSON, encode_json(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadReply("answer is not JSON: %s" % error) from None
    if hasattr(value, "__aiter__") or hasattr(value, "__next__"):
        return None, value
    if hasattr(value, "__iter__") and not hasattr(value, "__len__"):
        return None, iter(value)
    raise BadReply("cannot turn %s into an answer" % type(value).__name__)


def answer(value, text=TEXT):
    """(status, header block, bytes or iterator) of whatever a function returned. `text` is the
    header block of an answer that is text and nothing else."""
    status, headers = None, None
    if isinstance(value, str):
        return 200, text, content(value)[1]
    if isinstance(value, tuple) and len(value) in (2, 3):
        if len(value) == 3:
            headers = value[2]
        value, status = value[0], checked_status(value[1])
    elif not isinstance(value, (str, bytes, dict, list)) and hasattr(value, "status") and hasattr(value, "body"):
        status, headers, value = checked_status(value.status), getattr(value, "headers", None), value.body
    default, body = content(value)
    if default is None:
        default = BYTES
    block = header_block(headers) if headers else b""
    if default and b"\n" + b"content-type\n" not in b"\n" + block:
        block = default + block
    if status is None:
        status = 204 if value is None else 200
    if status in (204, 205, 304) and isinstance(body, bytes):
        body = b""
    return status, block, body


def chunk_bytes(chunk):
    if isinstance(chunk, str):
        return chunk.encode()
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return bytes(chunk)
    raise BadReply("a stream yields str or bytes, not %s" % type(chunk).__name__)


class Output:
    """The body of one answer on its way out, as far as the engine's credit reaches."""

    __slots__ = ("worker", "stream", "window", "queue", "last", "wake")

    def __init__(self, worker, stream):
        self.worker, self.stream = worker, stream
        self.window, self.queue, self.last, self.wake = WINDOW, collections.deque(), False, None
        worker.outputs[stream] = self

    def push(self, chunk):
        with self.worker.state:
            if len(chunk):
                self.queue.append(memoryview(chunk))
            self.pump()

    def finish(self):
        with self.worker.state:
            self.last = True
            if not self.queue:
                self.worker.put(BODY, END, self.stream)
                self.close()
            else:
                self.pump()

    def credit(self, size):
        with self.worker.state:
            self.window += size
            self.pump()

    def pump(self):
        while self.queue and self.window:
            chunk = self.queue[0]
            size = min(len(chunk), CHUNK_MAX, self.window)
            if size == len(chunk):
                self.queue.popleft()
            else:
                self.queue[0] = chunk[size:]
            self.window -= size
            end = END if self.last and not self.queue else 0
            self.worker.put(BODY, end, self.stream, bytes(chunk[:size]))
            if end:
                self.close()
        if self.wake and not self.queue:
            self.wake()

    def close(self):
        self.queue.clear()
        self.worker.outputs.pop(self.stream, None)
        if self.wake:
            self.wake()


class Incoming:
    """The body of one request on its way in."""

    __slots__ = ("worker", "stream", "chunks", "ended", "whole", "owed", "wake")

    def __init__(self, worker, stream, whole, first):
        self.worker, self.stream, self.whole = worker, stream, whole
        self.chunks, self.ended, self.owed, self.wake = collections.deque(), False, 0, None
        if first:
            self.chunks.append((first, 0))

    def add(self, chunk, ended):
        self.ended = ended
        if chunk:
            self.chunks.append((chunk, len(chunk)))
            if self.whole and not ended:
                self.consumed(len(chunk))
        if self.wake:
            self.wake()

    def consumed(self, size):
        # One CREDIT for a quarter of the window: the sender never runs dry, and small chunks do
        # not cost a frame each.
        self.owed += size
        if self.owed >= CHUNK_MAX:
            self.worker.put(CREDIT, 0, self.stream, U32.pack(self.owed))
            self.owed = 0

    async def next(self):
        """The next chunk, or `None` at the end."""
        import asyncio

        while not self.chunks:
            if self.ended:
                return None
            ready = asyncio.get_running_loop().create_future()
            self.wake = lambda: ready.done() or ready.set_result(None)
            try:
                await ready
            finally:
                self.wake = None
        chunk, size = self.chunks.popleft()
        if not self.ended and size:
            self.consumed(size)
            self.worker.flush_soon()
        return chunk


# Output of prints and logs ----------------------------------------------------------------------

# The invocation whose code runs. Threads a function starts inherit it through `Thread.start`.
current = contextvars.ContextVar("mote_invocation", default=None)


class LineWriter(io.TextIOBase):
    """stdout or stderr of the function: every line becomes a LOG frame of its invocation."""

    encoding, errors, closed = "utf-8", "backslashreplace", False

    def __init__(self, worker, source):
        self.worker, self.source, self.partial = worker, source, {}
        self.buffer = RawWriter(self)

    def fileno(self):
        return self.source

    def writable(self):
        return True

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        stream = self.worker.current_stream()
        whole = self.partial.pop(stream, "") + text if self.partial else text
        *lines, rest = whole.split("\n")
        if len(rest) > LINE_MAX:
            lines.append(rest)
            rest = ""
        if rest:
            self.partial[stream] = rest
        for line in lines:
            self.worker.log(self.source, 2, line, stream)
        return len(text)

    def flush(self):
        pass  # lines leave as they are completed; the rest of a line when its invocation ends

    def end(self, stream):
        rest = self.partial.pop(stream, None)
        if rest:
            self.worker.log(self.source, 2, rest, stream)


class RawWriter(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text):
        self.text = text

    def fileno(self):
        return self.text.source

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        self.text.write(data.decode("utf-8", "backslashreplace"))
        return len(data)


# The worker -------------------------------------------------------------------------------------


class Worker:
    """One connection to the engine and the function behind it."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = bytearray(RECEIVE_BYTES)
        self.kept = 0  # bytes at the start of `buffer` that are not a whole frame yet
        self.out = []  # pieces of frames; list operations on it are atomic
        self.sending = threading.Lock()
        self.state = threading.RLock()  # guards `Output`s against the reader in thread mode
        self.ready = collections.deque()  # events that wait for their turn
        self.incoming = {}  # stream to (Event, Incoming) whose body is not complete
        self.outputs = {}  # stream to Output
        self.running = {}  # stream to Event, in threads and on a loop
        self.inline = None  # Event of the one running invocation
        self.reader = threading.get_ident()
        self.whole_bodies = True
        self.draining = False
        self.forked = False
        self.spec = None
        self.text = TEXT  # the header block of answers that are text and nothing else
        self.root = ""  # where an ASGI application is mounted
        self.path_root = ""  # what of it stands in the path of its requests
        self.loaded_ns = 0
        self.writers = []
        self.at_end = []  # what a function wants called after a drain
        self.state_of_app = {}  # what an ASGI lifespan keeps for its requests
        self.flush_soon = self.flush

    # Frames out

    def put(self, kind, flags, stream, payload=b""):
        self.out += (HEADER.pack(len(payload), kind, flags, 0, stream), payload)

    def flush(self):
        """Writes what is queued. From any thread: whoever holds the lock looks again after it
        let go, so nobody waits and nothing stays behind."""
        out = self.out
        while out:
            if not self.sending.acquire(False):
                return
            try:
                if self.forked:
                    os._exit(0)  # a forked child returned from the handler: not our answer
                count = len(out)
                data = b"".join(out[:count])
                del out[:count]
                self.sock.sendall(data)
            except OSError:
                os._exit(1)  # the engine is gone, nobody is left to answer to
            finally:
                self.sending.release()

    def flush_last(self):
        """Writes what is queued before the process ends, behind whatever another thread is still
        writing: ending while it does would tear an answer."""
        with self.sending:
            data = b"".join(self.out)
            self.out.clear()
            try:
                self.sock.sendall(data)
            except OSError:
                pass  # the engine is gone, nobody is left to answer to

    def put_result(self, event, entered, returned, status, headers, body):
        """RESULT; a body beyond the inline part follows as credit allows."""
        stream, size = event._stream, len(body)
        if size <= INLINE_MAX:
            self.out += (
                RESULT_FRAME.pack(
                    24 + len(headers) + size, RESULT, END, 0, stream,
                    entered, returned, status, 0, len(headers),
                ), headers, body,
            )  # fmt: skip
            return
        output = self.open_result(event, entered, returned, status, headers, body[:INLINE_MAX])
        output.last = True
        output.push(memoryview(body)[INLINE_MAX:])

    def open_result(self, event, entered, returned, status, headers, first):
        """RESULT of a stream, `first` (at most the inline size) inside it."""
        self.out += (
            RESULT_FRAME.pack(
                24 + len(headers) + len(first), RESULT, 0, 0, event._stream,
                entered, returned, status, 0, len(headers),
            ), headers, first,
        )  # fmt: skip
        event._output = Output(self, event._stream)
        return event._output

    def put_error(self, event, kind, message, trace="", entered=0, returned=0):
        stream = event._stream if event else 0
        if event and event._output:
            with self.state:
                event._output.close()
        fault = {"kind": kind, "message": message[:4096], "trace": trace[-LINE_MAX:],
                 "entered_ns": entered, "returned_ns": returned}  # fmt: skip
        self.put(ERROR, END, stream, json.dumps(fault).encode())

    def put_exception(self, event, error, entered=0, returned=0):
        """ERROR for an exception, its trace without the shim's own frames."""
        kind = type(error).__name__
        if isinstance(error, Cancelled):
            return self.put_error(event, kind, "the caller is gone", "", entered, returned)
        try:
            message = str(error)
        except Exception:  # a broken __str__ must not take the worker down
            message = "(no text)"
        trace = ""
        if not isinstance(error, BadReply):
            import traceback

            tb = error.__traceback__
            while tb and tb.tb_frame.f_code.co_filename == __file__:
                tb = tb.tb_next
            trace = "".join(traceback.format_exception(type(error), error, tb))
        self.put_error(event, kind, message, trace, entered, returned)

    # Logs

    def current_event(self):
        event = current.get()
        if event is None:
            event = getattr(threading.current_thread(), "_mote_invocation", None) or self.inline
        return None if event is None or event._done else event

    def current_stream(self):
        event = self.current_event()
        return event._stream if event else 0

    def log(self, source, level, line, stream):
        data = line.encode("utf-8", "backslashreplace")
        for start in range(0, len(data), LINE_MAX) or (0,):
            self.put(LOG, 0, stream, bytes((source, level)) + data[start : start + LINE_MAX])
        self.flush()  # at once: a line must not wait for a slow handler or be lost in a crash

    def logger(self):
        import logging

        logger = logging.getLogger(self.spec["function"])
        if not any(isinstance(handler, log_handler_class()) for handler in logger.handlers):
            logger.addHandler(log_handler_class()(self))
            logger.propagate = False
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.INFO)
        return logger

    def capture_output(self):
        """Turns prints into LOG frames. Bytes written to fd 1 and 2 directly stay untouched."""
        self.writers = [LineWriter(self, STDOUT), LineWriter(self, STDERR)]
        sys.stdout, sys.stderr = self.writers
        start = threading.Thread.start

        def start_tagged(thread):
            thread._mote_invocation = self.current_event()
            start(thread)

        threading.Thread.start = start_tagged

        def in_child():
            # A forked child shares the socket's file description; one byte from it would tear a
            # frame of the parent. It prints to the real pipes instead.
            self.forked = True
            self.out.clear()
            self.sending = threading.Lock()
            self.sock.close()
            sys.stdout = open(1, "w", buffering=1, closefd=False)
            sys.stderr = open(2, "w", buffering=1, closefd=False)
            if "logging" in sys.modules:
                import logging

                for logger in (logging.root, logging.getLogger(self.spec and self.spec["function"])):
                    for handler in list(logger.handlers):
                        if isinstance(handler, log_handler_class()):
                            logger.removeHandler(handler)
                            logger.addHandler(logging.StreamHandler(sys.stderr))

        os.register_at_fork(after_in_child=in_child)

    def end_output(self, stream):
        for writer in self.writers:
            if writer.partial:
                writer.end(stream)

    # Frames in

    def receive(self, block=True):
        """Reads once and files every whole frame. Returns whether anything came."""
        if self.kept == len(self.buffer):
            self.buffer += bytes(min(len(self.buffer), PAYLOAD_MAX + HEADER.size))
        view = memoryview(self.buffer)
        try:
            size = self.sock.recv_into(view[self.kept :], 0, 0 if block else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            os._exit(1)
        if not size:
            # The engine closed (nobody waits for answers) or a drain is complete. Threads of the
            # function may still run, so no clean-up.
            if self.draining:
                self.flush_last()
            os._exit(0)
        data = bytes(view[: self.kept + size])
        view.release()
        try:
            self.kept = rest = len(data) - self.parse(data)
        except ProtocolError as error:
            os.write(2, b"mote_shim: protocol violation: %s\n" % str(error).encode())
            os._exit(65)
        if rest:
            self.buffer[:rest] = data[-rest:]
        return True

    def parse(self, data):
        """Files every whole frame in `data`; returns the bytes used."""
        position, end = 0, len(data)
        while end - position >= 12:
            size, kind, flags, zero, stream = HEADER.unpack_from(data, position)
            if size > PAYLOAD_MAX or flags > END or zero or not HELLO <= kind <= DRAIN:
                raise ProtocolError("frame header %s" % data[position : position + 12].hex())
            start = position + 12
            position = start + size
            if position > end:
                return start - 12
            if kind == INVOKE:
                if self.spec is None:
                    raise ProtocolError("INVOKE before LOAD")
                if size < 40:
                    raise ProtocolError("INVOKE too short")
                lengths = INVOKE_LENGTHS.unpack_from(data, start + 29)
                head = 40 + lengths[0] + lengths[1] + lengths[2] + lengths[4]
                if head > size or not stream:
                    raise ProtocolError("INVOKE lengths pass its end")
                event = Event(stream, data[start:position], lengths, head)
                if flags:
                    self.ready.append(event)
                else:
                    self.begin_incoming(event, head)
            else:
                self.file_frame(kind, flags, stream, data[start:position])
        return position

    def begin_incoming(self, event, head):
        incoming = Incoming(self, event._stream, self.whole_bodies, event._payload[head:])
        event._payload = event._payload[:head]
        event._incoming = incoming
        self.incoming[event._stream] = event
        if not self.whole_bodies:
            self.ready.append(event)

    def file_frame(self, kind, flags, stream, payload):
        if kind == BODY:
            event = self.incoming.get(stream)
            if len(payload) > CHUNK_MAX:
                raise ProtocolError("BODY chunk above 64 KiB")
            if event is None:
                return  # crossed our END on its way: the stream is over for us
            incoming = event._incoming
            incoming.add(payload, bool(flags))
            if flags:
                del self.incoming[stream]
                if incoming.whole:
                    event.body = b"".join(chunk for chunk, _ in incoming.chunks)
                    incoming.chunks.clear()
                    self.ready.append(event)
        elif kind == CREDIT:
            if len(payload) != 4:
                raise ProtocolError("CREDIT is not 4 bytes")
            output = self.outputs.get(stream)
            if output:
                output.credit(U32.unpack(payload)[0])
        elif kind == CANCEL:
            self.cancel(stream)
        elif kind == DRAIN:
            self.draining = True
        elif kind == LOAD and self.spec is None:
            self.spec = parse_load(payload)
        else:
            raise ProtocolError("frame kind %d is not for a worker now" % kind)

    def cancel(self, stream):
        """Ends a stream nobody waits for: at once if it has not started, else by asking."""
        with self.state:
            event = self.incoming.pop(stream, None)
            waiting = next((one for one in self.ready if one._stream == stream), None)
            if waiting:
                self.ready.remove(waiting)
                event = waiting
            begun = self.running.get(stream)
            if begun is None and self.inline and self.inline._stream == stream:
                begun = self.inline
            output = self.outputs.get(stream)
            if begun:
                begun._cancelled = True
                if event:
                    event._incoming.add(b"", True)
                if output and output.wake:
                    output.wake()
                if begun._task:
                    begun._task.cancel()
            elif event:
                self.put_error(event, "Cancelled", "the caller is gone")
            elif output:
                # The handler has returned; only bytes are left, and nobody wants them.
                output.close()
                self.put_error(Event(stream, b"", (), 0), "Cancelled", "the caller is gone")

    # Loading

    def load(self):
        """Imports the function; returns (serve, shape, concurrency)."""
        spec = self.spec
        os.environ.update(spec["env"])
        os.chdir(spec["code_dir"])
        # First the code, then its packages, before everything of the host.
        sys.path[:0] = [spec["code_dir"]] + ([spec["packages_dir"]] if spec["packages_dir"] else [])
        if sys.version_info < (3, 10):
            import asyncio

            # Until 3.10 an asyncio.Event made at import belongs to the loop of that moment.
            asyncio.set_event_loop(asyncio.new_event_loop())
        self.root = "/" + spec["function"]
        find = adapted if spec.get("compat") else lambda worker: find_entry(spec["entry"])
        module, handler, found = find(self)
        limit = spec["concurrency"]
        shape = shape_of(handler, found)
        self.path_root = "" if routes_without_root() else self.root
        if shape in ("asgi", "async handle"):
            self.whole_bodies = shape != "asgi" and not getattr(module, "stream_request", False)
            limit = limit or 100
            runner = self.start_async(module, handler, shape, limit)
        else:
            init = getattr(module, "init", None)
            if init and hasattr(made := with_arguments(init, 1)(Context(self, None)), "__await__"):
                import asyncio

                asyncio.run(wait_for(made))
            call = wsgi_handler(self, handler) if shape == "wsgi" else handler
            limit = limit or 1
            runner = (lambda: self.serve_inline(call)) if limit == 1 else (lambda: self.serve_threads(call, limit))
            with_arguments(call, 2)  # says what is wrong before the first call
        if "logging" in sys.modules:
            take_over_logging(sys.modules["logging"], self)
        return runner, shape, limit

    def run(self):
        """The life of a worker."""
        self.put(HELLO, 0, 0, struct.pack("<H", VERSION) + NAME)
        self.flush()
        while self.spec is None:
            if self.draining:
                return
            self.receive()
        started = now_ns()
        self.capture_output()
        try:
            serve, shape, concurrency = self.load()
        except BaseException as error:  # SystemExit at import is a load error too
            self.put_exception(None, error)
            self.end_output(0)
            self.flush()
            os._exit(1)
        self.end_output(0)
        import gc

        gc.freeze()  # what was loaded stays; collections need not look at it again
        ready = {
            "init_ns": now_ns() - started,
            "concurrency": concurrency,
            "shape": shape,
            "whole_bodies": self.whole_bodies,
        }
        self.put(READY, 0, 0, encode_json(ready).encode())
        self.flush()
        serve()
        for call in self.at_end:
            call()
        self.flush_last()

    def idle(self):
        return not (self.ready or self.incoming or self.outputs or self.running)

    # Serving, one at a time

    def serve_inline(self, handler):
        ready, out, text = self.ready, self.out, self.text
        stdout, stderr = self.writers
        pack, clock = RESULT_FRAME.pack, now_ns
        takes_event_only = arguments_of(handler) == 1
        if not takes_event_only:
            handler = with_arguments(handler, 2)
        flushed = clock()
        while True:
            if not ready:
                self.flush()
                if self.draining and self.idle():
                    return
                self.receive()
                flushed = clock()
                continue
            self.inline = event = ready.popleft()
            value = failure = None
            entered = clock()
            try:
                value = handler(event) if takes_event_only else handler(event, Context(self, event))
            except BaseException as error:  # SystemExit too: one invocation, not the worker
                failure = error
            returned = clock()
            if stdout.partial or stderr.partial:
                self.end_output(event._stream)
            if failure is None:
                kind = type(value)
                if kind is str and value.isascii():
                    headers, body = text, value.encode()
                elif kind is bytes:
                    headers, body = BYTES, value
                else:
                    headers = None
                if headers and len(body) <= INLINE_MAX:
                    out += (
                        pack(24 + len(headers) + len(body), 6, 1, 0, event._stream,
                             entered, returned, 200, 0, len(headers)),
                        headers, body,
                    )  # fmt: skip
                else:
                    self.conclude(event, value, entered, returned)
            else:
                self.put_exception(event, failure, entered, returned)
            event._done = True
            self.inline = None
            if returned - flushed > FLUSH_NS or len(out) > 192:
                self.flush()
                # A CANCEL for an invocation that waits here may have come meanwhile.
                self.receive(block=False)
                flushed = clock()

    def conclude(self, event, value, entered, returned):
        """Sends what a synchronous handler returned."""
        try:
            if hasattr(value, "__await__"):
                import asyncio

                value = asyncio.run(wait_for(value))
                returned = now_ns()
            status, headers, body = answer(value, self.text)
            if isinstance(body, bytes):
                self.put_result(event, entered, returned, status, headers, body)
            elif hasattr(body, "__next__"):
                self.send_stream(event, body, entered, status, headers)
            else:
                raise BadReply("an async stream needs an async handler")
        except BaseException as error:
            self.put_exception(event, error, entered, now_ns())

    def send_stream(self, event, chunks, entered, status, headers):
        """Sends what an iterator yields. The first chunk is awaited before the head leaves, so a
        generator that fails at once is an error and not a torn answer."""
        try:
            first = chunk_bytes(next(chunks, b""))
            output = self.open_result(event, entered, now_ns(), status, headers, first[:INLINE_MAX])
            self.push_waiting(output, event, first[INLINE_MAX:])
            for chunk in chunks:
                self.push_waiting(output, event, chunk_bytes(chunk))
            output.finish()
        finally:
            close = getattr(chunks, "close", None)
            if close:
                close()

    def push_waiting(self, output, event, chunk):
        if self.inline is event:
            output.push(chunk)
            self.flush()
            self.receive(block=False)
            while output.queue and not event._cancelled:
                self.receive()
        else:
            waiter = threading.Event()
            output.wake = waiter.set
            output.push(chunk)
            self.flush()
            while output.queue and not event._cancelled:
                waiter.wait()
                waiter.clear()
            output.wake = None
        if event._cancelled:
            raise Cancelled

    # Serving in threads

    def serve_threads(self, handler, limit):
        from concurrent.futures import ThreadPoolExecutor

        handler = with_arguments(handler, 2)
        pool = ThreadPoolExecutor(limit, thread_name_prefix="invocation")
        # Threads that finish wake nobody; so a drain with work in flight is ended by them.
        while True:
            while self.ready and len(self.running) < limit:
                event = self.ready.popleft()
                self.running[event._stream] = event
                pool.submit(self.run_in_thread, handler, event, limit)
            self.flush()
            if self.draining:
                with self.state:
                    if self.idle():
                        return
            self.receive()

    def run_in_thread(self, handler, event, limit):
        while True:
            token = current.set(event)
            entered = now_ns()
            try:
                value = handler(event, Context(self, event))
                returned = now_ns()
                self.end_output(event._stream)
                self.conclude(event, value, entered, returned)
            except BaseException as error:
                self.end_output(event._stream)
                self.put_exception(event, error, entered, now_ns())
            event._done = True
            current.reset(token)
            with self.state:
                del self.running[event._stream]
                following = None
                # The reader sleeps in recv: the thread that frees a place fills it.
                if self.ready and len(self.running) < limit:
                    following = self.ready.popleft()
                    self.running[following._stream] = following
            self.flush()
            if following is None:
                if self.draining and self.idle():
                    # The main thread is blocked in recv and would never see that all is done.
                    self.sock.shutdown(socket.SHUT_RD)
                return
            event = following

    # Serving on an event loop

    def start_async(self, module, handler, shape, limit):
        """Makes the loop, so that `init` and the handlers share it; returns how to serve."""
        import asyncio

        if sys.version_info < (3, 10):
            loop = asyncio.get_event_loop()
        else:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        if hasattr(asyncio, "eager_task_factory"):
            # Most handlers never wait; they then end within their first step, with no trip
            # through the loop.
            loop.set_task_factory(asyncio.eager_task_factory)
        init = getattr(module, "init", None)
        if init:
            made = with_arguments(init, 1)(Context(self, None))
            if hasattr(made, "__await__"):
                loop.run_until_complete(wait_for(made))
        lifespan = None
        if shape == "asgi":
            lifespan = Lifespan(self, handler)
            loop.run_until_complete(lifespan.start())
        return lambda: self.serve_async(loop, handler, shape, limit, lifespan)

    def serve_async(self, loop, handler, shape, limit, lifespan):
        import asyncio

        run = self.run_asgi if shape == "asgi" else self.run_async
        call = handler if shape == "asgi" else with_arguments(handler, 2)
        flushing, drained = False, loop.create_future()

        def flush():
            nonlocal flushing
            flushing = False
            self.flush()

        def flush_soon():
            # One write for everything that completes in this turn of the loop.
            nonlocal flushing
            if not flushing:
                flushing = True
                loop.call_soon(flush)

        def begin():
            while self.ready and len(self.running) < limit:
                event = self.ready.popleft()
                self.running[event._stream] = event
                token = current.set(event)
                task = loop.create_task(guarded(event))
                current.reset(token)
                if not event._done:
                    event._task = task

        async def guarded(event):
            entered = now_ns()
            try:
                await run(call, event, entered)
            except asyncio.CancelledError:
                self.put_error(event, "Cancelled", "the caller is gone", "", entered, now_ns())
            except BaseException as error:
                self.put_exception(event, error, entered, now_ns())
            self.end_output(event._stream)
            event._done = True
            incoming = self.incoming.pop(event._stream, None)
            del self.running[event._stream]
            if incoming or self.ready or self.draining:
                loop.call_soon(turn)
            flush_soon()

        def turn():
            begin()
            if self.draining and self.idle() and not drained.done():
                drained.set_result(None)

        def readable():
            self.receive(block=False)
            turn()
            flush_soon()

        self.flush_soon = flush_soon
        loop.add_reader(self.sock.fileno(), readable)
        readable()  # frames may have come with LOAD
        loop.run_until_complete(drained)
        self.flush()
        if lifespan:
            loop.run_until_complete(lifespan.stop())

    async def push_async(self, output, chunk):
        import asyncio

        output.push(chunk)
        self.flush_soon()
        while output.queue:
            ready = asyncio.get_running_loop().create_future()
            output.wake = lambda: ready.done() or ready.set_result(None)
            try:
                await ready
            finally:
                output.wake = None

    async def run_async(self, handler, event, entered):
        value = handler(event, Context(self, event))
        if hasattr(value, "__await__"):
            value = await value
        returned = now_ns()
        self.end_output(event._stream)
        status, headers, body = answer(value, self.text)
        if isinstance(body, bytes):
            return self.put_result(event, entered, returned, status, headers, body)
        if not hasattr(body, "__aiter__"):
            body = as_async(body)
        output = None
        try:
            async for chunk in body:
                chunk = chunk_bytes(chunk)
                if output is None:
                    first, chunk = chunk[:INLINE_MAX], chunk[INLINE_MAX:]
                    output = self.open_result(event, entered, now_ns(), status, headers, first)
                await self.push_async(output, chunk)
        finally:
            close = getattr(body, "aclose", None)
            if close:
                await close()
        if output is None:
            return self.put_result(event, entered, now_ns(), status, headers, b"")
        output.finish()

    async def run_asgi(self, app, event, entered):
        state = {"start": None, "output": None, "done": False, "read": False, "wake": None}

        async def receive():
            incoming = event._incoming
            if not state["read"]:
                if incoming is None:
                    state["read"] = True
                    return {"type": "http.request", "body": event.body, "more_body": False}
                chunk = await incoming.next()
                if chunk is None and not event._cancelled:
                    state["read"] = True
                    return {"type": "http.request", "body": b"", "more_body": False}
                if chunk is not None:
                    return {"type": "http.request", "body": chunk, "more_body": True}
            if not (state["done"] or event._cancelled):
                import asyncio

                finished = asyncio.Event()  # only applications that watch for a disconnect get here
                state["wake"] = finished.set
                await finished.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if state["done"]:
                return
            kind = message["type"]
            if kind == "http.response.start":
                if state["start"]:
                    raise RuntimeError("http.response.start was sent twice")
                state["start"] = (checked_status(message["status"]), header_block(message.get("headers", ())))
            elif kind == "http.response.body":
                if not state["start"]:
                    raise RuntimeError("http.response.body was sent before http.response.start")
                status, headers = state["start"]
                body, more = message.get("body", b""), message.get("more_body", False)
                if state["output"] is None and not more:
                    self.end_output(event._stream)
                    self.put_result(event, entered, now_ns(), status, headers, bytes(body))
                    self.flush_soon()
                else:
                    if state["output"] is None:
                        state["output"] = self.open_result(event, entered, now_ns(), status, headers, b"")
                    await self.push_async(state["output"], bytes(body))
                    if not more:
                        self.end_output(event._stream)
                        state["output"].finish()
                if not more:
                    state["done"] = True
                    if state["wake"]:
                        state["wake"]()
            else:
                raise RuntimeError("unknown ASGI message %r" % kind)

        try:
            await app(asgi_scope(self, event), receive, send)
        except BaseException as error:
            if not state["done"]:
                raise
            if isinstance(error, Exception):
                # The answer is already complete; the error is for the log (a background task).
                import traceback

                traceback.print_exception(type(error), error, error.__traceback__)
        if not state["done"]:
            raise BadReply("the application returned without a complete answer")


# Finding and adapting functions -----------------------------------------------------------------


def parse_load(payload):
    try:
        spec = json.loads(payload)
        spec = {"packages_dir": None, "concurrency": None, "env": {}, **spec}
        spec["function"], spec["revision"], spec["code_dir"], spec["entry"]
        return spec
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError("LOAD: %r" % error) from None


def missing(module, name):
    """What is said of a module without the object that is called; and which it has that could be."""
    text = "module %r has no attribute %r" % (module.__name__, name)
    for other in ("new", "handle", "app", "application", "handler", "main"):
        if callable(getattr(module, other, None)):
            return '%s; to use its `%s`: entry = "%s:%s" in mote.toml' % (text, other, module.__name__, other)
    return text


def find_entry(entry):
    """(module, object, its name) of `module:object`, `module`, or a file name."""
    import importlib

    path, _, name = entry.partition(":")
    if path.endswith(".py"):
        path = path[:-3]
    module = importlib.import_module(path.strip("./").replace("/", "."))
    if name:
        found = module
        for part in name.split("."):
            if found is module and not hasattr(module, part):
                raise AttributeError(missing(module, part))
            found = getattr(found, part)
        return module, found, name
    for name in ("handle", "app", "handler", "main"):
        if callable(getattr(module, name, None)):
            return module, getattr(module, name), name
    raise LookupError("module %s has none of handle, app, handler, main" % module.__name__)


def adapted(worker):
    """What `find_entry` says of a function written for another platform: its adapter's handler."""
    import importlib.util

    name, folder = worker.spec["compat"], os.path.join(os.path.dirname(os.path.abspath(__file__)), "compat")
    if not os.path.isfile(os.path.join(folder, name + ".py")):
        raise LookupError("there is no adapter for %s" % name)
    found = importlib.util.spec_from_file_location(
        "mote_compat", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(found)
    sys.modules["mote_compat"] = package
    found.loader.exec_module(package)
    return importlib.import_module("mote_compat." + name).adapt(worker)


def code_of(function):
    """(code object, number of bound arguments) of a callable, through decorators; or (None, 0)."""
    bound = 0
    for _ in range(32):
        if hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function, bound = function.__func__, 1
        elif hasattr(function, "__code__"):
            return function.__code__, bound
        elif hasattr(type(function), "__call__") and hasattr(type(function).__call__, "__code__"):
            return type(function).__call__.__code__, 1
        else:
            break
    return None, 0


def shape_of(handler, name):
    """Which of the four shapes an entry has, by its signature: it is not called to find out."""
    if not callable(handler):
        raise TypeError("%s is not callable" % name)
    code, bound = code_of(handler)
    if code is None:
        return "handle"
    names = code.co_varnames[bound : code.co_argcount]
    plain = hasattr(handler, "__code__")
    if len(names) == 3 and not (plain and names[:2] == ("event", "ctx")):
        return "asgi"
    if hasattr(handler, "wsgi_app") or (len(names) == 2 and names[1] == "start_response"):
        return "wsgi"
    if not plain and name in ("app", "application") and len(names) == 2:
        return "wsgi"
    # 0x80 is a coroutine function, 0x200 an async generator (see `inspect`).
    return "async handle" if code.co_flags & 0x280 else "handle"


def arguments_of(function):
    """How many positional arguments a callable names, or None where it takes any."""
    code, bound = code_of(function)
    return None if code is None or code.co_flags & 0x04 else code.co_argcount - bound


def with_arguments(function, count):
    """`function`, called with as many of `count` arguments as it takes."""
    takes = arguments_of(function)
    if takes is None:
        return function
    if takes >= count:
        defaults = getattr(function, "__defaults__", None) or ()
        if takes - len(defaults) > count:
            raise TypeError("the handler takes %d arguments, at most %d are given" % (takes, count))
        return function
    if takes == 1:
        return lambda event, _: function(event)
    return lambda *_: function()


async def wait_for(value):
    return await value


async def as_async(chunks):
    for chunk in chunks:
        yield chunk


def decoded_path(path):
    if b"%" not in path:
        return path
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(path)


class WsgiAnswer:
    __slots__ = ("status", "headers", "body")


class WsgiBody:
    """Iterates a WSGI result and closes it."""

    def __init__(self, first, chunks, result):
        self.first, self.chunks, self.result = first, chunks, result

    def __iter__(self):
        return self

    def __next__(self):
        first, self.first = self.first, b""
        return first or next(self.chunks)

    def close(self):
        if hasattr(self.result, "close"):
            self.result.close()


def wsgi_handler(worker, app):
    """A handler around a WSGI application (PEP 3333)."""
    script = "/" + worker.spec["function"]

    def handle(event):
        headers = event.headers
        host, _, port = headers.get("host", "localhost").partition(":")
        scheme = headers.get("x-forwarded-proto", "http")
        environ = {
            "REQUEST_METHOD": event.method,
            "SCRIPT_NAME": script,
            "PATH_INFO": decoded_path(event.path.encode("latin-1")).decode("latin-1"),
            "QUERY_STRING": event.query,
            "SERVER_NAME": host,
            "SERVER_PORT": port or ("443" if scheme == "https" else "80"),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_LENGTH": str(len(event.body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": scheme,
            "wsgi.input": io.BytesIO(event.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": worker.spec["concurrency"] not in (None, 1),
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            "mote.event": event,
        }
        for name, value in headers.items():
            if name == "content-type":
                environ["CONTENT_TYPE"] = value
            elif name != "content-length":
                environ["HTTP_" + name.upper().replace("-", "_")] = value
        started, written = [], []

        def start_response(status, fields, exc_info=None):
            if started and not exc_info:
                raise RuntimeError("start_response was called twice")
            started[:] = [status, fields]
            return written.append

        result = app(environ, start_response)
        chunks = iter(result)
        # The head is known once the first chunk is there, not before.
        first = b"".join(written) + next(chunks, b"")
        if not started:
            raise BadReply("the application did not call start_response")
        reply = WsgiAnswer()
        reply.status, reply.headers = int(started[0].split(None, 1)[0]), started[1]
        reply.body = WsgiBody(first, chunks, result)
        if isinstance(result, (list, tuple)) or getattr(result, "__len__", lambda: 0)() == 1:
            reply.body = b"".join(reply.body)
            WsgiBody(b"", chunks, result).close()
        return reply

    return handle


@functools.lru_cache(64)
def server_of(host, scheme):
    name, _, port = host.decode("latin-1").rpartition(":")
    if name and port.isdigit():
        return name, int(port)
    return host.decode("latin-1"), 443 if scheme == "https" else 80


def routes_without_root():
    """Whether the application's framework is Starlette before 0.33 (of FastAPI before 0.109).

    It follows servers from before the specification said that `path` includes `root_path`: it looks
    for routes in the whole of `path`, and puts `root_path` in front of it in addresses.
    """
    starlette = sys.modules.get("starlette")
    numbers = str(getattr(starlette, "__version__", "")).split(".")[:2]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return False
    return [int(number) for number in numbers] < [0, 33]


def asgi_scope(worker, event):
    root, path_root = worker.root, worker.path_root
    method, path, query, _, length = event._lengths
    payload, path_end = event._payload, 40 + method + path
    block = payload[path_end + query : path_end + query + length]
    path = payload[40 + method : path_end]
    parts = block.split(b"\n")
    headers = list(zip(parts[0:-1:2], parts[1::2]))
    host = b"localhost"
    for name, value in headers:
        if name == b"host":
            host = value
            break
    scheme = event.headers["x-forwarded-proto"] if b"x-forwarded-proto" in parts[0:-1:2] else "http"
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": payload[40 : 40 + method].decode("latin-1"),
        "scheme": scheme,
        # By the specification `path` includes `root_path`; routers take it off again. Those of
        # before get it without: see `routes_without_root`.
        "path": path_root + decoded_path(path).decode("utf-8", "replace"),
        "raw_path": path_root.encode() + path,
        "query_string": payload[path_end : path_end + query],
        "root_path": root,
        "headers": headers,
        "server": server_of(host, scheme),
        "client": None,
        "state": worker.state_of_app.copy(),
        "extensions": {"mote": {"event": event}},  # its fields are cut out when touched
    }


class Lifespan:
    """Start-up and shutdown of an ASGI application that wants to know of them."""

    STOP_SECONDS_MAX = 5

    def __init__(self, worker, app):
        import asyncio

        self.worker, self.app, self.task = worker, app, None
        self.inbox, self.answered = asyncio.Queue(), asyncio.Event()
        self.failure = None

    async def run(self):
        async def send(message):
            if message["type"].endswith(".failed"):
                self.failure = message.get("message", "") or "no reason given"
            self.answered.set()

        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.3"},
                 "state": self.worker.state_of_app}  # fmt: skip
        try:
            await self.app(scope, self.inbox.get, send)
        except Exception:
            pass  # by the specification: this application has no lifespan
        finally:
            self.answered.set()

    async def start(self):
        import asyncio

        self.inbox.put_nowait({"type": "lifespan.startup"})
        self.task = asyncio.ensure_future(self.run())
        await self.answered.wait()
        if self.failure is not None:
            raise RuntimeError("lifespan startup failed: %s" % self.failure)

    async def stop(self):
        import asyncio

        if self.task.done():
            return
        self.answered.clear()
        self.inbox.put_nowait({"type": "lifespan.shutdown"})
        try:
            await asyncio.wait_for(self.answered.wait(), self.STOP_SECONDS_MAX)
        except asyncio.TimeoutError:
            pass


_log_handler_class = None


def take_over_logging(logging, worker):
    """Sends log lines with their levels, unless the function set up logging in a way of its own.

    A call of logging.info() and its like sets it up as well, if nothing else did: with one handler
    for stderr and the usual format. Such a set-up is taken for none."""
    root = logging.root
    usual = [
        handler
        for handler in root.handlers
        if type(handler) is logging.StreamHandler
        and handler.stream is sys.stderr
        and getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT
    ]
    if root.handlers and (len(root.handlers) > 1 or not usual):
        return
    for handler in usual:
        root.removeHandler(handler)
    root.addHandler(log_handler_class()(worker))
    if root.level == logging.WARNING:
        root.setLevel(logging.INFO)


def log_handler_class():
    """The `logging.Handler` that writes LOG frames; made late, logging is slow to import."""
    global _log_handler_class
    if _log_handler_class is None:
        import logging

        class LogHandler(logging.Handler):
            def __init__(self, worker):
                super().__init__()
                self.worker = worker
                self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

            def emit(self, record):
                try:
                    level = min(4, max(1, record.levelno // 10))
                    stream = self.worker.current_stream()
                    for line in self.format(record).split("\n"):
                        self.worker.log(LOGGED, level, line, stream)
                except Exception:
                    self.handleError(record)

        _log_handler_class = LogHandler
    return _log_handler_class


def main():
    sock = socket.socket(fileno=3)
    sock.set_inheritable(False)  # a program the function starts must not hold the connection
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # the shim's own folder is no place to import from
    sys.modules["mote_shim"] = sys.modules["__main__"]
    if sys.flags.no_site:
        # Packages of the machine stay out of sight, so that a function needs what it names and no more;
        # what `site` gives every program (exit, help) is there all the same.
        import site

        site.setquit()
        site.setcopyright()
        site.sethelper()
    try:
        Worker(sock).run()
    except KeyboardInterrupt:
        os._exit(130)  # Ctrl-C reaches the whole group of a node in the foreground
    os._exit(0)  # threads the function left behind do not keep a drained worker alive


if __name__ == "__main__":
    main()
