"""The Python worker of mote: loads one function and answers its invocations over fd 3.

The contract is docs/reference/worker-protocol.md. The parts are in `mote_worker/`; the build puts
them into one module. Where to start reading: `main`, then `Worker.load`, then one of the three ways
to serve, picked once by the shape of the function:

    serve_inline   `def handle`, one at a time: no threads, no event loop, the fastest path
    serve_threads  `def handle` or WSGI with concurrency above 1
    serve_async    `async def handle` and ASGI

Standard library only, Python 3.9 or newer. Modules that few functions need (asyncio, logging,
inspect, traceback) are imported late: they are most of an interpreter's start.

This file is short because Python compiles the file that it is started with each time. The module is
compiled once, by the node.
"""

import os
import sys

from mote_worker.adapters import (  # noqa: F401 (adapters find them here)
    Headers,
    fields_and_body,
    find_entry,
    head_and_body,
    header_block,
    parts_of_head,
    request_of,
    with_arguments,
)
from mote_worker.wire import BadReply, Cancelled, checked_status, now_ns  # noqa: F401
from mote_worker.worker import Worker, channel

SEQPACKET = 5  # messages with descriptors: orders to a template in place of frames to a worker


def main():
    sock = channel(3)
    folder = os.path.dirname(os.path.abspath(__file__))
    template = None
    if sock.type == SEQPACKET:
        import mote_template as template
    if sys.path and sys.path[0] == folder:
        del sys.path[0]  # the shim's own folder is no place to import from
    sys.modules["mote_shim"] = sys.modules["__main__"]
    if sys.flags.no_site:
        # The machine's own packages stay hidden, so that a function works with the packages that it
        # names and no others. The names that `site` gives every program (exit, help) still exist.
        import site

        site.setquit()
        site.setcopyright()
        site.sethelper()
    worker = Worker(sock, folder)
    if template:
        worker.sock = channel(template.serve(sock))
    try:
        worker.run()
    except KeyboardInterrupt:
        os._exit(130)  # Ctrl-C reaches the whole group of a node in the foreground
    os._exit(0)  # threads the function left behind do not keep a drained worker alive


if __name__ == "__main__":
    main()
