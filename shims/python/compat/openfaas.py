"""OpenFaaS: the Python templates, all of which load `function/handler.py`.

python3-http   handle(event, context): dict with statusCode, body, headers, or what Flask takes
python3-flask  handle(req): text, or what Flask takes
python3        handle(req) under the classic watchdog: what it prints and returns is the answer
"""

import importlib
import io
import json
import os
import sys
import threading
import types

from mote_compat import (
    HTML,
    HTML_BLOCK,
    JSON,
    PLAIN,
    Fields,
    Lazy,
    Query,
    decoded_path,
    flask_app,
    flask_value,
    has_flask,
    import_own_files_last,
    nothing_to_call,
    title,
)

# The current folder in the platform's images, which have the code in its subfolder `function`.
HOME = "/home/app"


class Headers(Fields):
    """Header fields; iterated as pairs, as Flask's are."""

    def __iter__(self):
        return iter(self.pairs)


class Event(Lazy):
    """The request."""

    made = {
        "body": lambda event: event.body,
        "headers": lambda event: Headers(event.headers.pairs),
        "method": lambda event: event.method,
        "query": lambda event: Query(event.query),
        "path": decoded_path,
    }

    def __init__(self, event):
        self._event = event


class Context:
    """The context of a request."""

    def __init__(self):
        self.hostname = os.environ.get("HOSTNAME") or os.uname().nodename


def adapt(worker):
    entry = worker.spec["entry"].partition(":")
    import_own_files_last(worker)
    # Handlers import the modules next to them from the package `function`.
    package = types.ModuleType("function")
    folder = os.getcwd()
    package.__path__ = [folder]
    sys.modules["function"] = package
    if os.path.isdir(HOME + "/function"):
        os.chdir(HOME)
    module = importlib.import_module("function." + entry[0])
    sys.modules.setdefault(entry[0], module)
    handler = getattr(module, entry[2] or "handle")
    worker.text = HTML_BLOCK
    template = worker.spec.get("template") or guessed(handler, module)
    # A handler may import Flask during a call, and then needs the request of that call.
    with_flask = has_flask() if template != "python3" else False
    if "flask" in template:
        call = with_text(handler)
    elif "http" not in template:
        return nothing_to_call(), classic(handler), "handle"
    elif with_flask:
        context = Context()
        call = lambda event: flask_parts(handler(Event(event), context))  # noqa: E731
    else:
        return nothing_to_call(), with_event(handler), "handle"
    if with_flask:
        return nothing_to_call(), flask_app(call, folder), "app"
    return nothing_to_call(), lambda event: flask_value(call(event)), "handle"


def guessed(handler, module):
    """The template if none was named, guessed from the arguments and from whether Flask is used."""
    if handler.__code__.co_argcount >= 2:
        return "python3-http"
    uses_flask = "flask" in sys.modules or "flask" in handler.__code__.co_names
    return "python3-flask" if uses_flask else "python3"


def with_event(handler):
    context = Context()

    def handle(event):
        value = handler(Event(event), context)
        if type(value) is dict and value.get("statusCode", 200) == 200 and not value.get("headers"):
            body = value.get("body", "")
            if type(body) is str:
                return body
        return flask_value(flask_parts(value))

    return handle


def flask_parts(value):
    """The parts of an answer that Flask accepts from a handler."""
    if value is None:
        return "", 200
    if not isinstance(value, dict):
        return value
    body, status, headers = value.get("body", ""), value.get("statusCode", 200), value.get("headers") or {}
    headers = list(headers.items() if hasattr(headers, "items") else headers)
    kind = HTML
    if isinstance(body, (dict, list)):
        body, kind = json.dumps(body), JSON
    elif not isinstance(body, (str, bytes)):
        body = str(body)
    if not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", kind))
    return body, status, headers


def with_text(handler):
    raw = os.environ.get("RAW_BODY", "").lower() == "true"

    def call(event):
        return handler(event.body if raw else event.text)

    return call


def classic(handler):
    """Serves one call at a time, because the function's output and the request in the environment
    belong to the whole process."""
    turn = threading.Lock()
    combines = os.environ.get("combine_output", "true").lower() != "false"

    def handle(event):
        with turn:
            return once(event)

    def once(event):
        facts = request_variables(event)
        os.environ.update(facts)
        printed = io.StringIO()
        kept = sys.stdout, sys.stderr
        sys.stdout = printed
        if combines:
            sys.stderr = printed
        status, exit_line = 200, ""
        try:
            value = handler(event.text)
            if value is not None:
                print(value)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if code:
                status, exit_line = 500, "exit status %d\n" % code
        finally:
            sys.stdout, sys.stderr = kept
            for name in facts:
                os.environ.pop(name, None)
        kind = os.environ.get("content_type") or event.headers.get("content-type") or PLAIN
        return exit_line + printed.getvalue(), status, {"Content-Type": kind}

    return handle


def request_variables(event):
    """The request as variables that the watchdog exports."""
    facts = {
        "Http_Method": event.method,
        "Http_Path": decoded_path(event),
        "Http_Query": event.query,
        "Http_ContentLength": str(len(event.body)),
        "Http_Content_Length": str(len(event.body)),
    }
    for name, value in event.headers.items():
        # A field with _ must not be taken for the field with -, which a proxy may have set.
        if "_" not in name:
            facts.setdefault("Http_" + title(name).replace("-", "_"), value)
    return {name: value for name, value in facts.items() if "\0" not in value}
