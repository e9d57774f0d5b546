"""The wire of the worker protocol: kinds of frames, limits, layouts, and header blocks.

This part knows bytes and numbers. It does not know events, functions or the connection.
"""

import functools
import json
import struct
import sys
import time

VERSION = 1
NAME = b"python/" + sys.version.split()[0].encode()
HELLO, LOAD, READY, INVOKE, BODY, RESULT, ERROR, CANCEL, CREDIT, LOG, DRAIN, REQUEST, RESPONSE = range(1, 14)
END = 1
PAYLOAD_MAX = 1 << 20
INLINE_MAX = 64 << 10
CHUNK_MAX = 64 << 10
WINDOW = 256 << 10
HEADERS_MAX = 64 << 10
LINE_MAX = 16 << 10
NO_COPIES_MAX = 200
RECEIVE_BYTES = 256 << 10
# A batch is written no later than this after the previous write, so that a slow invocation does not
# delay earlier answers.
FLUSH_NS = 200_000
# A worker that loads for at least this long finds out whether copies of it can be made.
COPIES_PAY_NS = 100_000_000

STDOUT, STDERR, LOGGED = 1, 2, 3
TRIGGERS = {1: "http", 2: "coap", 3: "admin", 4: "schedule", 5: "mqtt", 6: "function"}

HEADER = struct.Struct("<IBBHI")
INVOKE_LENGTHS = struct.Struct("<BHHHI")  # at byte 29 of an INVOKE payload; the fourth is zero
INVOKE_FIXED = struct.Struct("<Q16sIB")
RESULT_FRAME = struct.Struct("<IBBHIQQHHI")  # header and fixed part in one go
U32 = struct.Struct("<I")

TEXT = b"content-type\ntext/plain; charset=utf-8\n"
BYTES = b"content-type\napplication/octet-stream\n"
JSON = b"content-type\napplication/json\n"
# The front frames the answer. A function's own framing fields could contradict the bytes that are
# sent.
FRAMING = frozenset(
    (
        "connection",
        "content-length",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")

now_ns = time.monotonic_ns
encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class ProtocolError(Exception):
    """The engine broke the contract; the connection cannot be used any more."""


class BadReply(Exception):
    """The function returned something that is not an answer."""


class Cancelled(Exception):
    """The caller went away while the answer was being sent."""


@functools.lru_cache(512)
def checked_name(name):
    """A header name as bytes of the wire, empty for a framing field."""
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    name = name.lower()
    if not name or not TOKEN.issuperset(name):
        raise BadReply("header name %r is not a token" % name)
    return b"" if name in FRAMING else name.encode()


def header_block(headers):
    """A checked header block from a mapping or pairs."""
    if hasattr(headers, "items"):
        headers = headers.items()
    block = bytearray()
    for name, value in headers:
        name = checked_name(name)
        if not name:
            continue
        if not isinstance(value, (str, bytes)):
            if isinstance(value, (list, tuple)):
                block += header_block((name, one) for one in value)
                continue
            value = str(value)
        if isinstance(value, str):
            try:
                value = value.encode("latin-1")
            except UnicodeEncodeError:
                value = value.encode("utf-8")
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise BadReply("header %s holds a line break or NUL" % name.decode())
        block += b"%b\n%b\n" % (name, value.strip(b" \t"))
    if len(block) > HEADERS_MAX:
        raise BadReply("headers of %d bytes, at most 64 KiB are allowed" % len(block))
    return bytes(block)


def checked_status(status):
    if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
        raise BadReply("status %r is not 200 to 599" % (status,))
    return int(status)


def decoded_path(path):
    if b"%" not in path:
        return path
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(path)
