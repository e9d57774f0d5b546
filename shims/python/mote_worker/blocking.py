"""Serves `def handle` and WSGI one invocation at a time, on the only thread.

This is the fastest way to serve: no threads and no event loop. The code that sends a synchronous
answer is here as well, because serving in threads shares it.
"""

import threading

from mote_worker.answers import answer, chunk_bytes
from mote_worker.event import Context
from mote_worker.loading import arguments_of, with_arguments
from mote_worker.wire import BYTES, FLUSH_NS, INLINE_MAX, RESULT_FRAME, BadReply, Cancelled, now_ns


class Blocking:
    """The part of `Worker` that serves one at a time; its fields are set there."""

    def serve_inline(self, handler):
        ready, out, text = self.ready, self.out, self.text
        stdout, stderr = self.writers
        pack, clock = RESULT_FRAME.pack, now_ns
        takes_event_only = arguments_of(handler) == 1
        if not takes_event_only:
            handler = with_arguments(handler, 2)
        flushed = clock()
        while True:
            if not ready:
                self.flush()
                if self.draining and self.idle():
                    return
                self.receive()
                flushed = clock()
                continue
            self.inline = event = ready.popleft()
            value = failure = None
            entered = clock()
            try:
                value = handler(event) if takes_event_only else handler(event, Context(self, event))
            except BaseException as error:  # SystemExit too: one invocation, not the worker
                failure = error
            returned = clock()
            if stdout.partial or stderr.partial:
                self.end_output(event._stream)
            if failure is None:
                kind = type(value)
                if kind is str and value.isascii():
                    headers, body = text, value.encode()
                elif kind is bytes:
                    headers, body = BYTES, value
                else:
                    headers = None
                if headers and len(body) <= INLINE_MAX:
                    out += (
                        pack(24 + len(headers) + len(body), 6, 1, 0, event._stream,
                             entered, returned, 200, 0, len(headers)),
                        headers, body,
                    )  # fmt: skip
                else:
                    self.conclude(event, value, entered, returned)
            else:
                self.put_exception(event, failure, entered, returned)
            event._done = True
            self.inline = None
            if returned - flushed > FLUSH_NS or len(out) > 192:
                self.flush()
                # A CANCEL for an invocation that waits here may have arrived meanwhile.
                self.receive(block=False)
                flushed = clock()

    def conclude(self, event, value, entered, returned):
        """Sends what a synchronous handler returned."""
        try:
            if hasattr(value, "__await__"):
                import asyncio

                value = asyncio.run(wait_for(value))
                returned = now_ns()
            status, headers, body = answer(value, self.text)
            if isinstance(body, bytes):
                self.put_result(event, entered, returned, status, headers, body)
            elif hasattr(body, "__next__"):
                self.send_stream(event, body, entered, status, headers)
            else:
                raise BadReply("an async stream needs an async handler")
        except BaseException as error:
            self.put_exception(event, error, entered, now_ns())

    def send_stream(self, event, chunks, entered, status, headers):
        """Sends what an iterator yields. The head is sent only after the first chunk, so a
        generator that fails at once is an error and not a truncated answer."""
        try:
            first = chunk_bytes(next(chunks, b""))
            output = self.open_result(event, entered, now_ns(), status, headers, first[:INLINE_MAX])
            self.push_waiting(output, event, first[INLINE_MAX:])
            for chunk in chunks:
                self.push_waiting(output, event, chunk_bytes(chunk))
            output.finish()
        finally:
            close = getattr(chunks, "close", None)
            if close:
                close()

    def push_waiting(self, output, event, chunk):
        if self.inline is event:
            output.push(chunk)
            self.flush()
            self.receive(block=False)
            while output.queue and not event._cancelled:
                self.receive()
        else:
            waiter = threading.Event()
            output.wake = waiter.set
            output.push(chunk)
            self.flush()
            while output.queue and not event._cancelled:
                waiter.wait()
                waiter.clear()
            output.wake = None
        if event._cancelled:
            raise Cancelled


async def wait_for(value):
    return await value
