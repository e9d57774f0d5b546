"""Kubeless: `f(event, context)` with dicts."""

import io
import os

import mote_shim
from mote_compat import PLAIN, Fields, Query, content_type, nothing_to_call, typed


class Request:
    """The HTTP request, under the names functions use in `event["extensions"]["request"]`."""

    def __init__(self, event):
        self.method = event.method
        self.path = event.path
        self.headers = Fields(event.headers.pairs)
        self.query_string = event.query
        self.query = Query(event.query)
        self.params = self.query
        self.url = event.path + ("?" + event.query if event.query else "")
        self.content_type = event.headers.get("content-type", "")
        self.content_length = len(event.body)
        self._event = event

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


class Reply:
    """Status and fields a function may set in `event["extensions"]["response"]`."""

    def __init__(self):
        self.status, self.headers = 200, {}

    def set_header(self, name, value):
        """Sets one field."""
        self.headers[name] = value

    add_header = set_header


class Extensions(dict):
    """Request and response, each made when it is first asked for."""

    def __init__(self, event):
        self._event = event

    def __missing__(self, name):
        if name not in self:
            raise KeyError(name)
        made = self[name] = Request(self._event) if name == "request" else Reply()
        return made

    def __contains__(self, name):
        return name == "request" or name == "response"

    def get(self, name, default=None):
        return self[name] if name in self else default


NOTHING = {}


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
        data = event.body
        block = event.header_block()
        if b"application/json" in block and content_type(event) == "application/json":
            data = event.json() if data else None
        headers = event.headers if b"event-" in block else NOTHING
        extensions = Extensions(event)
        value = function({
            "data": data,
            "event-id": headers.get("event-id"),
            "event-type": headers.get("event-type"),
            "event-time": headers.get("event-time"),
            "event-namespace": headers.get("event-namespace"),
            "extensions": extensions,
        }, context)  # fmt: skip
        if type(value) is str and not extensions:
            return typed(value, PLAIN)
        reply = extensions["response"]
        fields = dict(reply.headers)
        if value is None:
            value = ""
        if not isinstance(value, (str, bytes, dict, list)):
            value = str(value)
        if not isinstance(value, (dict, list)):
            fields.setdefault("Content-Type", PLAIN)
        return value, int(str(reply.status).split(None, 1)[0]), fields

    return nothing_to_call(), handle, "handle"
