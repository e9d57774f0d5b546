"""The worker: one connection to the engine and the function behind it.

`Worker` is put together from parts, each in a file of its own. This file has their common fields,
the loading of the function, and the life of the worker from HELLO to the end of a drain.
"""

import _socket  # the module `socket` makes enumerations of all its constants, 3 ms of each start
import collections
import gc
import os
import struct
import sys
import threading

from mote_worker.asgi import Asgi, routes_without_root
from mote_worker.blocking import Blocking, wait_for
from mote_worker.capture import LineCapture, take_over_logging
from mote_worker.event import Context
from mote_worker.loading import adapted, find_entry, in_trace, let_debug, shape_of, with_arguments
from mote_worker.loop import Loop
from mote_worker.reader import FrameReader
from mote_worker.threads import Threads
from mote_worker.wire import (
    COPIES_PAY_NS,
    HELLO,
    NAME,
    NO_COPIES_MAX,
    READY,
    RECEIVE_BYTES,
    TEXT,
    VERSION,
    encode_json,
    now_ns,
)
from mote_worker.writer import FrameWriter
from mote_worker.wsgi import wsgi_handler


def channel(fd):
    """The connection to the engine, which programs that the function starts must not inherit."""
    os.set_inheritable(fd, False)
    return _socket.socket(fileno=fd)


