"""WebSockets of ASGI applications. The worker loads this file with the first of them.

The node reads and writes the frames. The bodies of the invocation carry records, whose layout is in
docs/reference/worker-protocol.md: a kind, whether more of the message follows, and the content.
"""

import asyncio
import struct

import mote_shim

TEXT, BINARY, CLOSE = 1, 2, 8
MORE = 1
RECORD = struct.Struct("<BBHI")
NO_CODE, ABNORMAL, FAILED = 1005, 1006, 1011
REASON_MAX = 123
# The codes that a function may choose: those of RFC 6455 and those for applications.
CODES = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014))


def close_content(code, reason):
    if code not in CODES and not 3000 <= code <= 4999:
        raise ValueError("a WebSocket cannot be closed with the code %r" % (code,))
    reason = (reason or "").encode()[:REASON_MAX].decode("utf-8", "ignore").encode()
    return struct.pack(">H", code) + reason


class Records:
    """The records of a request body, as they arrive."""

    def __init__(self, incoming):
        self.incoming, self.data = incoming, bytearray()
        self.begun = bytearray()  # of a message that is not complete; a list would cost more per small part

    async def message(self):
        """(kind, content) of the next message; `None` at the end. If it is cancelled, nothing is
        lost."""
        data = self.data
        while True:
            if len(data) >= RECORD.size:
                kind, flags, _, size = RECORD.unpack_from(data)
                end = RECORD.size + size
                if len(data) >= end:
                    content = data[RECORD.size : end]
                    del data[:end]
                    if kind == CLOSE:
                        return kind, bytes(content)  # the message before it is not complete
                    self.begun += content
                    if not flags & MORE:
                        content, self.begun = bytes(self.begun), bytearray()
                        return kind, content
                    continue
            chunk = await self.incoming.next()
            if chunk is None:
                return None
            data += chunk


class Socket:
    """One WebSocket: the `receive` and `send` of its application."""

    def __init__(self, worker, event, entered):
        self.worker, self.event, self.entered = worker, event, entered
        self.records = Records(event._incoming)
        self.state = "asked"  # then "connecting", "open", "refusing", "closed"
        self.ended = None  # the message of the disconnect, once it is known
        self.code = None  # with which the function has closed
        self.refusal = None  # the start of an answer that refuses
        self.sending = asyncio.Lock()  # one message after the other

    async def receive(self):
        if self.state == "asked":
            self.state = "connecting"
            return {"type": "websocket.connect"}
        if self.ended is None:
            message = await self.records.message()
            if message is None:
                code = self.code or ABNORMAL
                message = (CLOSE, struct.pack(">H", code))
            if message[0] == TEXT:
                return {"type": "websocket.receive", "text": message[1].decode()}
            if message[0] == BINARY:
                return {"type": "websocket.receive", "bytes": message[1]}
            self.end(message[1])
        return self.ended

    def end(self, content):
        """The other side has closed; what the function sent before that is on its way."""
        code = struct.unpack_from(">H", content)[0] if len(content) >= 2 else NO_CODE
        self.ended = {"type": "websocket.disconnect", "code": code, "reason": content[2:].decode("utf-8", "replace")}
        if self.state == "open":
            self.close(None if code in (NO_CODE, ABNORMAL) else content)

    def close(self, content):
        output = self.event._output
        if content is not None:
            output.push(RECORD.pack(CLOSE, 0, 0, len(content)) + content)
        output.finish()
        self.state = "closed"
        self.worker.flush_soon()
        self.leave()  # for the engine, the invocation is over

    def leave(self):
        """Ends the waiting of `receive`."""
        incoming = self.event._incoming
        incoming.ended = True
        if incoming.wake:
            incoming.wake()

    async def send(self, message):
        kind = message["type"]
        if self.state == "closed":
            if self.ended is not None:
                # ASGI servers raise this error since version 2.4 of the specification.
                raise OSError("the WebSocket is closed")
            raise RuntimeError("%s was sent after websocket.close" % kind)
        if self.state in ("asked", "connecting"):
            return self.answer(kind, message)
        if self.state == "refusing":
            return await self.refuse(kind, message)
        if kind == "websocket.send":
            text = message.get("text")
            record, content = (TEXT, text.encode()) if text is not None else (BINARY, bytes(message["bytes"]))
            async with self.sending:
                if self.state != "open":
                    raise OSError("the WebSocket is closed")
                await self.worker.push_async(self.event._output, RECORD.pack(record, 0, 0, len(content)) + content)
        elif kind == "websocket.close":
            content = close_content(message.get("code", 1000), message.get("reason"))
            self.code = struct.unpack_from(">H", content)[0]
            self.close(content)
        else:
            raise RuntimeError("unknown ASGI message %r" % kind)

    def answer(self, kind, message):
        worker, event = self.worker, self.event
        if kind == "websocket.accept":
            headers = list(message.get("headers", ()))
            if message.get("subprotocol"):
                headers.append((b"sec-websocket-protocol", message["subprotocol"]))
            block = mote_shim.header_block(headers) + b"upgrade\nwebsocket\n"
            worker.end_output(event._stream)
            worker.open_result(event, self.entered, mote_shim.now_ns(), 200, block, b"")
            self.state = "open"
            worker.flush_soon()
        elif kind == "websocket.close":
            self.reply(403, b"", b"")
        elif kind == "websocket.http.response.start":
            self.refusal = (mote_shim.checked_status(message["status"]), mote_shim.header_block(message.get("headers", ())))
            self.state, self.body = "refusing", []
        else:
            raise RuntimeError("%s was sent before websocket.accept" % kind)

    async def refuse(self, kind, message):
        if kind != "websocket.http.response.body":
            raise RuntimeError("%s was sent after websocket.http.response.start" % kind)
        self.body.append(bytes(message.get("body", b"")))
        if not message.get("more_body", False):
            self.reply(*self.refusal, b"".join(self.body))

    def reply(self, status, headers, body):
        self.worker.end_output(self.event._stream)
        self.worker.put_result(self.event, self.entered, mote_shim.now_ns(), status, headers, body)
        self.state = "closed"
        self.worker.flush_soon()


async def run(worker, app, event, entered, scope):
    """Runs an application for one WebSocket."""
    block = [value for name, value in scope["headers"] if name == b"sec-websocket-protocol"]
    offered = [one.strip() for value in block for one in value.decode("latin-1").split(",")]
    scope["type"] = "websocket"
    scope["scheme"] = "wss" if scope["scheme"] == "https" else "ws"
    scope["subprotocols"] = [one for one in offered if one]
    scope["extensions"]["websocket.http.response"] = {}
    del scope["method"]
    socket = Socket(worker, event, entered)
    try:
        await app(scope, socket.receive, socket.send)
    except BaseException as error:
        if socket.state not in ("open", "closed") or event._cancelled:
            raise
        # The client has its answer already, so the error only goes to the log.
        worker.show_error(error)
        if socket.state == "open":
            socket.close(struct.pack(">H", FAILED))
    else:
        if socket.state == "open":
            socket.close(struct.pack(">H", 1000))
        elif socket.state != "closed":
            raise mote_shim.BadReply("the application returned without accepting or closing the WebSocket")
