"""What a function requests from its node: `ctx.kv`, `ctx.call`, `ctx.call_async`, `ctx.notify` and
`ctx.publish`.

The worker loads this file when a function first uses one of them, so that others do not pay for it.
`Requests` sends REQUEST frames and waits for RESPONSE in the three ways in which a worker serves;
`Kv` and `Services` say what the requests mean. The contract is docs/reference/worker-protocol.md.
"""

import collections
import json
import struct
import threading

import mote_shim

REQUEST = 12
STATE, FUNCTIONS, NOTIFY, MESSAGES = 1, 2, 3, 4
GET, PUT, DELETE, LIST, INCREMENT = 1, 2, 3, 4, 5
CALL, ACCEPT = 1, 2
PUBLISH, ASK = 1, 2
NOT_DURABLE, CONDITION, KEYS_ONLY = 1, 2, 4
WITH_QUERY = 1
DONE, NOT_FOUND, CONFLICT, FULL, INVALID, DENIED, UNAVAILABLE, CANCELLED, FAILED = range(9)
WORDS = {FULL: "full", INVALID: "invalid", DENIED: "denied", UNAVAILABLE: "unavailable", FAILED: "failed"}
UNDER_WAY_MAX = 256
BYTES_MAX = 4 << 20
CALL_BODY_MAX = 960 << 10
NOTICE_BODY_MAX = 256 << 10

STATE_HEAD = struct.Struct("<IBBHBBHIQQ")
CALL_HEAD = struct.Struct("<IBBHIBBHHHIQH6x")
NOTIFY_HEAD = struct.Struct("<IBBHHHI")
PUBLISH_HEAD = struct.Struct("<IBBHBBHHHHH4x")
RESPONSE_HEAD = struct.Struct("<IB3x")
VERSION_AND_EXPIRY = struct.Struct("<QQ")
VERSION_AND_NUMBER = struct.Struct("<Qq")
LISTED = struct.Struct("<QII")
U64 = struct.Struct("<Q")


