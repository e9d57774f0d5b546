"""Serves `async def handle` and ASGI on an event loop.

One task runs each invocation, and everything that completes in one turn of the loop is sent with
one write. The parts specific to ASGI are in `asgi`.
"""

import sys

from mote_worker.answers import answer, chunk_bytes
from mote_worker.asgi import Lifespan
from mote_worker.blocking import wait_for
from mote_worker.capture import current
from mote_worker.event import Context
from mote_worker.loading import with_arguments
from mote_worker.wire import INLINE_MAX, now_ns


class Loop:
    """The part of `Worker` that serves on an event loop; its fields are set there."""

    def start_async(self, module, handler, shape, limit):
        """Makes the loop, so that `init` and the handlers share it; returns how to serve."""
        import asyncio

        if sys.version_info < (3, 10):
            loop = asyncio.get_event_loop()
        else:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        if hasattr(asyncio, "eager_task_factory"):
            # Most handlers never wait. They then end within their first step, without a pass
            # through the loop.
            loop.set_task_factory(asyncio.eager_task_factory)
        self.loop = loop
        init = getattr(module, "init", None)
        if init:
            made = with_arguments(init, 1)(Context(self, None))
            if hasattr(made, "__await__"):
                loop.run_until_complete(wait_for(made))
        lifespan = None
        if shape == "asgi":
            lifespan = Lifespan(self, handler)
            loop.run_until_complete(lifespan.start())
        return lambda: self.serve_async(loop, handler, shape, limit, lifespan)

    def serve_async(self, loop, handler, shape, limit, lifespan):
        import asyncio

        run = self.run_asgi if shape == "asgi" else self.run_async
        call = handler if shape == "asgi" else with_arguments(handler, 2)
        flushing, drained = False, loop.create_future()

        def flush():
            nonlocal flushing
            flushing = False
            self.flush()

        def flush_soon():
            # All answers that complete in this turn of the loop are sent in one write.
            nonlocal flushing
            if not flushing:
                flushing = True
                loop.call_soon(flush)

        def begin():
            while self.ready and len(self.running) < limit:
                event = self.ready.popleft()
                self.running[event._stream] = event
                token = current.set(event)
                task = loop.create_task(guarded(event))
                current.reset(token)
                if not event._done:
                    event._task = task

        async def guarded(event):
            entered = now_ns()
            try:
                await run(call, event, entered)
            except asyncio.CancelledError:
                self.put_error(event, "Cancelled", "the caller is gone", "", entered, now_ns())
            except BaseException as error:
                self.put_exception(event, error, entered, now_ns())
            self.end_output(event._stream)
            event._done = True
            # Since the answer ended, the engine may have given the number to another invocation.
            incoming = self.incoming.pop(event._stream) if self.incoming.get(event._stream) is event else None
            if self.running.get(event._stream) is event:
                del self.running[event._stream]
            if incoming or self.ready or self.draining:
                loop.call_soon(turn)
            flush_soon()

        def turn():
            begin()
            if self.draining and self.idle() and not drained.done():
                drained.set_result(None)

        def readable():
            self.receive(block=False)
            turn()
            flush_soon()

        self.flush_soon = flush_soon
        loop.add_reader(self.sock.fileno(), readable)
        readable()  # frames may have come with LOAD
        loop.run_until_complete(drained)
        self.flush()
        if lifespan:
            loop.run_until_complete(lifespan.stop())

    async def push_async(self, output, chunk):
        import asyncio

        output.push(chunk)
        self.flush_soon()
        while output.queue:
            ready = asyncio.get_running_loop().create_future()
            output.wake = lambda ready=ready: ready.done() or ready.set_result(None)
            try:
                await ready
            finally:
                output.wake = None

    async def run_async(self, handler, event, entered):
        value = handler(event, Context(self, event))
        if hasattr(value, "__await__"):
            value = await value
        returned = now_ns()
        self.end_output(event._stream)
        status, headers, body = answer(value, self.text)
        if isinstance(body, bytes):
            return self.put_result(event, entered, returned, status, headers, body)
        if not hasattr(body, "__aiter__"):
            body = as_async(body)
        output = None
        try:
            async for chunk in body:
                chunk = chunk_bytes(chunk)
                if output is None:
                    first, chunk = chunk[:INLINE_MAX], chunk[INLINE_MAX:]
                    output = self.open_result(event, entered, now_ns(), status, headers, first)
                await self.push_async(output, chunk)
        finally:
            close = getattr(body, "aclose", None)
            if close:
                await close()
        if output is None:
            return self.put_result(event, entered, now_ns(), status, headers, b"")
        output.finish()


async def as_async(chunks):
    for chunk in chunks:
        yield chunk
