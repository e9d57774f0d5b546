"""What a function prints and logs: every line becomes a LOG frame of its invocation.

This part replaces `sys.stdout` and `sys.stderr`, and adds a handler to `logging`. It does not know
how functions are called: it asks which invocation runs.
"""

import contextvars
import io
import os
import sys
import threading

from mote_worker.wire import LINE_MAX, LOG, LOGGED, STDERR, STDOUT

# The invocation whose code is running. Threads that a function starts inherit it through
# `Thread.start`.
current = contextvars.ContextVar("mote_invocation", default=None)


class LineWriter(io.TextIOBase):
    """stdout or stderr of the function: every line becomes a LOG frame of its invocation."""

    encoding, errors, closed = "utf-8", "backslashreplace", False

    def __init__(self, worker, source):
        self.worker, self.source, self.partial = worker, source, {}
        self.buffer = RawWriter(self)

    def fileno(self):
        return self.source

    def writable(self):
        return True

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        stream = self.worker.current_stream()
        whole = self.partial.pop(stream, "") + text if self.partial else text
        *lines, rest = whole.split("\n")
        if rest:
            self.partial[stream] = rest[: LINE_MAX + 1]  # the rest of a longer line is left out
        for line in lines:
            self.worker.log(self.source, 2, line, stream)
        return len(text)

    def flush(self):
        pass  # lines leave as they are completed; the rest of a line when its invocation ends

    def end(self, stream):
        rest = self.partial.pop(stream, None)
        if rest:
            self.worker.log(self.source, 2, rest, stream)


class RawWriter(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text):
        self.text = text

    def fileno(self):
        return self.text.source

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        self.text.write(data.decode("utf-8", "backslashreplace"))
        return len(data)


class LineCapture:
    """The part of `Worker` that writes the lines of a function; its fields are set there."""

    def current_event(self):
        event = current.get()
        if event is None:
            event = getattr(threading.current_thread(), "_mote_invocation", None) or self.inline
        return None if event is None or event._done else event

    def current_stream(self):
        event = self.current_event()
        return event._stream if event else 0

    def log(self, source, level, line, stream):
        data = line.encode("utf-8", "backslashreplace")
        self.put(LOG, 0, stream, bytes((source, level)) + data[:LINE_MAX])
        self.flush()  # at once: a line must not wait for a slow handler or be lost in a crash

    def logger(self):
        import logging

        logger = logging.getLogger(self.spec["function"])
        if not any(isinstance(handler, log_handler_class()) for handler in logger.handlers):
            logger.addHandler(log_handler_class()(self))
            logger.propagate = False
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.DEBUG)  # `mote logs` chooses by level
        return logger

    def capture_output(self):
        """Turns prints into LOG frames. Bytes written to fd 1 and 2 directly stay untouched."""
        self.writers = [LineWriter(self, STDOUT), LineWriter(self, STDERR)]
        sys.stdout, sys.stderr = self.writers
        start = threading.Thread.start

        def start_tagged(thread):
            thread._mote_invocation = self.current_event()
            start(thread)

        threading.Thread.start = start_tagged

        def in_child():
            # A forked child shares the socket's file description, and one byte from it would break
            # a frame of the parent. The child therefore prints to the real pipes.
            if self.copying:
                return  # a copy of a seed has a connection of its own
            self.forked = True
            self.out.clear()
            self.sending = threading.Lock()
            self.sock.close()
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (the child's own, to its end)
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            if "logging" in sys.modules:
                import logging

                for logger in (logging.root, logging.getLogger(self.spec and self.spec["function"])):
                    for handler in list(logger.handlers):
                        if isinstance(handler, log_handler_class()):
                            logger.removeHandler(handler)
                            logger.addHandler(logging.StreamHandler(sys.stderr))

        os.register_at_fork(after_in_child=in_child)

    def end_output(self, stream):
        for writer in self.writers:
            if writer.partial:
                writer.end(stream)


_log_handler_class = None


def take_over_logging(logging, worker):
    """Sends log lines with their levels, unless the function has set up logging itself.

    A call of logging.info() and its like also sets up logging, if nothing else did: with one
    handler for stderr and the usual format. Such a set-up does not count."""
    root = logging.root
    usual = [
        handler
        for handler in root.handlers
        if type(handler) is logging.StreamHandler
        and handler.stream is sys.stderr
        and getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT
    ]
    if root.handlers and (len(root.handlers) > 1 or not usual):
        return
    for handler in usual:
        root.removeHandler(handler)
    root.addHandler(log_handler_class()(worker))
    if root.level == logging.WARNING:
        root.setLevel(logging.INFO)


def log_handler_class():
    """The `logging.Handler` that writes LOG frames; made late, because logging is slow to
    import."""
    global _log_handler_class
    if _log_handler_class is None:
        import logging

        class LogHandler(logging.Handler):
            def __init__(self, worker):
                super().__init__()
                self.worker = worker
                self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

            def emit(self, record):
                try:
                    level = min(4, max(1, record.levelno // 10))
                    stream = self.worker.current_stream()
                    for line in self.format(record).split("\n"):
                        self.worker.log(LOGGED, level, line, stream)
                except Exception:
                    self.handleError(record)

        _log_handler_class = LogHandler
    return _log_handler_class
