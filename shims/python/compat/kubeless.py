"""Kubeless: `f(event, context)` with dicts."""

import io
import json
import os

import mote_shim
from mote_compat import JSON, PLAIN, Fields, Known, Lazy, Query, content_type, nothing_to_call


class Request(Lazy):
    """The HTTP request, with the names that functions use in `event["extensions"]["request"]`."""

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

    def __init__(self, event):
        self._event = event

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
        """The body as JSON; None for another media type."""
        return self._event.json() if content_type(self._event) == "application/json" else None

    @property
    def forms(self):
        """The fields of a form."""
        return Query(self._event.text)

    def get_header(self, name, default=None):
        """Returns one header field."""
        return self.headers.get(name, default)


class Reply(Lazy):
    """Status and fields that a function may set in `event["extensions"]["response"]`."""

    status, _event = 200, None
    made = {"headers": lambda _: {}}

    def set_header(self, name, value):
        """Sets one field."""
        self.headers[name] = value

    add_header = set_header


@Known
def about(block):
    """The event as far as the fields describe it, and whether its body is JSON."""
    fields = mote_shim.Headers(block)
    media = fields.get("content-type", "").partition(";")[0].strip().lower()
    names = ("event-id", "event-type", "event-time", "event-namespace")
    return {"data": None, **{name: fields.get(name) for name in names}, "extensions": None}, media == JSON


def adapt(worker):
    _, function, name = mote_shim.find_entry(worker.spec["entry"])
    environ = os.environ
    context = {
        "function-name": environ.get("FUNC_HANDLER") or name,
        "timeout": environ.get("FUNC_TIMEOUT", "180"),
        "runtime": environ.get("FUNC_RUNTIME", "python"),
        "memory-limit": environ.get("FUNC_MEMORY_LIMIT", ""),
    }

    def handle(event):
        block, data = mote_shim.fields_and_body(event)
        template, is_json = about[block]
        if is_json:
            data = json.loads(data) if data else None
        request, reply = Request(event), Reply()
        there = template.copy()
        there["data"] = data
        there["extensions"] = {"request": request, "response": reply}
        value = function(there, context)
        if type(value) is str and not reply.__dict__:
            return value  # plain text, as here
        fields = dict(reply.headers)
        if value is None:
            value = ""
        if not isinstance(value, (str, bytes, dict, list)):
            value = str(value)
        if not isinstance(value, (dict, list)):
            fields.setdefault("Content-Type", PLAIN)
        return value, int(str(reply.status).split(None, 1)[0]), fields

    return nothing_to_call(), handle, "handle"