class Error(Exception):
    """A request that the node did not carry out. `code` is a word: `full`, `invalid`, `denied`,
    `unavailable`, `failed` or `conflict`."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Conflict(Error):
    """The entry does not have the required version. `version` is the entry's version; 0 if there is
    no entry."""

    def __init__(self, version):
        super().__init__("conflict", "the entry has version %d" % version if version else "there is no such entry")
        self.version = version


class CallError(Error):
    """A call that the function did not answer. `status` is what a caller over HTTP would
    receive."""

    def __init__(self, code, message, status=0):
        super().__init__(code, message)
        self.status = status


class PublishError(Error):
    """A message that was not published. `code` is `denied` if the manifest or the broker does not
    allow it, and `unavailable` if the broker did not acknowledge it in time."""


class Requests:
    """The requests of one worker that are under way."""

    def __init__(self, worker):
        self.worker, self.next_id, self.bytes = worker, 0, 0
        self.waiting = {}  # id to (what is called with (status, payload), event, bytes)
        self.queue = collections.deque()  # of those that wait until fewer are under way
        self.lock = threading.Lock()

    def number(self):
        self.next_id = (self.next_id + 1) & 0xFFFFFFFF
        return self.next_id

    def send(self, event, data, resolve):
        """Sends a request, or keeps it until there is room."""
        one = (event, data, resolve)
        with self.lock:
            if self.queue or not self.fits(len(data)):
                self.queue.append(one)
                return
            self.put(one)

    def fits(self, size):
        return len(self.waiting) < UNDER_WAY_MAX and self.bytes + size <= BYTES_MAX

    def put(self, one):
        event, data, resolve = one
        self.waiting[struct.unpack_from("<I", data)[0]] = (resolve, event, len(data))
        self.bytes += len(data)
        # For the engine, an invocation whose answer was sent is over.
        stream = 0 if event is None or event._done else event._stream
        self.worker.put(REQUEST, 0, stream, data)

    def file(self, payload):
        """A RESPONSE frame, in the thread that reads."""
        number, status = RESPONSE_HEAD.unpack_from(payload)
        with self.lock:
            found = self.waiting.pop(number, None)
            if found is None:
                return
            self.bytes -= found[2]
            sent = False
            while self.queue and self.fits(len(self.queue[0][1])):
                self.put(self.queue.popleft())
                sent = True
        found[0](status, payload)
        if sent:
            self.worker.flush_soon()

    def cancelled(self, event):
        """The caller no longer waits for this invocation, so its requests end at once."""
        with self.lock:
            ended = [one for one in self.waiting.values() if one[1] is event]
        for resolve, _, _ in ended:
            resolve(CANCELLED, b"\0" * 8)

    def ask(self, event, data, read):
        """Sends a request. Returns what `read` makes of its status and payload, or an awaitable for
        that in a worker that serves on an event loop."""
        worker = self.worker
        here = threading.get_ident() == worker.reader
        if worker.loop is not None and here:
            return self.ask_on_loop(event, data, read) if worker.serving else self.ask_at_once(event, data, read)
        answer = []
        if here:
            answer.append(self.wait_here(event, data))
        elif not worker.serving:
            raise RuntimeError("while the function loads, only its main thread can send requests to the node")
        elif worker.inline is not None:
            raise RuntimeError(
                "with one invocation at a time, only the handler's own thread can send requests to the node;"
                " with limits.concurrency above 1, every thread can"
            )
        else:
            done = threading.Event()

            def resolve(*parts):
                answer.append(parts)
                done.set()

            self.send(event, data, resolve)
            worker.flush()
            done.wait()
        return checked(*answer[0], read)

    def wait_here(self, event, data):
        """Sends a request and reads until its answer arrives, in the thread that reads."""
        answer = []
        self.send(event, data, lambda *parts: answer.append(parts))
        self.worker.flush()
        while not answer:
            self.worker.receive()
        return answer[0]

    async def ask_at_once(self, event, data, read):
        """Waits here: while the function loads, nothing else runs on its loop, which does not read
        yet."""
        return checked(*self.wait_here(event, data), read)

    async def ask_on_loop(self, event, data, read):
        ready = self.worker.loop.create_future()

        def resolve(*parts):
            if not ready.done():
                ready.set_result(parts)

        self.send(event, data, resolve)
        self.worker.flush_soon()
        return checked(*await ready, read)


def checked(status, payload, read):
    if status == CANCELLED:
        raise mote_shim.Cancelled("the caller is gone")
    return read(status, payload)


def refused(status, payload):
    raise Error(WORDS.get(status, "unavailable"), payload[8:].decode("utf-8", "replace"))


class Entry:
    """A value of the state, with the version that a change can require."""

    __slots__ = ("key", "value", "version", "expires_ms")

    def __init__(self, key, value, version, expires_ms=None):
        self.key, self.value, self.version, self.expires_ms = key, value, version, expires_ms

    @property
    def text(self):
        return self.value.decode()

    def json(self):
        return json.loads(self.value)

    def __repr__(self):
        return "Entry(%r, %r, version=%d)" % (self.key, self.value, self.version)


class Listing(list):
    """Entries in the order of their keys. `after` continues a listing; it is None at its end."""

    after = None


def encoded(value):
    """The bytes of a value: text as UTF-8, everything else but bytes as JSON."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def milliseconds(seconds):
    return 0 if seconds is None else max(1, round(seconds * 1000))


