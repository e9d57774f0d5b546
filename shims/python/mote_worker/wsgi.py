"""Turns a WSGI application (PEP 3333) into a plain handler.

This part knows `environ` and `start_response`. The handler is served as any other `def handle`.
"""

import io
import sys

from mote_worker.event import Context
from mote_worker.wire import BadReply, decoded_path


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
            "mote.ctx": Context(worker, event),
        }
        for name, value in headers.items():
            if name == "content-type":
                environ["CONTENT_TYPE"] = value
            # A field with _ must not be taken for the field with -, which a proxy may have set.
            elif name != "content-length" and "_" not in name:
                environ["HTTP_" + name.upper().replace("-", "_")] = value
        started, written = [], []

        def start_response(status, fields, exc_info=None):
            if started and not exc_info:
                raise RuntimeError("start_response was called twice")
            started[:] = [status, fields]
            return written.append

        result = app(environ, start_response)
        chunks = iter(result)
        # The head is known only once the first chunk exists.
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
