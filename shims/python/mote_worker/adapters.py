"""What an adapter for another platform may use of the shim. Everything else can change at any time.

An adapter imports `mote_shim` and finds the names in `__all__` there. Its `adapt(worker)` uses these
members of the worker while the function loads:

    spec       the content of the LOAD frame, a dict. Adapters do not change it.
    text       the header block of an answer that is text and nothing else. An adapter may set it.
    root       the path below which an ASGI application is mounted. An adapter may set it to "".
    logger()   the function's `logging.Logger`. The first call imports `logging`, some 5 ms.
    part(name) a file of the shim that is loaded on demand. Adapters may use `mote_cloudevents`.
    at_end     a list of calls without arguments that are made after a drain. An adapter may add some.

The handler that `adapt` returns gets an `Event`. Its public fields are for adapters too; each is cut
out of the frame when it is first read, which costs about half a microsecond. The functions below
are for handlers that read the same parts in every call: they keep nothing in the event.
"""

from mote_worker.event import Headers
from mote_worker.loading import find_entry, with_arguments
from mote_worker.wire import INVOKE_LENGTHS, header_block

__all__ = [
    "Headers",  # a mapping of a header block, names in any case; some microseconds for each block
    "fields_and_body",
    "find_entry",  # (module, object, name) of the `entry` in the spec; imports the code
    "head_and_body",
    "header_block",  # the checked header block of a mapping or pairs; some microseconds for each field
    "parts_of_head",
    "request_of",
    "with_arguments",  # (function, count): it, called with as many of `count` arguments as it takes
]

HEAD_AT = 29  # of an INVOKE payload: lengths of the parts of the head, which follow at byte 40


def request_of(event):
    """(path, header block, body) of an event, as bytes. The body must have arrived as a whole, which
    it has for every handler that is no ASGI application. Costs three slices."""
    payload, head = event._payload, event._head
    method, path, _, _, fields = event._lengths
    body = payload[head:] if event._incoming is None else event.body
    return payload[40 + method : 40 + method + path], payload[head - fields : head], body


def fields_and_body(event):
    """(header block, body) of an event, as `request_of` has them. Costs two slices."""
    payload, head = event._payload, event._head
    block = payload[head - event._lengths[4] : head]
    return block, payload[head:] if event._incoming is None else event.body


def head_and_body(event):
    """(head, body) of an event, as bytes. Requests that differ in nothing but their body have the
    same head, so it serves as a key; `parts_of_head` reads it. Costs two slices."""
    payload, head = event._payload, event._head
    return payload[HEAD_AT:head], payload[head:] if event._incoming is None else event.body


def parts_of_head(head):
    """(method, path, query, header block) of a head, the first three as text. Costs a microsecond,
    so results are worth keeping."""
    lengths = INVOKE_LENGTHS.unpack_from(head)
    texts, start = [], INVOKE_LENGTHS.size
    for length in lengths[:3]:
        texts.append(head[start : start + length].decode("latin-1"))
        start += length
    return (*texts, head[start:])
