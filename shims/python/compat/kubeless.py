"""Kubeless: `f(event, context)` with dicts."""

import io
import json
import os

import mote_shim
from mote_compat import JSON, PLAIN, Fields, Lazy, Query, block_and_body, content_type, nothing_to_call, remembered, typed_block
from mote_shim import Prepared

PLAIN_BLOCK = typed_block(PLAIN)


class Request(Lazy):
    """The HTTP request, under the names functions use in `event["extensions"]["request"]`."""

    made = {
        "method": lambda event: event.method,
        "path": lambda event: event.path,
        "headers": lambda event: Fields(event.headers.pairs),
        "query_string": lambda event: event.query,
        "query": lambda event: Query(event.query),
        "url": lambda event: event.path + ("?" + event.query if event.query else ""),
        "content_type": lambda event: event.headers.get("content-type", ""),
        "content_length": lambda event: len(event.body),
    }

    @property
    def params(self):
        """The same as `query`."""
        return self.query

    @property
    def body(self):
        """The body as a file."""
        return io.BytesIO(self._event.body)

    @property
    def json(self):
        """The body as JSON, None for another kind."""
        return self._event.json() if content_type(self._event) == "application/json" else None

    @property
    def forms(self):
        """The fields of a form."""
        return Query(self._event.text)

    def get_header(self, name, default=None):
        """One field."""
        return self.headers.get(name, default)


class Reply(Lazy):
    """Status and fields a function may set in `event["extensions"]["response"]`."""

    status, _event = 200, None
    made = {"headers": lambda _: {}}

    def set_header(self, name, value):
        """Sets one field."""
        self.headers[name] = value

    add_header = set_header


@remembered
def about(block):
    """Media type, and what the fields say of an event."""
    fields = mote_shim.Headers(block)
    media = fields.get("content-type", "").partition(";")[0].strip().lower()
    return (media, *map(fields.get, ("event-id", "event-type", "event-time", "event-namespace")))


def adapt(worker):
    module, function, name = mote_shim.find_entry(worker.spec["entry"])
    environ = os.environ
    context = {
        "function-name": environ.get("FUNC_HANDLER") or name,
        "timeout": environ.get("FUNC_TIMEOUT", "180"),
        "runtime": environ.get("FUNC_RUNTIME", "python"),
        "memory-limit": environ.get("FUNC_MEMORY_LIMIT", ""),
    }

    def handle(event, ctx):
        block, data = block_and_body(event)
        media, number, kind, time, namespace = about(block)
        if media == JSON:
            data = json.loads(data) if data else None
        request, reply = Request(), Reply()
        request._event = event
        value = function({
            "data": data,
            "event-id": number,
            "event-type": kind,
            "event-time": time,
            "event-namespace": namespace,
            "extensions": {"request": request, "response": reply},
        }, context)  # fmt: skip
        if type(value) is str and not reply.__dict__:
            return Prepared((200, PLAIN_BLOCK, value.encode()))
        fields = dict(reply.headers)
        if value is None:
            value = ""
        if not isinstance(value, (str, bytes, dict, list)):
            value = str(value)
        if not isinstance(value, (dict, list)):
            fields.setdefault("Content-Type", PLAIN)
        return value, int(str(reply.status).split(None, 1)[0]), fields

    return nothing_to_call(), handle, "handle"
