"""Nuclio: `handler(context, event)`, plain or async, and `init_context(context)`."""

import base64
import datetime
import inspect
import json
import sys
import types

import mote_shim
from mote_compat import (
    Fields,
    Lazy,
    Query,
    content_type,
    decoded_path,
    nothing_to_call,
    typed_block,
)

TEXT_BLOCK = typed_block("text/plain")
# The address at which a function reaches other functions, if it may call them.
FRONT = ("mote.internal", 80)
# Fields that are set anew for each call.
REPLACED = {"content-type", "content-length", "transfer-encoding", "connection", "host"}


class Response:
    """An answer with all the parts it may have."""

    def __init__(self, headers=None, body=None, content_type=None, status_code=200):
        self.headers = headers or {}
        self.body = body
        self.content_type = content_type or "text/plain"
        self.status_code = status_code


class TriggerInfo:
    """Where an event came from."""

    def __init__(self, kind="", name=""):
        self.kind = kind
        self.name = name


class Event:
    """One event. Fields that no trigger of a node fills have the platform's empty values."""

    def __init__(self, body=None, content_type=None, trigger=None, fields=None, headers=None,
                 _id=None, method=None, path=None, size=None, timestamp=None, url=None,
                 shard_id=None, num_shards=None, _type=None, type_version=None, version=None,
                 last_in_batch=None, offset=None, topic=None):  # fmt: skip
        self.body = body
        self.content_type = content_type
        self.trigger = trigger or TriggerInfo()
        self.fields = fields or {}
        self.headers = headers or {}
        self.id = _id
        self.method = method
        self.path = path or "/"
        self.size = size or 0
        self.timestamp = timestamp or 0
        self.url = url
        self.shard_id = shard_id
        self.num_shards = num_shards
        self.type = _type
        self.type_version = type_version
        self.version = version
        self.last_in_batch = last_in_batch or False
        self.offset = offset
        self.topic = topic

    def get_header(self, header_key):
        """Returns one field, whose name may be in any case; None if it is missing."""
        wanted = header_key.lower()
        return next((value for name, value in self.headers.items() if name.lower() == wanted), None)

    def to_json(self):
        """The whole event as JSON; a body of bytes as base64."""
        members = {name: getattr(self, name) for name in MEMBERS}
        members["trigger"] = {"kind": self.trigger.kind, "name": self.trigger.name}
        if isinstance(self.body, bytes):
            members["body"] = base64.b64encode(self.body).decode()
        return json.dumps(members, default=str)

    def __repr__(self):
        return self.to_json()


MEMBERS = ("body", "content_type", "trigger", "fields", "headers", "id", "method", "path", "size", "timestamp", "url",
           "shard_id", "num_shards", "type", "type_version", "version", "last_in_batch", "offset", "topic")  # fmt: skip


def body_of(event):
    body = event.body
    if body and content_type(event) == "application/json":
        try:
            return json.loads(body)
        except ValueError:  # as there: a body that is not what its type says stays bytes
            pass
    return body


class Incoming(Lazy, Event):
    """The platform's event of an invocation."""

    made = {
        "body": body_of,
        "content_type": lambda event: event.headers.get("content-type", ""),
        "trigger": lambda event: TriggerInfo(event.trigger, "default-" + event.trigger),
        "fields": lambda event: Query(event.query),
        "headers": lambda event: Fields(event.headers.pairs),
        "id": lambda event: event.id,
        "method": lambda event: event.method,
        "path": decoded_path,
        "size": lambda event: len(event.body),
        "timestamp": lambda event: datetime.datetime.now(datetime.timezone.utc),
        "url": lambda event: event.path + ("?" + event.query if event.query else ""),
    }
    shard_id, num_shards, offset, last_in_batch = 0, 1, 0, False
    type = type_version = version = topic = ""

    def __init__(self, event):
        self._event = event


