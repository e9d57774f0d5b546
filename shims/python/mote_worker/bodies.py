"""Bodies that do not fit into one frame: `Output` of an answer, `Incoming` of a request.

Both count the credit of their stream. They do not know what the bytes mean, or which way of serving
is in use: whoever waits sets `wake`.
"""

import collections

from mote_worker.wire import BODY, CHUNK_MAX, CREDIT, END, U32, WINDOW


class Output:
    """The body of one answer on its way out, as far as the engine's credit reaches."""

    __slots__ = ("worker", "stream", "window", "queue", "last", "wake")

    def __init__(self, worker, stream):
        self.worker, self.stream = worker, stream
        self.window, self.queue, self.last, self.wake = WINDOW, collections.deque(), False, None
        worker.outputs[stream] = self

    def push(self, chunk):
        with self.worker.state:
            if len(chunk):
                self.queue.append(memoryview(chunk))
            self.pump()

    def finish(self):
        with self.worker.state:
            self.last = True
            if not self.queue:
                self.worker.put(BODY, END, self.stream)
                self.close()
            else:
                self.pump()

    def credit(self, size):
        with self.worker.state:
            self.window += size
            self.pump()

    def pump(self):
        while self.queue and self.window:
            chunk = self.queue[0]
            size = min(len(chunk), CHUNK_MAX, self.window)
            if size == len(chunk):
                self.queue.popleft()
            else:
                self.queue[0] = chunk[size:]
            self.window -= size
            end = END if self.last and not self.queue else 0
            self.worker.put(BODY, end, self.stream, bytes(chunk[:size]))
            if end:
                self.close()
        if self.wake and not self.queue:
            self.wake()

    def close(self):
        self.queue.clear()
        self.worker.outputs.pop(self.stream, None)
        if self.wake:
            self.wake()


class Incoming:
    """The body of one request on its way in."""

    __slots__ = ("worker", "stream", "chunks", "ended", "whole", "owed", "wake")

    def __init__(self, worker, stream, whole, first):
        self.worker, self.stream, self.whole = worker, stream, whole
        self.chunks, self.ended, self.owed, self.wake = collections.deque(), False, 0, None
        if first:
            self.chunks.append((first, 0))

    def add(self, chunk, ended):
        self.ended = ended
        if chunk:
            self.chunks.append((chunk, len(chunk)))
            if self.whole and not ended:
                self.consumed(len(chunk))
        if self.wake:
            self.wake()

    def consumed(self, size):
        # One CREDIT is sent for each quarter of the window, so that the sender never runs out of
        # credit and small chunks do not cost a frame each.
        self.owed += size
        if self.owed >= CHUNK_MAX:
            self.worker.put(CREDIT, 0, self.stream, U32.pack(self.owed))
            self.owed = 0

    async def next(self):
        """The next chunk, or `None` at the end."""
        import asyncio

        while not self.chunks:
            if self.ended:
                return None
            ready = asyncio.get_running_loop().create_future()
            self.wake = lambda ready=ready: ready.done() or ready.set_result(None)
            try:
                await ready
            finally:
                self.wake = None
        chunk, size = self.chunks.popleft()
        if not self.ended and size:
            self.consumed(size)
            self.worker.flush_soon()
        return chunk