class Worker(FrameWriter, FrameReader, LineCapture, Blocking, Threads, Loop, Asgi):
    """One connection to the engine and the function behind it."""

    def __init__(self, sock, folder=""):
        self.sock = sock
        self.folder = folder  # where the shim lies, and its adapters below it
        self.buffer = bytearray(RECEIVE_BYTES)
        self.kept = 0  # bytes at the start of `buffer` that are not a whole frame yet
        self.out = []  # pieces of frames; list operations on it are atomic
        self.sending = threading.Lock()
        self.state = threading.RLock()  # guards `Output`s against the reader in thread mode
        self.ready = collections.deque()  # events that wait for their turn
        self.incoming = {}  # stream to (Event, Incoming) whose body is not complete
        self.outputs = {}  # stream to Output
        self.running = {}  # stream to Event, in threads and on a loop
        self.inline = None  # Event of the one running invocation
        self.reader = threading.get_ident()
        self.whole_bodies = True
        self.draining = False
        self.forked = False
        self.copying = False  # this process, or its child, becomes a copy of a seed
        self.spec = None
        self.parts = {}  # files of the shim that were loaded for this function, by name
        self.offers_sockets = False  # the function is an ASGI application
        self.services = None  # what the function asks of its node, once it does
        self.serving = False  # READY was sent
        self.loop = None  # the event loop, where one serves
        self.text = TEXT  # the header block of answers that are text and nothing else
        self.root = ""  # where an ASGI application is mounted
        self.path_root = ""  # what of it stands in the path of its requests
        self.loaded_ns = 0
        self.writers = []
        self.at_end = []  # what a function wants called after a drain
        self.state_of_app = {}  # what an ASGI lifespan keeps for its requests
        self.flush_soon = self.flush

    def load(self):
        """Imports the function; returns (serve, shape, concurrency)."""
        spec = self.spec
        os.environ.update(spec["env"])
        os.chdir(spec["code_dir"])
        if "TZ" in spec["env"]:
            import time

            time.tzset()
        # The order is the same as for any program: its own folder and PYTHONPATH, the standard
        # library, and then its packages. A backport in an old list of packages (`enum34`,
        # `asyncio`) must not replace a module of Python's own.
        first = [spec["code_dir"], *filter(None, spec["env"].get("PYTHONPATH", "").split(os.pathsep))]
        rest = [folder for folder in sys.path if folder not in first]
        if spec["packages_dir"]:
            hosts = (at for at, folder in enumerate(rest) if folder.endswith(("site-packages", "dist-packages")))
            rest.insert(next(hosts, len(rest)), spec["packages_dir"])
        sys.path[:] = first + rest
        if sys.version_info < (3, 10):
            import asyncio

            # Before 3.10, an asyncio.Event that is made during the import belongs to the loop of
            # that moment.
            asyncio.set_event_loop(asyncio.new_event_loop())
        if "MOTE_DEBUG_PORT" in spec["env"]:
            let_debug(int(spec["env"]["MOTE_DEBUG_PORT"]))
        self.root = "/" + spec["function"]
        find = adapted if spec.get("compat") else lambda worker: find_entry(spec["entry"])
        module, handler, found = find(self)
        limit = spec["concurrency"]
        shape = shape_of(handler, found)
        self.offers_sockets = shape == "asgi"
        if shape not in ("asgi", "wsgi") and "opentelemetry.context" in sys.modules:
            handler = in_trace(handler)
        self.path_root = "" if routes_without_root() else self.root
        if shape in ("asgi", "async handle"):
            self.whole_bodies = shape != "asgi" and not getattr(module, "stream_request", False)
            limit = limit or 100
            runner = self.start_async(module, handler, shape, limit)
        else:
            init = getattr(module, "init", None)
            if init and hasattr(made := with_arguments(init, 1)(Context(self, None)), "__await__"):
                import asyncio

                asyncio.run(wait_for(made))
            call = wsgi_handler(self, handler) if shape == "wsgi" else handler
            limit = limit or 1
            runner = (lambda: self.serve_inline(call)) if limit == 1 else (lambda: self.serve_threads(call, limit))
            with_arguments(call, 2)  # says what is wrong before the first call
        if "logging" in sys.modules:
            take_over_logging(sys.modules["logging"], self)
        return runner, shape, limit

    def run(self):
        """Runs the worker from start to end."""
        self.put(HELLO, 0, 0, struct.pack("<H", VERSION) + NAME)
        self.flush()
        while self.spec is None:
            if self.draining:
                return
            self.receive()
        started = now_ns()
        gc.freeze()  # otherwise the first collection looks at everything that was imported
        gc.enable()
        self.capture_output()
        try:
            serve, shape, concurrency = self.load()
        except BaseException as error:  # SystemExit at import is a load error too
            self.put_exception(None, error)
            self.end_output(0)
            self.flush()
            os._exit(1)
        self.end_output(0)
        gc.freeze()  # what was loaded stays; collections need not look at it again
        ready = {
            "init_ns": now_ns() - started,
            "concurrency": concurrency,
            "shape": shape,
            "whole_bodies": self.whole_bodies,
        }
        is_seed = self.spec.get("seed", False)
        if is_seed or ready["init_ns"] >= COPIES_PAY_NS:
            ready["no_copies"] = self.part("mote_seed").obstacle(self)[:NO_COPIES_MAX]
        copies = self.part("mote_seed").Copies(self) if is_seed else None
        self.put(READY, 0, 0, encode_json(ready).encode())
        self.flush()
        if copies:
            copies.make()  # returns only in a copy
            ready["init_ns"] = 0
            ready.pop("no_copies")
            self.put(READY, 0, 0, encode_json(ready).encode())
            self.flush()
        self.serving = True
        serve()
        for call in self.at_end:
            call()
        self.flush_last()

    def part(self, name):
        """A file of the shim that few functions use, loaded on first use."""
        module = self.parts.get(name)
        if module is None:
            import importlib.util

            found = importlib.util.spec_from_file_location(name, os.path.join(self.folder, name + ".py"))
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            self.parts[name] = module
        return module

    def node(self):
        """The services of the node."""
        if self.services is None:
            self.services = self.part("mote_services").Services(self)
        return self.services

    def cloudevents_of(self, event):
        """(is a batch, events) of an invocation, read on first use."""
        found = event._cloudevents
        if found is None:
            received = self.part("mote_cloudevents").received
            found = event._cloudevents = received(event.headers.pairs, event.trigger == "mqtt", lambda: event.body)
        return found

    def idle(self):
        return not (self.ready or self.incoming or self.outputs or self.running)
