"""Measures what an idle node costs. Usage: footprint.py BINARY RESULT.json; standard library only.

The bars are those of SPECIFICATION.md. RSS is VmRSS from /proc: pages shared by daemon and helper
count in both, so the sum is an upper bound. Pss, if the kernel reports it, divides shared pages
fairly.
"""

import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

RSS_MIB_BAR = 15.0
ADDED_MIB_BAR = 10.0  # by all FUNCTIONS together
BINARY_MB_BAR = 18.0
STARTS = 5
FUNCTIONS = 1000
READY_SECONDS_MAX = 30
SETTLE_SECONDS = 3  # until buffers of the start are given back
FUNCTION = "def handle(event, ctx):\n    return 'ok'\n"
MANIFEST = 'version = 1\nruntime = "python"\nentry = "app:handle"\n[scale]\nidle = "100ms"\n'


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Node:
    """A running node on a folder; `ready_ms` is the time from exec to its announcement."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.env = dict(os.environ, MOTE_SOCKET=str(folder / "s"))
        self.env.pop("MOTE_NODE", None)
        self.http = free_port(socket.SOCK_STREAM)
        started = time.perf_counter()
        self.child = subprocess.Popen(
            [binary, "up", "--data", folder / "data", "--socket", folder / "s",
             "--http", "127.0.0.1:%d" % self.http,
             "--coap", "127.0.0.1:%d" % free_port(socket.SOCK_DGRAM)],
            stdout=subprocess.PIPE, stderr=open(folder / "log", "a"), text=True)
        self.announcement = self.child.stdout.readline()
        self.ready_ms = (time.perf_counter() - started) * 1000
        if " is ready in " not in self.announcement:
            sys.exit("the node did not start:\n" + (folder / "log").read_text())

    def mote(self, *args):
        return subprocess.run([self.binary, *map(str, args)], env=self.env, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout

    def processes(self):
        """(daemon, helper): the helper is the daemon's child of the same program."""
        pid = self.child.pid
        for task in pathlib.Path("/proc/%d/task" % pid).iterdir():
            for child in (task / "children").read_text().split():
                if os.readlink("/proc/%s/exe" % child) == os.readlink("/proc/%d/exe" % pid):
                    return pid, int(child)
        return pid, None

    def usage(self):
        daemon, helper = self.processes()
        return {"daemon": process_usage(daemon), "helper": process_usage(helper) if helper else None}

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(timeout=40)
        self.child.stdout.close()


def process_usage(pid):
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/%d/status" % pid).read_text().splitlines())
    usage = {
        "rss_mib": round(int(status["VmRSS"].split()[0]) / 1024, 2),
        "rss_anon_mib": round(int(status["RssAnon"].split()[0]) / 1024, 2),
        "threads": int(status["Threads"]),
        "fds": len(os.listdir("/proc/%d/fd" % pid)),
    }
    try:
        rollup = pathlib.Path("/proc/%d/smaps_rollup" % pid).read_text()
        pss = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
        usage["pss_mib"] = round(int(pss.split()[1]) / 1024, 2)
    except (OSError, StopIteration):
        pass
    return usage


def stripped_bytes(binary, folder):
    copy = folder / "stripped"
    shutil.copy(binary, copy)
    if shutil.which("strip"):
        subprocess.run(["strip", copy], check=True)
    return copy.stat().st_size


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "")
    memory = next(line for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "memory_mib": int(memory.split()[1]) // 1024,
        "load_1min": os.getloadavg()[0],
    }


def commit():
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return found.stdout.strip() or None


