"""Frames from the engine: reads the connection, checks each frame and files it.

This part fills `ready`, `incoming` and `outputs` of the worker, and marks what was cancelled. It
does not call functions.
"""

import _socket
import os

from mote_worker.bodies import Incoming
from mote_worker.event import Event
from mote_worker.loading import parse_load
from mote_worker.wire import (
    BODY,
    CANCEL,
    CHUNK_MAX,
    CREDIT,
    DRAIN,
    END,
    HEADER,
    HELLO,
    INVOKE,
    INVOKE_LENGTHS,
    LOAD,
    PAYLOAD_MAX,
    RESPONSE,
    U32,
    ProtocolError,
)


class FrameReader:
    """The part of `Worker` that receives; its fields are set there."""

    def receive(self, block=True):
        """Reads once and files every whole frame. Returns whether any bytes arrived."""
        if self.kept == len(self.buffer):
            self.buffer += bytes(min(len(self.buffer), PAYLOAD_MAX + HEADER.size))
        view = memoryview(self.buffer)
        try:
            size = self.sock.recv_into(view[self.kept :], 0, 0 if block else _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            os._exit(1)
        if not size:
            # The engine has closed the connection, so nobody waits for answers, or a drain is
            # complete. Threads of the function may still be running, so there is no clean-up.
            if self.draining:
                self.flush_last()
            os._exit(0)
        data = bytes(view[: self.kept + size])
        view.release()
        try:
            self.kept = rest = len(data) - self.parse(data)
        except ProtocolError as error:
            os.write(2, b"mote_shim: protocol violation: %s\n" % str(error).encode())
            os._exit(65)
        if rest:
            self.buffer[:rest] = data[-rest:]
        return True

    def parse(self, data):
        """Files every whole frame in `data`; returns the bytes used."""
        position, end = 0, len(data)
        while end - position >= 12:
            size, kind, flags, zero, stream = HEADER.unpack_from(data, position)
            if size > PAYLOAD_MAX or flags > END or zero or not HELLO <= kind <= RESPONSE:
                raise ProtocolError("frame header %s" % data[position : position + 12].hex())
            start = position + 12
            position = start + size
            if position > end:
                return start - 12
            if kind == INVOKE:
                if self.spec is None:
                    raise ProtocolError("INVOKE before LOAD")
                if size < 40:
                    raise ProtocolError("INVOKE too short")
                lengths = INVOKE_LENGTHS.unpack_from(data, start + 29)
                head = 40 + lengths[0] + lengths[1] + lengths[2] + lengths[4]
                if head > size or not stream:
                    raise ProtocolError("INVOKE lengths pass its end")
                event = Event(stream, data[start:position], lengths, head)
                if flags:
                    self.ready.append(event)
                else:
                    self.begin_incoming(event, head)
            else:
                self.file_frame(kind, flags, stream, data[start:position])
        return position

    def begin_incoming(self, event, head):
        if not self.offers_sockets and event.headers.get("upgrade") == "websocket":
            self.ready.append(event)  # a request for a WebSocket, which this function does not offer
            return
        incoming = Incoming(self, event._stream, self.whole_bodies, event._payload[head:])
        event._payload = event._payload[:head]
        event._incoming = incoming
        self.incoming[event._stream] = event
        if not self.whole_bodies:
            self.ready.append(event)

    def file_frame(self, kind, flags, stream, payload):
        if kind == BODY:
            event = self.incoming.get(stream)
            if len(payload) > CHUNK_MAX:
                raise ProtocolError("BODY chunk above 64 KiB")
            if event is None:
                return  # crossed our END on its way: the stream is over for us
            incoming = event._incoming
            incoming.add(payload, bool(flags))
            if flags:
                del self.incoming[stream]
                if incoming.whole:
                    event.body = b"".join(chunk for chunk, _ in incoming.chunks)
                    incoming.chunks.clear()
                    self.ready.append(event)
        elif kind == CREDIT:
            if len(payload) != 4:
                raise ProtocolError("CREDIT is not 4 bytes")
            output = self.outputs.get(stream)
            if output:
                output.credit(U32.unpack(payload)[0])
        elif kind == RESPONSE:
            if len(payload) < 8 or self.services is None:
                raise ProtocolError("RESPONSE too short, or to nothing")
            self.services.requests.file(payload)
        elif kind == CANCEL:
            self.cancel(stream)
        elif kind == DRAIN:
            self.draining = True
        elif kind == LOAD and self.spec is None:
            self.spec = parse_load(payload)
        else:
            raise ProtocolError("frame kind %d is not for a worker now" % kind)

    def cancel(self, stream):
        """Ends a stream that no caller waits for: at once if it has not started, otherwise by a
        request."""
        with self.state:
            event = self.incoming.pop(stream, None)
            waiting = next((one for one in self.ready if one._stream == stream), None)
            if waiting:
                self.ready.remove(waiting)
                event = waiting
            begun = self.running.get(stream)
            if begun is None and self.inline and self.inline._stream == stream:
                begun = self.inline
            output = self.outputs.get(stream)
            if begun:
                # Shows the engine that the worker still reads, even if the function continues.
                self.put(CREDIT, 0, stream, U32.pack(0))
                begun._cancelled = True
                if event:
                    event._incoming.add(b"", True)
                if output and output.wake:
                    output.wake()
                if self.services is not None:
                    self.services.requests.cancelled(begun)
                if begun._task:
                    begun._task.cancel()
            elif event:
                self.put_error(event, "Cancelled", "the caller is gone")
            elif output:
                # The handler has returned. Only bytes are left, and nobody wants them.
                output.close()
                self.put_error(Event(stream, b"", (), 0), "Cancelled", "the caller is gone")
