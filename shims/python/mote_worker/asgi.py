"""Calls ASGI applications: scope, `receive` and `send` of a request, and the lifespan.

This part does not own the event loop: `loop` creates the tasks that run it.
"""

import functools
import sys

from mote_worker.event import Context
from mote_worker.standard import standard
from mote_worker.wire import BadReply, checked_status, decoded_path, header_block, now_ns


class Asgi:
    """The part of `Worker` that runs one request of an ASGI application."""

    def show_error(self, error):
        traceback = standard("traceback", self.own_folders())
        traceback.print_exception(type(error), error, error.__traceback__)

    async def run_asgi(self, app, event, entered):
        scope = asgi_scope(self, event)
        if event._incoming is not None and (b"upgrade", b"websocket") in scope["headers"]:
            return await self.part("mote_websocket").run(self, app, event, entered, scope)
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
            await app(scope, receive, send)
        except BaseException as error:
            if not state["done"]:
                raise
            if isinstance(error, Exception):
                # The answer is already complete, so the error, for example of a background task,
                # only goes to the log.
                self.show_error(error)
        if not state["done"]:
            raise BadReply("the application returned without a complete answer")


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
        # By the specification, `path` includes `root_path`, and routers remove it again. Older
        # routers get `path` without it: see `routes_without_root`.
        "path": path_root + decoded_path(path).decode("utf-8", "replace"),
        "raw_path": path_root.encode() + path,
        "query_string": payload[path_end : path_end + query],
        "root_path": root,
        "headers": headers,
        "server": server_of(host, scheme),
        "client": None,
        "state": worker.state_of_app.copy(),
        # The event's fields are extracted when they are used.
        "extensions": {"mote": {"event": event, "ctx": Context(worker, event)}},
    }


class Lifespan:
    """Start-up and shutdown of an ASGI application that handles the lifespan protocol."""

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
                 "state": self.worker.state_of_app,
                 "extensions": {"mote": {"ctx": Context(self.worker, None)}}}  # fmt: skip
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
