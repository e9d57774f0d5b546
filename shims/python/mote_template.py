"""The template: an interpreter that has loaded the shim and runs no function. Each order from the
node makes a copy of it, which becomes the program of one sandbox.

The node has set up the sandbox before it sends the order: its namespaces, control groups, root and
pid 1. The copy enters them, and then gives up what it may not keep, in the order of the steps in
`crates/engine/sandbox/src/child.rs`. Until then it has privileges, so nothing of a function is read
before `enter` returns.

    template   forks into the sandbox's process id namespace, and waits for the next order
    carrier    pid 2 of the sandbox. It enters the control groups and the other namespaces, forks
               again and ends, so that pid 1 becomes the parent of the copy
    copy       pid 3 of the sandbox, which becomes its program
"""

import _signal
import _socket
import ctypes
import gc
import json
import os
import sys

EINVAL = 22
ORDER_BYTES_MAX = 64 << 10
FDS_MAX = 64
CHANNEL_FD = 3
CODE_DIR = "/function"
REHEARSAL = "mote_rehearsal"
PROCESS_NAMESPACE = 0x20000000
# From <linux/prctl.h>, <linux/securebits.h> and <linux/capability.h>.
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 4, 22, 24, 28
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION = 0x20080522
# These two calls have the same number on every processor.
CLOSE_RANGE, LANDLOCK_RESTRICT_SELF = 436, 446

libc = ctypes.CDLL(None, use_errno=True)
# Forks without the functions that Python calls in a new child. They write to many pages, and the
# carrier needs none of them.
fork = ctypes.PyDLL(None, use_errno=True).fork
libc.syscall.restype = ctypes.c_long
libc.syscall.argtypes = [ctypes.c_long] * 4
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
prlimit = libc.prlimit64 if hasattr(libc, "prlimit64") else libc.prlimit  # musl has one for both


# Types are made here, because making one in each copy takes as long as the calls that need it.
Limit = ctypes.c_uint64 * 2
CapabilityHeader = ctypes.c_uint32 * 2
Capabilities = ctypes.c_uint32 * 6


class Program(ctypes.Structure):
    """A filter of system calls, as the kernel reads it."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def prctl(option, *values):
    checked(libc.prctl(option, *values, *[0] * (4 - len(values))))


def received(sock):
    """The next message and its descriptors."""
    data, ancillary, _, _ = sock.recvmsg(ORDER_BYTES_MAX, _socket.CMSG_SPACE(4 * FDS_MAX))
    fds = [int.from_bytes(piece[at : at + 4], "little") for _, _, piece in ancillary for at in range(0, len(piece), 4)]
    return data, fds


def serve(orders):
    """Makes copies until the node closes its end. Returns only in a copy, with its channel."""
    filter_of_calls, _ = received(orders)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # the kernel collects the carriers
    rehearse()
    gc.collect()
    gc.freeze()  # a collection in a copy would write to every page that it shares with the template
    if os.path.isdir(CODE_DIR):
        # A finder for folders. Each copy would otherwise first try to read it as an archive. The
        # finder has not read the folder, which is still empty here.
        sys.path_importer_cache[CODE_DIR] = sys.path_hooks[-1](CODE_DIR)
    own = os.pidfd_open(os.getpid())
    orders.send(b"up")
    while True:
        data, fds = received(orders)
        if not data:
            os._exit(0)
        order = json.loads(data)
        init, _, output, *others = fds
        try:
            processes = others[order["groups"]]
            checked(libc.setns(processes, PROCESS_NAMESPACE))  # of the processes that this one forks
            if checked(fork()) == 0:
                break
        except OSError as error:
            give_up(init, output, error)
        checked(libc.setns(own, PROCESS_NAMESPACE))
        for fd in fds:
            os.close(fd)
    become(order, fds, filter_of_calls)
    orders.detach()
    rehearse()
    return CHANNEL_FD


def rehearse():
    """Imports a module from its source, as the load of a function does. In a copy, the first load
    writes to many pages that are still shared with the template. Nobody waits for a copy that is
    prewarmed, but a caller waits for the load."""
    folder = os.path.dirname(__file__)
    found = sys.path_hooks[-1](folder).find_spec(REHEARSAL)
    source = found.loader.get_data(found.loader.path)
    module = type(sys)(REHEARSAL)
    exec(found.loader.source_to_code(source, found.loader.path), module.__dict__)
    module.handle(None, None)


def become(order, fds, filter_of_calls):
    """Turns the carrier into the program of a sandbox."""
    init, channel, output, *others = fds
    rules = others.pop() if order["landlock"] else None
    groups, namespaces = others[: order["groups"]], others[order["groups"] + 1 :]
    try:
        for group in groups:
            os.write(group, b"0")
        for namespace in namespaces:
            checked(libc.setns(namespace, 0))
        if os.fork():
            os._exit(0)
    except BaseException as error:
        give_up(init, output, error)
        os._exit(125)
    try:
        enter(order, channel, output, rules, filter_of_calls)
    except BaseException as error:
        give_up(init, output, error)
        os._exit(125)


def give_up(init, output, error):
    """Writes to the log of the instance why there is no program, and ends its pid 1, which would
    wait for it."""
    try:
        os.set_blocking(output, False)
        os.write(output, f"mote: cannot enter the sandbox: {error}\n".encode())
        _signal.pidfd_send_signal(init, _signal.SIGKILL)
    except OSError:
        pass  # the instance has ended already


def enter(order, channel, output, rules, filter_of_calls):
    """Takes the descriptors of the sandbox, and gives up all privileges."""
    os.setsid()
    os.umask(0o022)
    null = os.open("/dev/null", os.O_RDONLY)
    # All these numbers are above 3, because the template has 0 to 3 open.
    for fd, number in ((null, 0), (output, 1), (output, 2), (channel, CHANNEL_FD)):
        os.dup2(fd, number)
    os.chdir(order["work_dir"])
    for resource, soft, hard in order["limits"]:
        checked(prlimit(0, resource, Limit(soft, hard), None))
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() == EINVAL:
                break  # past the last one that the kernel knows
            checked(-1)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    # From here on, a change of the user keeps the capabilities that the next steps need.
    prctl(PR_SET_SECUREBITS, order["secure_bits"])
    user, group = order["ids"]
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if rules is not None:
        checked(libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0, 0))
    checked(libc.syscall(CLOSE_RANGE, CHANNEL_FD + 1, 0xFFFFFFFF, 0))
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    # The change of the user has removed this. Every executed program has it, and a program without
    # it cannot open its own files in /proc.
    prctl(PR_SET_DUMPABLE, 1)
    program = Program(len(filter_of_calls) // 8, filter_of_calls)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))
    checked(libc.capset(CapabilityHeader(CAPABILITY_VERSION, 0), Capabilities()))
