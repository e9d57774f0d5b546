"""Knative: `def new()`, whose object has `async handle(scope, receive, send)`; or that function alone.

`start(cfg)`, `stop()`, `alive()` and `ready()` of the object are called as there. A request that
carries a CloudEvent has it in scope["event"]; `send` takes messages of ASGI, and events:
`send(event)`, `send.structured(event)`, `send.binary(event)`. With template = "cloudevents" every
other request is refused. With template = "parliament" the function is `main(context)` of that package,
which serves it.
"""

import importlib
import importlib.util
import os
import sys

import mote_shim
from mote_compat import Known, cloudevents, nothing_to_call, plain_fields

TEXT = [(b"content-type", b"text/plain")]
has_event = Known(lambda block: cloudevents.is_event(plain_fields[block]))


class FormerNames:
    """The cloudevents package, version 2, has in `cloudevents.v1` what functions import from
    `cloudevents.http`."""

    def find_spec(self, name, path=None, target=None):
        package, _, rest = name.partition(".")
        if package != "cloudevents" or not rest or rest.split(".")[0] in ("core", "v1"):
            return None
        now = "cloudevents.v1." + rest
        try:
            is_there = importlib.util.find_spec(now) is not None
        except ImportError:
            return None
        return importlib.util.spec_from_loader(name, self, origin=now, is_package=True) if is_there else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        now = vars(importlib.import_module(module.__spec__.origin))
        vars(module).update({name: value for name, value in now.items() if not name.startswith("__")})


def adapt(worker):
    cloudevents.use(worker)
    sys.meta_path.append(FormerNames())  # the last: what is there by its own name is taken
    if worker.spec.get("template") == "parliament":
        return parliament_app(worker)
    _, found, name = mote_shim.find_entry(worker.spec["entry"])
    function = found() if name.rpartition(".")[2] == "new" else found
    handle = getattr(function, "handle", function)
    if not callable(handle):
        raise TypeError("what new() returned has no handle(scope, receive, send)")
    checks = {"/health/liveness": getattr(function, "alive", None), "/health/readiness": getattr(function, "ready", None)}
    needs_event = worker.spec.get("template") == "cloudevents"
    worker.root = ""  # there a function has the whole address for itself

    def app(scope, receive, send):
        if scope["type"] == "lifespan":
            return lifespan(function, receive, send)
        if scope["path"] in checks:
            return healthy(checks[scope["path"]], send)
        if needs_event or has_event[scope["extensions"]["mote"]["event"].header_block()]:
            return with_event(handle, scope, receive, send)
        return handle(scope, receive, send)

    return nothing_to_call(), app, "app"


def parliament_app(worker):
    """The application that the package makes of a module with `main(context)`."""
    module, function, _ = mote_shim.find_entry(worker.spec["entry"])
    try:
        from parliament import server
    except ModuleNotFoundError as error:
        if error.name == "parliament":
            error.msg += " (name parliament-functions in requirements.txt)"
        raise
    worker.root = ""
    served = nothing_to_call(**{**vars(module), "main": function})
    return nothing_to_call(), server.create(served), "app"


async def with_event(handle, scope, receive, send):
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        scope["event"] = cloudevents.read(headers, body)
    except ValueError as error:
        return await plain(send, 400, "not a CloudEvent: %s" % error)
    await handle(scope, again(body, receive), Sender(send))


def again(body, receive):
    """A `receive` that returns the body again, because the event was read from it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again():
        return messages.pop() if messages else await receive()

    return receive_again


class Sender:
    """The `send` of functions that receive events."""

    def __init__(self, send):
        self.http = send

    async def __call__(self, event, status=200):
        if isinstance(event, dict) and str(event.get("type", "")).startswith("http.response."):
            return await self.http(event)
        await self.structured(event, status)

    async def structured(self, event, status=200):
        await self.put(cloudevents.structured(event), status)

    async def binary(self, event, status=200):
        await self.put(cloudevents.binary(event), status)

    async def put(self, answer, status):
        fields, body = answer
        await self.http({"type": "http.response.start", "status": status, "headers": fields})
        await self.http({"type": "http.response.body", "body": body})


async def healthy(check, send):
    good, text = True, "OK"
    if check:
        result = check()
        if hasattr(result, "__await__"):
            result = await result
        good, text = result if isinstance(result, tuple) else (result, text)
    await plain(send, 200 if good else 500, text)


async def plain(send, status, text):
    await send({"type": "http.response.start", "status": status, "headers": TEXT})
    await send({"type": "http.response.body", "body": str(text).encode()})


async def lifespan(function, receive, send):
    await receive()
    try:
        await called(function, "start", dict(os.environ))
    except Exception as error:
        import traceback

        traceback.print_exc()
        return await send({"type": "lifespan.startup.failed", "message": "start: %s" % error})
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await called(function, "stop")
    await send({"type": "lifespan.shutdown.complete"})


async def called(function, name, *arguments):
    method = getattr(function, name, None)
    result = method(*arguments) if callable(method) else None
    if hasattr(result, "__await__"):
        await result
