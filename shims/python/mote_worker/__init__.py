"""The parts of the Python worker, by topic. Start reading at `mote_shim.py` and `worker`.

    wire                       frames, limits, header blocks
    event, answers, bodies     what a function gets and returns, and what does not fit into one frame
    reader, writer, capture    frames from the engine, frames to it, lines that a function prints
    loading                    finds the function and its shape
    blocking, threads, loop    the three ways to serve
    wsgi, asgi                 applications of these two standards
    worker                     puts the parts together
    adapters                   what adapters for other platforms may use of all this

A sandbox gets these files as one: the build puts them into a module `mote_worker.py`, this file first,
because opening several costs a cold start several milliseconds (see `crates/manage/build/build.rs`). So
the parts share one namespace there. A part imports another only with `from mote_worker.NAME import ...`
at its head, never inside a function and never under another name; and no two parts define the same name.
"""

import gc

gc.disable()  # until the function is loaded: what imports make stays, so a collection finds nothing
