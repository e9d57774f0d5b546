"""What a function sees of an invocation: `Event`, `Headers` and `Context`.

This part reads the payload of an INVOKE frame. It does not know how frames arrive, or how the
answer of the function is sent.
"""

import collections.abc
import json
import threading

from mote_worker.wire import CHUNK_MAX, INVOKE_FIXED, TRIGGERS, now_ns


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
    """One invocation. Fields are cut out of the frame on first use (`__getattr__` is called only
    for slots that are still empty), since most functions read one or two of them. Its state
    (`_cancelled`, `_done`, `_task`) stays empty until something happens to it."""

    __slots__ = (
        "_payload", "_lengths", "_head", "_stream", "_incoming", "_output",
        "_cancelled", "_done", "_task", "_cloudevents",
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
            # The engine and the worker use the same clock, so computing the deadline does not
            # require reading it here.
            self.deadline_ns = sent + remaining_ms * 1_000_000
            self.trigger = TRIGGERS.get(trigger, "unknown")
            if name == "id":
                self.id = ulid(int.from_bytes(number, "big"))
            return object.__getattribute__(self, name)
        elif name in ("_cancelled", "_done", "_task", "_cloudevents"):
            return None
        else:
            raise AttributeError("event has no attribute %r" % name)
        setattr(self, name, value)
        return value

    def header_block(self):
        return self._payload[self._head - self._lengths[4] : self._head]

    @property
    def caller(self):
        """The name of the key with which the function was called; None if there was no key."""
        return self.headers.get("mote-caller")

    @property
    def params(self):
        """The decoded parameters of the route by which the function was called; empty if called by
        name."""
        from urllib.parse import parse_qsl

        return dict(parse_qsl(self.headers.get("mote-params", ""), keep_blank_values=True))

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
    """The context of an invocation: the function, the deadline, the log."""

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
        """Whether the caller has gone. Long loops should check this and return."""
        worker, event = self._worker, self._event
        if event is None:
            return False
        if not event._cancelled and worker.inline is event and threading.get_ident() == worker.reader:
            worker.receive(block=False)  # nobody else reads while an inline handler runs
        return bool(event._cancelled)

    @property
    def kv(self):
        """The state that the node keeps for this function."""
        return self._worker.node().kv(self._event)

    def call(self, name, body=None, *, method="POST", path="/", query="", headers=None, timeout=None):
        """Calls another function of the node, and returns its `Reply`."""
        return self._worker.node().call(self._event, name, body, method, path, query, headers, timeout)

    def call_async(self, name, body=None, *, method="POST", path="/", query="", headers=None,
                   delay=0, key=None, order=None):  # fmt: skip
        """Hands a call to the node, which makes it later, and returns its id."""
        return self._worker.node().call_async(self._event, name, body, method, path, query, headers, delay, key, order)

    def notify(self, path, body=None, *, content_type=None, max_age=None, headers=None):
        """Tells the observers of a resource of this function its new state, and returns how many
        they are. Without a body, the node asks the function for the state with GET."""
        return self._worker.node().notify(self._event, path, body, content_type, max_age, headers)

    @property
    def cloudevent(self):
        """The CloudEvent of this invocation; `None` if it carries none, or a batch."""
        is_batch, events = self._received()
        return events[0] if events and not is_batch else None

    @property
    def cloudevents(self):
        """All CloudEvents of this invocation: those of a batch, the single one, or none."""
        return self._received()[1]

    def _received(self):
        event = self._event
        return self._worker.cloudevents_of(event) if event else (False, [])

    def new_cloudevent(self, type, data=None, *, source=None, **attributes):
        """A new CloudEvent, for instance to return it. Its source is the function without `source`."""
        made = self._worker.part("mote_cloudevents").made
        return made(source or "/" + self.function, type, data, **attributes)

    def publish(self, topic, body=None, *, qos=1, retain=False, content_type=None, response_topic=None,
                correlation=None, user=None):  # fmt: skip
        """Publishes a message at the function's MQTT broker; returns once the broker has received
        it."""
        return self._worker.node().publish(
            self._event, topic, body, qos, retain, content_type, response_topic, correlation, user
        )

    def remaining_ms(self):
        """Milliseconds until the deadline, at least 0; `None` inside `init`."""
        if self._event is None:
            return None
        return max(0, (self._event.deadline_ns - now_ns()) // 1_000_000)
