"""Fission: `main()`, with the request in Flask's globals; with template = "fastapi" `main(request)`,
with the request of FastAPI, plain or async.
"""

import importlib.util
import os
import sys

import mote_shim
from mote_compat import (
    HTML_BLOCK,
    flask_app,
    flask_value,
    has_flask,
    import_own_files_last,
    nothing_to_call,
)

METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"]


def adapt(worker):
    import_own_files_last(worker)
    if worker.spec.get("template") == "fastapi":
        return nothing_to_call(), fastapi_app(load(worker)), "app"
    try:
        function = load(worker)
    except ModuleNotFoundError as error:
        if error.name == "flask":
            error.msg += " (Fission's environment brings Flask along: name it in requirements.txt)"
        raise
    # The function may import Flask during a call, and then needs the request of that call.
    if has_flask():
        return nothing_to_call(), flask_app(lambda event: function()), "app"

    worker.text = HTML_BLOCK

    def handle(event):
        return flask_value(function())

    return nothing_to_call(), handle, "handle"


def load(worker):
    """The function. A single file is loaded from its path, even if Python has a module of that
    name."""
    name, _, function = worker.spec["entry"].partition(":")
    file = os.path.join(worker.spec["code_dir"], name + ".py")
    known = None if "." in name else importlib.util.find_spec(name)
    if known is None or known.origin == file or not os.path.isfile(file):
        return mote_shim.find_entry(worker.spec["entry"])[1]
    found = importlib.util.spec_from_file_location("mod", file)
    module = sys.modules["mod"] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, function or "main")


def fastapi_app(function):
    """A FastAPI application whose only route calls the function, so that FastAPI turns the return
    value into the answer. It has no pages of its own: every path is the function's."""
    import inspect

    from fastapi import FastAPI, Request

    async def call(request: Request):
        value = function(request)
        return await value if inspect.isawaitable(value) else value

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_api_route("/{path:path}", call, methods=METHODS, response_model=None)
    return app
