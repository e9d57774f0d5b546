"""Copies of a worker that has loaded its function. The worker loads this file if loading took long, or
if LOAD says that the worker is a seed.

A seed serves no calls. It waits for orders of the node on its channel. Each order makes a copy, which
serves as if it had loaded the function itself:

    seed       forks, and waits for the next order
    carrier    enters the control groups of the copy, forks again and ends, so that pid 1 becomes the
               parent of the copy
    copy       says that it is up, and becomes a worker with a connection of its own

The node has made the root of the copy the root of the seed before it sends the order, see
`crates/engine/sandbox/src/seed.rs`. Other forks of the function behave as in any worker.
"""

import _signal
import _socket
import os
import sys
import time

FDS_MAX = 16
CHANNEL_FD = 3
SOL_SOCKET, SCM_RIGHTS = 1, 1
FORKED_SECONDS_MAX = 1
# Reading them gives every process something else, or nothing.
STATELESS = frozenset(("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"))


class Nowhere:
    """The connection of a waiting seed: it has no node to which it could send frames."""

    def sendall(self, data):
        pass


def obstacle(worker):
    """Why no copies of this worker can be made; empty if they can be made."""
    try:
        return found_obstacle(worker)
    except Exception as error:  # the function itself has loaded, and works without copies
        return "nothing is known about copies: %s" % error


def found_obstacle(worker):
    """What stands in the way of copies.

    A copy must not share anything with another copy but memory that each of them changes for itself.
    """
    if not hasattr(os, "pidfd_open"):
        return "this Python lacks os.pidfd_open"
    threads = threads_at_fork()
    if threads > 1:
        return "%d threads run after loading" % threads
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "a program that was started while loading still runs"
    except ChildProcessError:
        pass
    if has_timer():
        return "a timer was set while loading"
    if os.listdir("/tmp"):
        return "there are files in /tmp after loading"
    own = own_descriptors(worker.loop)
    if own is None:
        return "the event loop is not the one of asyncio"
    for fd, target in descriptors():
        if fd in own or target in STATELESS:
            continue
        if not target.startswith("/") or target.startswith("/dev/"):
            return "%s is open after loading" % target.partition(":")[0]
        if flags_of(fd) & os.O_ACCMODE != os.O_RDONLY:
            return "%s is open for writing after loading" % target
    with open("/proc/self/maps") as maps:
        for line in maps:
            rights = line.split(None, 2)[1]
            if rights[1] == "w" and rights[3] == "s":
                return "memory was made while loading that all copies would share"
    return ""


def has_timer():
    """Whether a timer of the process is set. A fork has none."""
    for which in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
        # Sandboxes permit setitimer(2), which also tells, and not getitimer(2).
        left = _signal.setitimer(which, 0)
        if left[0]:
            _signal.setitimer(which, *left)
            return True
    try:
        with open("/proc/self/timers") as timers:
            return bool(timers.read())
    except FileNotFoundError:
        return False  # this kernel does not show them


def threads_at_fork():
    """How many threads there are after a fork has ended those that end for it: OpenBLAS, which numpy
    uses, ends its threads and starts them again later."""
    count = len(os.listdir("/proc/self/task"))
    if count == 1:
        return count
    with open("/proc/self/maps") as maps:
        if not any("openblas" in line for line in maps):
            return count
    child = os.fork()
    if child == 0:
        os._exit(0)
    until = time.monotonic() + FORKED_SECONDS_MAX
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, _signal.SIGKILL)
        os.sched_yield()
    return len(os.listdir("/proc/self/task"))


def descriptors():
    """(number, what it leads to) of the open files, without those that every worker has."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink("/proc/self/fd/" + name)))
        except FileNotFoundError:
            pass  # the descriptor with which the list was read
    return [(fd, target) for fd, target in found if fd > CHANNEL_FD]


def flags_of(fd):
    with open("/proc/self/fdinfo/%d" % fd) as info:
        return next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))


def own_descriptors(loop):
    """The descriptors of the event loop, which `renew_loop` replaces; None if it could not."""
    if loop is None:
        return ()
    try:
        return (loop._selector.fileno(), loop._ssock.fileno(), loop._csock.fileno())
    except AttributeError:
        return None


def renew_loop(loop):
    """Gives the event loop descriptors of its own. It stays the same object, because what the function
    has made while loading may refer to it."""
    loop._selector.close()
    loop._selector = type(loop._selector)()
    for end in (loop._ssock, loop._csock):
        end.close()
    loop._internal_fds -= 1
    loop._make_self_pipe()


def reopen(fd):
    """Opens a file again: a copy must not move the position at which another one reads."""
    position = os.lseek(fd, 0, os.SEEK_CUR)
    again = os.open("/proc/self/fd/%d" % fd, os.O_RDONLY)
    os.lseek(again, position, os.SEEK_SET)
    os.dup2(again, fd, os.get_inheritable(fd))
    os.close(again)


class Copies:
    """What the copies of a worker need to know. Make this before READY: from then on, the node changes
    the root and the working folder of this process."""

    def __init__(self, worker):
        self.worker = worker
        self.files = [fd for fd, target in descriptors() if target.startswith("/") and target not in STATELESS]
        self.folder = os.getcwd()

    def make(self):
        """Makes copies until the node closes the channel. Returns only in a copy."""
        worker = self.worker
        orders, worker.sock, worker.copying = worker.sock, Nowhere(), True
        while True:
            order, ancillary, _, _ = orders.recvmsg(1, _socket.CMSG_SPACE(4 * FDS_MAX), _socket.MSG_CMSG_CLOEXEC)
            if not order:
                os._exit(0)
            fds = [
                int.from_bytes(piece[at : at + 4], sys.byteorder)
                for _, _, piece in ancillary
                for at in range(0, len(piece), 4)
            ]
            try:
                carrier = os.fork()
            except OSError as error:
                orders.send(str(error).encode())
            else:
                if carrier == 0:
                    break
                os.waitpid(carrier, 0)
            for fd in fds:
                os.close(fd)
        try:
            become_copy(worker, fds)
            os.chdir(self.folder)
            for fd in self.files:
                reopen(fd)
            if worker.loop is not None:
                renew_loop(worker.loop)
            announce(orders)
        except BaseException as error:
            orders.send(("%s: %s" % (type(error).__name__, error)).encode()[:200])
            os._exit(1)
        orders.detach()
        os.dup2(worker.sock.detach(), CHANNEL_FD, False)
        os.close(fds[0])
        worker.sock = _socket.socket(fileno=CHANNEL_FD)
        worker.copying = False


def become_copy(worker, fds):
    """Turns the carrier into the copy. Lines that are printed meanwhile are already the copy's."""
    channel, output, *groups = fds
    worker.sock = _socket.socket(fileno=channel)
    for group in groups:
        os.write(group, b"0")
        os.close(group)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)


def announce(orders):
    own = os.pidfd_open(os.getpid())
    orders.sendmsg([b"%d" % os.getpid()], [(SOL_SOCKET, SCM_RIGHTS, own.to_bytes(4, sys.byteorder))])
    os.close(own)
