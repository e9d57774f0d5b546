"""Serves `def handle` and WSGI with several invocations at a time, each in a thread of a pool.

The main thread reads frames and starts invocations. A thread that becomes free takes the next
invocation itself. This part does not know what an answer is: see `Blocking.conclude`.
"""

import _socket

from mote_worker.capture import current
from mote_worker.event import Context
from mote_worker.loading import with_arguments
from mote_worker.standard import standard
from mote_worker.wire import now_ns


class Threads:
    """The part of `Worker` that serves in threads; its fields are set there."""

    def serve_threads(self, handler, limit):
        futures = standard("concurrent.futures.thread", self.own_folders())
        handler = with_arguments(handler, 2)
        pool = futures.ThreadPoolExecutor(limit, thread_name_prefix="invocation")
        # Threads that finish do not wake this loop, so during a drain, the last thread to finish
        # ends the worker.
        while True:
            while self.ready and len(self.running) < limit:
                event = self.ready.popleft()
                self.running[event._stream] = event
                pool.submit(self.run_in_thread, handler, event, limit)
            self.flush()
            if self.draining:
                with self.state:
                    if self.idle():
                        return
            self.receive()

    def run_in_thread(self, handler, event, limit):
        while True:
            token = current.set(event)
            entered = now_ns()
            try:
                value = handler(event, Context(self, event))
                returned = now_ns()
                self.end_output(event._stream)
                self.conclude(event, value, entered, returned)
            except BaseException as error:
                self.end_output(event._stream)
                self.put_exception(event, error, entered, now_ns())
            event._done = True
            current.reset(token)
            with self.state:
                del self.running[event._stream]
                following = None
                # The reader sleeps in recv, so the thread that frees a place also fills it.
                if self.ready and len(self.running) < limit:
                    following = self.ready.popleft()
                    self.running[following._stream] = following
            self.flush()
            if following is None:
                if self.draining and self.idle():
                    # The main thread is blocked in recv, and would never notice that all work is
                    # done.
                    self.sock.shutdown(_socket.SHUT_RD)
                return
            event = following