class Kv:
    """The state of the function: keys and values that the node keeps."""

    Error, Conflict = Error, Conflict

    __slots__ = ("_requests", "_event", "_namespace")

    def __init__(self, requests, event, namespace=b""):
        self._requests, self._event, self._namespace = requests, event, namespace

    def shared(self, name):
        """The shared namespace of this name, which the manifest must list in `[kv] shared`."""
        return Kv(self._requests, self._event, name.encode())

    def _ask(self, operation, key, read, rest=b"", flags=0, limit=0, number=0, ttl_ms=0, durable=True):
        key = key.encode() if isinstance(key, str) else bytes(key)
        if len(key) > 0xFFFF or len(self._namespace) > 0xFF or len(rest) > 1000 << 10:
            raise Error("invalid", "a key has at most 512 bytes, and a value at most 256 KiB")
        requests = self._requests
        if not durable:
            flags |= NOT_DURABLE
        data = STATE_HEAD.pack(
            requests.number(), STATE, operation, flags,
            len(self._namespace), 0, len(key), limit, number & 0xFFFFFFFFFFFFFFFF, ttl_ms,
        ) + self._namespace + key + rest  # fmt: skip
        return requests.ask(self._event, data, read)

    def get(self, key, default=None):
        """The value of a key as bytes; `default` if there is no entry."""

        def read(status, payload):
            if status == DONE:
                return payload[24:]
            return default if status == NOT_FOUND else refused(status, payload)

        return self._ask(GET, key, read)

    def entry(self, key):
        """The `Entry` of a key, with its version; None if there is no entry."""

        def read(status, payload):
            if status == DONE:
                version, expires = VERSION_AND_EXPIRY.unpack_from(payload, 8)
                return Entry(key, payload[24:], version, expires or None)
            return None if status == NOT_FOUND else refused(status, payload)

        return self._ask(GET, key, read)

    def put(self, key, value, *, ttl=None, version=None, durable=True):
        """Writes a value; returns its version. With `ttl`, it expires after this many seconds. With
        `version`, the entry must have that version (0: there must be no entry), otherwise
        `Conflict`."""
        flags = 0 if version is None else CONDITION
        return self._ask(
            PUT, key, written, encoded(value), flags, number=version or 0, ttl_ms=milliseconds(ttl), durable=durable
        )

    def delete(self, key, *, version=None, durable=True):
        """Removes a key; returns whether it existed."""

        def read(status, payload):
            if status in (DONE, NOT_FOUND):
                return status == DONE
            return written(status, payload)

        flags = 0 if version is None else CONDITION
        return self._ask(DELETE, key, read, flags=flags, number=version or 0, durable=durable)

    def list(self, prefix="", *, limit=0, after=None, values=True):
        """A `Listing` of the entries whose keys begin with `prefix` and come after the key `after`,
        in the order of their keys: at most 1,000 entries and about 512 KiB."""

        def read(status, payload):
            if status != DONE:
                refused(status, payload)
            found, at = Listing(), 16
            for _ in range(int.from_bytes(payload[12:16], "little")):
                version, value, key = LISTED.unpack_from(payload, at)
                at += 16 + key
                found.append(Entry(payload[at - key : at].decode(), payload[at : at + value], version))
                at += value
            if payload[8]:
                found.after = found[-1].key
            return found

        flags = 0 if values else KEYS_ONLY
        return self._ask(LIST, prefix, read, (after or "").encode(), flags, limit=limit)

    def increment(self, key, by=1, *, ttl=None, durable=True):
        """Adds to a whole number; a missing entry counts as 0. Returns the sum."""

        def read(status, payload):
            if status == DONE:
                return VERSION_AND_NUMBER.unpack_from(payload, 8)[1]
            return refused(status, payload)

        return self._ask(INCREMENT, key, read, number=by, ttl_ms=milliseconds(ttl), durable=durable)


def written(status, payload):
    if status == DONE:
        return U64.unpack_from(payload, 8)[0]
    if status == CONFLICT:
        raise Conflict(U64.unpack_from(payload, 8)[0])
    return refused(status, payload)


class Reply:
    """The answer of a called function."""

    __slots__ = ("status", "headers", "body")

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def ok(self):
        return self.status < 400

    @property
    def text(self):
        return self.body.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return "Reply(%d, %d bytes)" % (self.status, len(self.body))


def call_content(body, headers):
    """(header block, bytes) from the body and the fields that a function gives."""
    block = mote_shim.header_block(headers or {})
    if body is None:
        return block, b""
    if b"\n" + b"content-type\n" in b"\n" + block:
        return block, encoded(body)
    if isinstance(body, str):
        return b"content-type\ntext/plain; charset=utf-8\n" + block, body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return b"content-type\napplication/octet-stream\n" + block, bytes(body)
    return b"content-type\napplication/json\n" + block, encoded(body)


OFFERS = {"functions": "calls of functions", "notify": "notices to observers", "publish": "publishing"}


