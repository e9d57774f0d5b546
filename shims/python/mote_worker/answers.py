"""What a function may return, turned into status, header block and body.

This part decides what an answer says. It does not know how the answer is sent.
"""

from mote_worker.wire import BYTES, JSON, TEXT, BadReply, checked_status, encode_json, header_block


def content(value):
    """(header block, bytes) of a plain value, or (None, iterator) for a stream."""
    if isinstance(value, str):
        try:
            return TEXT, value.encode()
        except UnicodeEncodeError as error:
            raise BadReply("text is not UTF-8: %s" % error) from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BYTES, bytes(value)
    if value is None:
        return b"", b""
    if isinstance(value, (dict, list, tuple, bool, int, float)):
        try:
            return JSON, encode_json(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadReply("answer is not JSON: %s" % error) from None
    if hasattr(value, "__aiter__") or hasattr(value, "__next__"):
        return None, value
    if hasattr(value, "__iter__") and not hasattr(value, "__len__"):
        return None, iter(value)
    raise BadReply("cannot turn %s into an answer" % type(value).__name__)


def answer(value, text=TEXT):
    """(status, header block, bytes or iterator) of whatever a function returned. `text` is the
    header block of an answer that is only text."""
    status, headers = None, None
    if isinstance(value, str):
        return 200, text, content(value)[1]
    if isinstance(value, tuple) and len(value) in (2, 3):
        if len(value) == 3:
            headers = value[2]
        value, status = value[0], checked_status(value[1])
    elif not isinstance(value, (str, bytes, dict, list)) and hasattr(value, "status") and hasattr(value, "body"):
        status, headers, value = checked_status(value.status), getattr(value, "headers", None), value.body
    default, body = content(value)
    if default is None:
        default = BYTES
    block = header_block(headers) if headers else b""
    if default and b"\n" + b"content-type\n" not in b"\n" + block:
        block = default + block
    if status is None:
        status = 204 if value is None else 200
    if status in (204, 205, 304) and isinstance(body, bytes):
        body = b""
    return status, block, body


def chunk_bytes(chunk):
    if isinstance(chunk, str):
        return chunk.encode()
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return bytes(chunk)
    raise BadReply("a stream yields str or bytes, not %s" % type(chunk).__name__)
