"""Fission: `main()`, with the request in Flask's globals; with template = "fastapi" `main(request)`,
with the request of FastAPI, plain or async.
"""

import sys

import mote_shim
from mote_compat import HTML_BLOCK, flask_app, flask_value, nothing_to_call

METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"]


def adapt(worker):
    if worker.spec.get("template") == "fastapi":
        _, function, _ = mote_shim.find_entry(worker.spec["entry"])
        return nothing_to_call(), fastapi_app(function), "app"
    try:
        _, function, _ = mote_shim.find_entry(worker.spec["entry"])
    except ModuleNotFoundError as error:
        if error.name == "flask":
            error.msg += " (Fission's environment brings Flask along: name it in requirements.txt)"
        raise
    if "flask" in sys.modules:
        return nothing_to_call(), flask_app(lambda event: function()), "app"

    worker.text = HTML_BLOCK

    def handle(event):
        return flask_value(function())

    return nothing_to_call(), handle, "handle"


def fastapi_app(function):
    """A FastAPI application whose only route calls the function, so that FastAPI makes the answer of
    what it returns. It has no pages of its own: every path is the function's."""
    import inspect

    from fastapi import FastAPI, Request

    async def call(request: Request):
        value = function(request)
        return await value if inspect.isawaitable(value) else value

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_api_route("/{path:path}", call, methods=METHODS, response_model=None)
    return app
