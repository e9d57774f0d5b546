"""What the adapters for other platforms share.

An adapter is a module `mote_compat.PLATFORM` with `adapt(worker)`, which imports the function and
returns (module, handler, name) as the shim's own search does: a handler of a shape the shim knows,
and an object whose `init`, if any, is called once. Loaded only for functions that ask for it.

What adapters may use of the shim is listed in `mote_worker/adapters.py`.
"""

import functools
import os
import sys
import types

import mote_shim

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]
HTML = "text/html; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
# The most parsed header blocks that are kept. They take about 200 KiB.
BLOCKS_KEPT = 64
BLOCK_KEPT_BYTES = 1 << 10


@functools.lru_cache(512)
def title(name):
    """A field name as HTTP servers show it: X-Forwarded-For."""
    return "-".join(part.capitalize() for part in name.split("-"))


class Values(dict):
    """A dict whose `get` can convert, as Werkzeug's can, and whose `getlist` returns every
    value."""

    pairs = ()

    def get(self, name, default=None, type=None):
        value = dict.get(self, name, default)
        if type is None or name not in self:
            return value
        try:
            return type(value)
        except (ValueError, TypeError):
            return default

    def getlist(self, name, type=None):
        """Every value of this name, in order."""
        found = [value for key, value in self.pairs if key == name]
        return found if type is None else list(map(type, found))


class Fields(Values):
    """Header fields; names are in title case and found in any case. Duplicates are joined by a
    comma."""

    def __init__(self, pairs):
        self.pairs = [(title(name), value) for name, value in pairs]
        for name, value in self.pairs:
            known = dict.get(self, name)
            dict.__setitem__(self, name, value if known is None else known + "," + value)

    def __getitem__(self, name):
        return dict.__getitem__(self, title(name))

    def __contains__(self, name):
        return isinstance(name, str) and dict.__contains__(self, title(name))

    def get(self, name, default=None, type=None):
        return Values.get(self, title(name), default, type)

    def getlist(self, name, type=None):
        """Every value of this name, in order."""
        return Values.getlist(self, title(name), type)


class Query(Values):
    """Parameters of a query: the first value of each name, or all of them with `getlist`."""

    def __init__(self, text):
        if not text:
            self.pairs = []
            return
        from urllib.parse import parse_qsl

        self.pairs = parse_qsl(text, keep_blank_values=True)
        for name, value in self.pairs:
            self.setdefault(name, value)

    def to_dict(self, flat=True):
        """A plain dict of the first values, or of lists with all of them."""
        return dict(self) if flat else {name: self.getlist(name) for name in self}


class Known(dict):
    """What was read from header blocks, by block: a client sends nearly the same with every call.
    Shared between calls, so functions get copies. Used as `known[block]`, which costs no call."""

    def __init__(self, read):
        self.read = read

    def __missing__(self, block):
        found = self.read(block)
        if len(block) <= BLOCK_KEPT_BYTES:
            if len(self) >= BLOCKS_KEPT:
                self.clear()
            self[block] = found
        return found


@Known
def plain_fields(block):
    """A dict of the header fields; duplicates are joined by ", "."""
    parts = block.decode("latin-1").split("\n")
    fields = dict(zip(parts[0:-1:2], parts[1::2]))
    return fields if 2 * len(fields) == len(parts) - 1 else dict(mote_shim.Headers(block))


def typed_block(kind):
    """The header block of an answer with a media type and nothing else."""
    return mote_shim.header_block([("content-type", kind)])


HTML_BLOCK = typed_block(HTML)


class Lazy:
    """Makes a member on its first use, with the function of that name in `made`."""

    made = {}

    def __getattr__(self, name):
        make = self.made.get(name)
        if make is None:
            raise AttributeError("%s has no attribute %r" % (type(self).__name__, name))
        value = make(self._event)
        setattr(self, name, value)
        return value


def decoded_path(event):
    """The path without its percent-encoding, for platforms whose servers decode it."""
    if "%" not in event.path:
        return event.path
    from urllib.parse import unquote

    return unquote(event.path)


def content_type(event):
    """The media type of a request's body, in lower case, without parameters."""
    if b"content-type\n" not in event.header_block():
        return ""
    return event.headers.get("content-type", "").partition(";")[0].strip().lower()


def import_own_files_last(worker):
    """Moves the function's folder to the end of the import path, where the platform has it: a file
    such as `queue.py` then hides neither the standard library nor a package."""
    folder = worker.spec["code_dir"]
    sys.path.remove(folder)
    sys.path.append(folder)


def nothing_to_call(**parts):
    """Takes the place of the function's module, which the shim expects."""
    return types.SimpleNamespace(**parts)


def flask_value(value):
    """Converts what a Flask view may return to an answer, without Flask. Text alone stays as it is:
    the worker's `text` gives its type."""
    if type(value) is str:
        return value
    status, headers = 200, {}
    if isinstance(value, tuple):
        if len(value) == 3:
            value, status, headers = value
        elif len(value) == 2 and isinstance(value[1], (dict, list)):
            value, headers = value
        elif len(value) == 2:
            value, status = value
    if hasattr(value, "get_data") and hasattr(value, "status_code"):
        return value.get_data(), value.status_code, list(value.headers.items())
    headers = list(headers.items() if hasattr(headers, "items") else headers)
    if isinstance(status, str):
        status = int(status.split(None, 1)[0])
    if value is None:
        value = ""
    if not isinstance(value, (dict, list)) and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", HTML))
    return value, status, headers


def has_flask():
    """Whether the function has imported Flask, or could import it."""
    if "flask" in sys.modules:
        return True
    import importlib.util

    return importlib.util.find_spec("flask") is not None


def flask_app(call, folder=None):
    """A Flask application that calls `call(event)` for every path and method, so that Flask's own
    globals are set. Exceptions pass through it, for the log."""
    import flask

    app = flask.Flask("function", root_path=folder or os.getcwd())
    app.config["PROPAGATE_EXCEPTIONS"] = True

    def invoke(path=""):
        value = call(flask.request.environ["mote.event"])
        return "" if value is None else value

    app.add_url_rule("/", "root", invoke, methods=METHODS)
    app.add_url_rule("/<path:path>", "path", invoke, methods=METHODS)
    return app