class Services:
    """The services of the node, as one worker uses them."""

    def __init__(self, worker):
        self.requests = Requests(worker)
        announced = worker.spec.get("services") or ()
        self.announced = frozenset(announced)

    def need(self, service):
        if service not in self.announced:
            raise RuntimeError("this node offers no %s" % OFFERS.get(service, service))

    def kv(self, event):
        self.need("state")
        return Kv(self.requests, event)

    def call(self, event, name, body, method, path, query, headers, timeout):
        return self._call(CALL, event, name, body, method, path, query, headers, milliseconds(timeout), 0, "", "", answered)

    def call_async(self, event, name, body, method, path, query, headers, delay, key, order):
        delay_ms = milliseconds(delay) if delay else 0
        return self._call(
            ACCEPT, event, name, body, method, path, query, headers, 0, delay_ms, key or "", order or "", accepted
        )

    def _call(self, operation, event, name, body, method, path, query, headers, timeout_ms, delay_ms, key, order, read):
        self.need("functions")
        block, body = call_content(body, headers)
        if len(body) > CALL_BODY_MAX:
            raise CallError("invalid", "the body of a call has at most 960 KiB")
        parts = [part.encode() for part in (name, method, path, query, key, order)]
        name, method, path, query, key, order = parts
        if max(len(name), len(method)) > 0xFF or max(map(len, parts)) > 8 << 10:
            raise CallError("invalid", "the name, the path or another part of the call is too long")
        data = CALL_HEAD.pack(
            self.requests.number(), FUNCTIONS, operation, 0, min(timeout_ms, 0xFFFFFFFF),
            len(name), len(method), len(path), len(query), len(key), len(block), delay_ms, len(order),
        ) + b"".join(parts) + block + body  # fmt: skip
        return self.requests.ask(event, data, read)

    def notify(self, event, path, body, content_type, max_age, headers):
        self.need("notify")
        headers = dict(headers or {})
        if content_type is not None:
            headers["content-type"] = content_type
        if max_age is not None:
            headers["cache-control"] = "max-age=%d" % max_age
        block, content = call_content(body, headers)
        if len(content) > NOTICE_BODY_MAX:
            raise Error("invalid", "the body of a notice has at most 256 KiB")
        path, mark, query = path.encode().partition(b"?")
        if max(len(path), len(query)) > 8 << 10:
            raise Error("invalid", "the path of a notice is too long")
        data = NOTIFY_HEAD.pack(
            self.requests.number(), NOTIFY, ASK if body is None else PUBLISH, WITH_QUERY if mark else 0,
            len(path), len(query), len(block),
        ) + path + query + block + content  # fmt: skip
        return self.requests.ask(event, data, noticed)

    def publish(self, event, topic, body, qos, retain, content_type, response_topic, correlation, user):
        self.need("publish")
        kind, body = message_content(body, content_type)
        pairs = user.items() if hasattr(user, "items") else user or ()
        block = b"".join(b"%s\n%s\n" % (property_part(name), property_part(value)) for name, value in pairs)
        parts = [topic.encode(), kind.encode(), (response_topic or "").encode(), encoded(correlation or b""), block]
        if max(map(len, parts)) > 0xFFFF or len(body) > CALL_BODY_MAX:
            raise PublishError("invalid", "a message has at most 960 KiB, and its topic and properties a few KiB")
        if qos not in (0, 1, 2):
            raise PublishError("invalid", "the QoS is 0, 1 or 2")
        data = PUBLISH_HEAD.pack(
            self.requests.number(), MESSAGES, PUBLISH, 0, qos, bool(retain), *map(len, parts)
        ) + b"".join(parts) + body  # fmt: skip
        return self.requests.ask(event, data, published)


def noticed(status, payload):
    if status == DONE:
        return int.from_bytes(payload[8:12], "little")
    return refused(status, payload)


def message_content(body, content_type):
    """(content type, bytes) from the body of a message."""
    if body is None:
        return content_type or "", b""
    if content_type is None and not isinstance(body, (bytes, bytearray, memoryview)):
        content_type = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    return content_type or "", encoded(body)


def property_part(text):
    text = str(text)
    if "\n" in text:
        raise PublishError("invalid", "a user property holds a line break")
    return text.encode()


def published(status, payload):
    if status != DONE:
        raise PublishError(WORDS.get(status, "unavailable"), payload[8:].decode("utf-8", "replace"))


def answered(status, payload):
    if status == DONE:
        code, size = struct.unpack_from("<HxxI", payload, 8)
        return Reply(code, mote_shim.Headers(payload[16 : 16 + size]), payload[16 + size :])
    return not_called(status, payload)


def accepted(status, payload):
    if status == DONE:
        return payload[8:].decode()
    return not_called(status, payload)


def not_called(status, payload):
    code, text = 0, payload[8:]
    if status == FAILED:
        code, text = int.from_bytes(payload[8:10], "little"), payload[10:]
    raise CallError(WORDS.get(status, "unavailable"), text.decode("utf-8", "replace"), code)
