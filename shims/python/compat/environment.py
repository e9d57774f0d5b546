"""Environment variables that differ from call to call and that few functions read.

Setting a variable costs a microsecond in every call. `LateVariables` sets them when they are read
through `os.environ`, or when a program is about to inherit them.
"""

import os
import sys

# The audit events that Python raises before another program gets this process's environment.
STARTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"))


class LateVariables:
    """`names` in `os.environ`, with the values that `make(event)` returns as a dict.

    The adapter sets `event` before each call of the function, which is the whole cost of a call that
    reads none of them. There is one such object in a process, and it stays. `os.environ` remains the
    same object, because other modules hold it: only its class changes, which Python allows between
    classes of the same layout.
    """

    __slots__ = ("event", "make")

    def __init__(self, names, make):
        self.event, self.make = None, make
        environ, late, usual = os.environ, self, type(os.environ)

        class Environ(usual):
            def __getitem__(self, name):
                if name in names:
                    late.settle()
                return usual.__getitem__(self, name)

        for name in names:
            environ[name] = ""
        environ.__class__ = Environ
        sys.addaudithook(lambda event, _: event in STARTS and self.settle())

    def settle(self):
        """Sets the variables of the running call, once for each call."""
        if self.event:
            event, self.event = self.event, None
            os.environ.update(self.make(event))
