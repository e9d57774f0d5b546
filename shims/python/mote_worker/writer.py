"""Frames to the engine: the queue of what is to be sent, and when it is written.

This part knows RESULT and ERROR. It does not know how a function is called.
"""

import json
import os

from mote_worker.bodies import Output
from mote_worker.standard import standard
from mote_worker.wire import (
    END,
    ERROR,
    HEADER,
    INLINE_MAX,
    LINE_MAX,
    RESULT,
    RESULT_FRAME,
    TEXT,
    BadReply,
    Cancelled,
)


def end_of(trace):
    """The last whole lines of a trace. The beginning of a line could be a part of a secret."""
    lines = [line[:LINE_MAX] for line in trace.split("\n")]
    while len(lines) > 1 and sum(map(len, lines)) > LINE_MAX:
        del lines[0]
    return "\n".join(lines)


class FrameWriter:
    """The part of `Worker` that sends; its fields are set there."""

    def put(self, kind, flags, stream, payload=b""):
        self.out += (HEADER.pack(len(payload), kind, flags, 0, stream), payload)

    def flush(self):
        """Writes what is queued. Any thread may call this: the holder of the lock looks again after
        it has released the lock, so nobody waits and nothing stays behind."""
        out = self.out
        while out:
            if not self.sending.acquire(False):
                return
            try:
                if self.forked:
                    os._exit(0)  # a forked child returned from the handler: not our answer
                count = len(out)
                data = b"".join(out[:count])
                del out[:count]
                self.sock.sendall(data)
            except OSError:
                os._exit(1)  # the engine is gone, nobody is left to answer to
            finally:
                self.sending.release()

    def flush_last(self):
        """Writes what is queued before the process ends, after whatever another thread is still
        writing: ending during that write would truncate an answer."""
        with self.sending:
            data = b"".join(self.out)
            self.out.clear()
            try:
                self.sock.sendall(data)
            except OSError:
                pass  # the engine is gone, nobody is left to answer to

    def put_result(self, event, entered, returned, status, headers, body):
        """Sends RESULT; a body beyond the inline part follows as credit allows."""
        stream, size = event._stream, len(body)
        if size <= INLINE_MAX:
            self.out += (
                RESULT_FRAME.pack(
                    24 + len(headers) + size, RESULT, END, 0, stream,
                    entered, returned, status, 0, len(headers),
                ), headers, body,
            )  # fmt: skip
            return
        output = self.open_result(event, entered, returned, status, headers, body[:INLINE_MAX])
        output.last = True
        output.push(memoryview(body)[INLINE_MAX:])

    def open_result(self, event, entered, returned, status, headers, first):
        """Sends the RESULT of a stream, with `first` (at most the inline size) inside it."""
        self.out += (
            RESULT_FRAME.pack(
                24 + len(headers) + len(first), RESULT, 0, 0, event._stream,
                entered, returned, status, 0, len(headers),
            ), headers, first,
        )  # fmt: skip
        event._output = Output(self, event._stream)
        return event._output

    def put_error(self, event, kind, message, trace="", entered=0, returned=0):
        stream = event._stream if event else 0
        if event and event._output:
            with self.state:
                event._output.close()
        fault = {"kind": kind, "message": message[:4096], "trace": end_of(trace),
                 "entered_ns": entered, "returned_ns": returned}  # fmt: skip
        self.put(ERROR, END, stream, json.dumps(fault).encode())

    def own_folders(self):
        """Where the function's modules are."""
        return (self.spec["code_dir"], self.spec["packages_dir"]) if self.spec else ()

    def put_exception(self, event, error, entered=0, returned=0):
        """Sends ERROR for an exception, with its trace but without the shim's own frames. An
        exception can have an answer, which the caller receives unless another answer has begun."""
        own_answer = getattr(error, "mote_answer", None)
        if own_answer and event and not event._output:
            return self.put_result(event, entered, returned, own_answer[1], TEXT, own_answer[0].encode())
        kind = type(error).__name__
        if isinstance(error, Cancelled):
            return self.put_error(event, kind, "the caller is gone", "", entered, returned)
        try:
            message = str(error)
        except Exception:  # a broken __str__ must not take the worker down
            message = "(no text)"
        trace = ""
        if not isinstance(error, BadReply):
            traceback = standard("traceback", self.own_folders())
            tb = error.__traceback__
            own = os.path.join(self.folder, "mote_")  # `mote_shim.py`, or these parts of it
            while tb and tb.tb_frame.f_code.co_filename.startswith(own):
                tb = tb.tb_next
            trace = "".join(traceback.format_exception(type(error), error, tb))
        self.put_error(event, kind, message, trace, entered, returned)