def wait_until_idle(node):
    """Waits until no instance that the deploys started is left."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        functions = json.loads(node.mote("list", "-o", "json"))["functions"]
        if not any(function["instances"] for function in functions):
            return
        time.sleep(0.2)
    sys.exit("instances did not stop")


def measure(binary, folder):
    starts = []
    for _ in range(STARTS):
        node = Node(binary, folder)
        starts.append(node.ready_ms)
        node.stop()
    node = Node(binary, folder)
    time.sleep(SETTLE_SECONDS)
    alone = node.usage()
    source = folder / "function"
    source.mkdir()
    (source / "app.py").write_text(FUNCTION)
    (source / "mote.toml").write_text(MANIFEST)
    for number in range(FUNCTIONS):
        node.mote("deploy", source, "--name", "idle-%d" % number)
    wait_until_idle(node)
    time.sleep(SETTLE_SECONDS)
    after_deploys = node.usage()
    node.stop()
    node = Node(binary, folder)
    time.sleep(SETTLE_SECONDS)
    restarted, restarted_ms = node.usage(), node.ready_ms
    node.stop()
    added = lambda usage: round(usage["daemon"]["rss_mib"] - alone["daemon"]["rss_mib"], 2)
    return {
        "added_mib_after_deploying": added(after_deploys),
        "added_mib_after_restart": added(restarted),
        "binary_bytes": os.path.getsize(binary),
        "binary_stripped_bytes": stripped_bytes(binary, folder),
        "ready_ms": [round(one, 1) for one in starts],
        "ready_ms_median": round(statistics.median(starts), 1),
        "idle": alone,
        "functions": FUNCTIONS,
        "idle_after_deploying_functions": after_deploys,
        "idle_with_functions_after_restart": restarted,
        "ready_ms_with_functions": round(restarted_ms, 1),
    }


def show(result):
    """Prints the result. Returns the names of rows whose bar was missed."""
    missed = []

    def row(name, value, unit, bar=None):
        verdict = "" if bar is None else "bar %g: %s" % (bar, "OK" if value < bar else "MISSED")
        if bar is not None and value >= bar:
            missed.append(name)
        print("{:<46}{:>9.2f} {:<8}{}".format(name, value, unit, verdict))

    def memory(name, usage, bar=None):
        daemon, helper = usage["daemon"], usage["helper"] or {"rss_mib": 0, "pss_mib": 0}
        row(name + ": daemon RSS", daemon["rss_mib"], "MiB", bar)
        row(name + ": helper RSS", helper["rss_mib"], "MiB")
        if "pss_mib" in daemon and "pss_mib" in helper:
            row(name + ": both, Pss", daemon["pss_mib"] + helper["pss_mib"], "MiB")
        row(name + ": threads of the daemon", daemon["threads"], "")

    row("binary, stripped", result["binary_stripped_bytes"] / 1e6, "MB", BINARY_MB_BAR)
    row("start to ready, median of %d" % STARTS, result["ready_ms_median"], "ms")
    memory("idle", result["idle"], RSS_MIB_BAR)
    memory("%d functions, just deployed" % FUNCTIONS, result["idle_after_deploying_functions"])
    memory("%d functions, restarted" % FUNCTIONS, result["idle_with_functions_after_restart"])
    row("%d functions: added by deploying them" % FUNCTIONS, result["added_mib_after_deploying"], "MiB", ADDED_MIB_BAR)
    row("%d functions: added, restarted" % FUNCTIONS, result["added_mib_after_restart"], "MiB", ADDED_MIB_BAR)
    row("start to ready with %d functions" % FUNCTIONS, result["ready_ms_with_functions"], "ms")
    return missed


def main():
    binary, target = sys.argv[1:]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mote-bench"))
    folder.chmod(0o755)
    try:
        result = measure(binary, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {"commit": commit(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine(), **result}
    pathlib.Path(target).write_text(json.dumps(result, indent=1) + "\n")
    print("{cpu}, {cores} cores, {memory_mib} MiB, Linux {kernel}, load {load_1min:.1f}".format(**result["machine"]))
    missed = show(result)
    print("written to " + target)
    if missed:
        sys.exit("missed: " + ", ".join(missed))


if __name__ == "__main__":
    main()
