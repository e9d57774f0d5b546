"""Compares `mote bench` with wrk, hey and libcoap's client: the same function, in alternation.

Usage: check.py MOTE [SECONDS] [ROUNDS] [CLIENTS]. Prints medians of rates and percentiles and their
ratio to ours, without a verdict. wrk and hey count latencies from the sending of a request, and
`mote bench` counts from when its client was free, which in a closed loop is the same moment.

For every latency above the mean interval of a client, wrk adds the shorter latencies of the
requests that the client would have made meanwhile (`stats_correct`), so its p99 is not what it
measured. The row "by wrk's rule" does the same to our measurements.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run(*command, env=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


class Node:
    """A node with one function, ended by its process id."""

    def __init__(self, mote, folder):
        self.mote, self.http, self.coap = mote, free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)
        self.env = {**os.environ, "MOTE_SOCKET": f"{folder}/s"}
        os.chmod(folder, 0o755)
        self.process = subprocess.Popen(
            [mote, "up", "--data", f"{folder}/data", "--socket", f"{folder}/s",
             "--http", f"127.0.0.1:{self.http}", "--coap", f"127.0.0.1:{self.coap}"],
            stdout=subprocess.DEVNULL, stderr=open(f"{folder}/log", "w"))
        until = time.monotonic() + 30
        while subprocess.run([mote, "list"], env=self.env, capture_output=True).returncode:
            if time.monotonic() > until or self.process.poll() is not None:
                sys.exit("the node did not start")
            time.sleep(0.05)
        run(mote, "deploy", str(ROOT / "examples/hello-node"), env=self.env)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def by_mote(node, url, seconds, clients):
    report = json.loads(run(node.mote, "bench", url, "-c", str(clients), "--duration", f"{seconds}s",
                            "--warmup", "0s", "-o", "json"))
    if report["failed"]:
        sys.exit(f"mote bench: {report['failures']}")
    latency = report["latency"]
    cpu = report["generator"]["cpu_us_per_operation"]
    by_rule = [corrected(report, clients, share) for share in (0.5, 0.99)]
    return report["answered_per_s"], latency["p50_ms"], latency["p99_ms"], cpu, *by_rule


def corrected(report, clients, share):
    """A percentile in ms after wrk's correction of the closed loop."""
    interval = report["elapsed_s"] * 1e9 * clients / report["answered"]
    counts = []
    for nanos, count in report["histogram"]:
        counts.append((nanos, count))
        nanos -= interval
        while nanos > interval:
            counts.append((nanos, count))
            nanos -= interval
    counts.sort()
    rank = share * sum(count for _, count in counts)
    for nanos, count in counts:
        rank -= count
        if rank <= 0:
            return nanos / 1e6


def cpu_of_children():
    times = os.times()
    return times.children_user + times.children_system


def by_wrk(node, url, seconds, clients):
    before = cpu_of_children()
    text = run("wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--latency", url)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
    at = lambda share: milliseconds(re.search(rf"\s{share}%\s+(\S+)", text)[1])
    return rate, at(50), at(99), (cpu_of_children() - before) * 1e6 / (rate * seconds)


def by_hey(node, url, seconds, clients):
    before = cpu_of_children()
    text = run("hey", "-c", str(clients), "-z", f"{seconds}s", url)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
    at = lambda share: float(re.search(rf"{share}%+ in ([\d.]+) secs", text)[1]) * 1000
    return rate, at(50), at(99), (cpu_of_children() - before) * 1e6 / (rate * seconds)


def compare(node, tools, seconds, rounds, clients):
    url = f"http://127.0.0.1:{node.http}/hello-node"
    rows = {name: [] for name in tools}
    by_mote(node, url, 1, clients)
    for _ in range(rounds):
        for name, tool in tools.items():
            rows[name].append(tool(node, url, seconds, clients))
    medians = {name: [statistics.median(column) for column in zip(*row)] for name, row in rows.items()}
    print(f"{'HTTP, ' + str(clients) + ' clients':<20}{'per second':>12}{'p50 ms':>10}{'p99 ms':>10}{'CPU us':>8}   ratio of rate, p50, p99 to ours")
    ours, by_rule = medians["mote bench"], "  by wrk's rule"
    for name, row in medians.items():
        ratios = "  ".join(f"{theirs / own:.2f}" for theirs, own in zip(row[:3], ours))
        print(f"{name:<20}{row[0]:>12.0f}{row[1]:>10.3f}{row[2]:>10.3f}{row[3]:>8.1f}   {ratios}")
        if name == "mote bench":
            print(f"{by_rule:<20}{'':>12}{row[4]:>10.3f}{row[5]:>10.3f}")


def coap(node, client):
    url = f"coap://127.0.0.1:{node.coap}/hello-node"
    started = time.perf_counter()
    count = 50
    for _ in range(count):
        if run(client, "-m", "get", "-B", "10", url).strip() != "mote":
            sys.exit("libcoap's client got another answer")
    theirs = (time.perf_counter() - started) * 1000 / count
    report = json.loads(run(node.mote, "bench", url, "-c", "1", "-n", str(count), "-o", "json"))
    if report["answered"] != count:
        sys.exit(f"mote bench: {report['failures']}")
    print(f"CoAP, one at a time: {count} of {count} answered to libcoap's client ({theirs:.2f} ms each,"
          f" its start included) and to mote bench (p50 {report['latency']['p50_ms']:.3f} ms)")


def main(mote, seconds=5, rounds=3, clients=64):
    tools = {"mote bench": by_mote}
    for name, tool in [("wrk", by_wrk), ("hey", by_hey)]:
        if shutil.which(name):
            tools[name] = tool
        else:
            print(f"SKIPPED: {name} is not installed")
    with tempfile.TemporaryDirectory(prefix="mote-check") as folder:
        node = Node(os.path.abspath(mote), folder)
        try:
            for count in sorted({1, int(clients)}):
                compare(node, tools, int(seconds), int(rounds), count)
            names = ["coap-client", "coap-client-notls", "coap-client-openssl", "coap-client-gnutls"]
            client = next(filter(shutil.which, names), None)
            coap(node, client) if client else print("SKIPPED: libcoap's client is not installed")
        finally:
            node.stop()


main(*sys.argv[1:])
