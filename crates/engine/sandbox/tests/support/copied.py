"""A program that can be a template or a seed. Says its process id on descriptor 3, waits for a line, and then
prints what it inherited, or executes the program that the line names."""

import os
import resource
import signal
import sys

sys.path.insert(0, "/mote")
import _socket

orders = _socket.socket(fileno=3)
if orders.type == 5:
    import mote_template

    mote_template.serve(orders)
elif os.path.isdir("/.copies/0"):  # only the sandbox of a seed has roots for copies
    import mote_seed

    class Worker:
        sock, copying, loop = orders, False, None

    copies = mote_seed.Copies(Worker)
    orders.send(b"loaded\n")
    copies.make()
    Worker.sock.detach()
else:
    orders.detach()


def inherited():
    keys = "Uid Gid Groups Umask NoNewPrivs Seccomp Seccomp_filters SigBlk SigIgn SigCgt Speculation_Store_Bypass"
    wanted = [*keys.split(), "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
    for line in open("/proc/self/status"):
        if line.partition(":")[0] in wanted:
            yield line.strip()
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            yield f"{name} {resource.getrlimit(getattr(resource, name))}"
    for kind in sorted(os.listdir("/proc/self/ns")):
        yield f"{kind} {os.readlink('/proc/self/ns/' + kind) == os.environ['HOST_' + kind.upper()]}"
    with os.scandir("/proc/self/fd") as found:
        fds = sorted(int(entry.name) for entry in found)
    for fd in fds[:-1]:  # the last one is the folder itself
        # The number of a pipe or socket differs.
        yield f"{fd} {os.readlink(f'/proc/self/fd/{fd}').partition(':')[0]}"
    for path in ("oom_score_adj", "comm", "cmdline", "cgroup", "loginuid", "timerslack_ns", "personality"):
        try:
            yield f"{path} {open('/proc/self/' + path).read()!r}"
        except OSError as error:
            yield f"{path} {error.errno}"
    yield f"mounts {[line.split()[3:6] for line in open('/proc/self/mountinfo')]}"
    yield f"owner {os.stat('/proc/self/fd').st_uid}"
    yield f"group {os.getpgid(0) == os.getpid()} parent {os.getppid()} nice {os.getpriority(0, 0)}"
    yield f"folder {os.getcwd()} {sorted(os.listdir('/'))} {sorted(os.listdir('/proc/self/task')) == [str(os.getpid())]}"
    yield f"python {sys.argv} {sys.flags} {sys.executable} {dict(os.environ)}"
    yield f"signals {[signal.getsignal(number) for number in range(1, 32)]}"


os.write(3, b"up %d\n" % os.getpid())
word = os.read(3, 100).decode().split()
if word[0] == "exec":
    os.set_inheritable(3, True)
    os.chdir("/function")
    os.execv(word[1], word[1:])
for fact in inherited():
    print(fact, flush=True)