class Logger:
    """The platform's logger on the function's log."""

    def __init__(self, worker):
        self._worker = worker
        self._bound = {}

    def bind(self, **fields):
        """Sets fields for every further line."""
        self._bound.update(fields)

    def _log(self, level, message, args, fields):
        import logging

        if args:
            try:
                message = message % args
            except TypeError:
                message = " ".join(str(part) for part in (message, *args))
        if fields or self._bound:
            message = "%s %s" % (message, json.dumps({**(fields or {}), **self._bound}, default=str))
        self._worker.logger().log(getattr(logging, level), "%s", message)

    def debug(self, message, *args):
        self._log("DEBUG", message, args, None)

    def info(self, message, *args):
        self._log("INFO", message, args, None)

    def warn(self, message, *args):
        self._log("WARNING", message, args, None)

    warning = warn

    def error(self, message, *args):
        self._log("ERROR", message, args, None)

    def debug_with(self, message, *args, **fields):
        self._log("DEBUG", message, args, fields)

    def info_with(self, message, *args, **fields):
        self._log("INFO", message, args, fields)

    def warn_with(self, message, *args, **fields):
        self._log("WARNING", message, args, fields)

    warning_with = warn_with

    def error_with(self, message, *args, **fields):
        self._log("ERROR", message, args, fields)


class Platform:
    """The parts of the platform that a function can use on a node."""

    explicit_ack = False

    def __init__(self, worker):
        self._worker = worker

    def call_function(self, function_name, event, node=None, timeout=None, service_name_override=None):
        """Calls a function of this node by its name, and waits for its answer."""
        import http.client
        from urllib.parse import quote

        body, kind = event.body, event.content_type or "text/plain"
        if isinstance(body, (dict, list)):
            body, kind = json.dumps(body), "application/json"
        elif isinstance(body, str):
            body = body.encode()
        fields = {name: value for name, value in (event.headers or {}).items() if name.lower() not in REPLACED}
        fields["Content-Type"] = kind
        # Paths that functions write are encoded, but the path of an event that is passed on is not.
        below = quote((event.path or "/").lstrip("/"), safe="/%:@!$&'()*+,;=?")
        target = "/" + quote(function_name, safe="") + "/" + below
        connection = http.client.HTTPConnection(*FRONT, timeout=timeout)
        try:
            connection.request(event.method or ("POST" if body else "GET"), target, body, fields)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        kind = fields.get("content-type", "text/plain")
        if kind.partition(";")[0].strip() == "application/json":
            body = json.loads(body)
        return sys.modules["nuclio_sdk"].Response(
            headers=fields, body=body, content_type=kind, status_code=answer.status
        )

    def set_termination_callback(self, callback):
        self._worker.at_end.append(callback)

    set_drain_callback = set_termination_callback


class Context:
    """One per instance; `user_data` is the function's."""

    Response = Response

    def __init__(self, worker):
        self.logger = Logger(worker)
        self.platform = Platform(worker)
        self.user_data = types.SimpleNamespace()
        self.worker_id = 0
        self.trigger = TriggerInfo("http", "default-http")
        self.trigger_name = "default-http"


def provide_sdk():
    """Lets `import nuclio_sdk` work without the package."""
    try:
        import nuclio_sdk  # noqa: F401 (the function's own wins)
    except ImportError:
        sdk = types.ModuleType("nuclio_sdk")
        sdk.Event, sdk.Response, sdk.Context, sdk.TriggerInfo = Event, Response, Context, TriggerInfo
        sdk.Logger, sdk.Platform = Logger, Platform
        sys.modules["nuclio_sdk"] = sdk


def answer(value):
    """The answer for what a handler returned."""
    if type(value) is str:
        return value
    status, kind, headers, is_json = 200, "text/plain", {}, False
    if hasattr(value, "status_code") and hasattr(value, "body"):
        status, kind, headers, value = value.status_code, value.content_type, value.headers or {}, value.body
    elif isinstance(value, tuple) and len(value) == 2:
        (status, value), is_json = value, True
    if value is None:
        value = ""
    elif isinstance(value, (dict, list, tuple)) or (is_json and not isinstance(value, (str, bytes))):
        value, kind = json.dumps(value, default=repr), "application/json"
    elif not isinstance(value, (str, bytes)):
        value = str(value)
    headers = dict(headers)
    if not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = kind
    return value, int(status), headers


def adapt(worker):
    provide_sdk()
    worker.text = TEXT_BLOCK
    module, handler, _ = mote_shim.find_entry(worker.spec["entry"])
    context = Context(worker)
    init_context = getattr(module, "init_context", None)
    init = (lambda _: init_context(context)) if init_context else None
    is_async = inspect.iscoroutinefunction(handler)
    handler = mote_shim.with_arguments(handler, 2)
    if is_async:

        async def handle(event):
            return answer(await handler(context, Incoming(event)))
    else:

        def handle(event):
            return answer(handler(context, Incoming(event)))

    return nothing_to_call(init=init), handle, "handle"
