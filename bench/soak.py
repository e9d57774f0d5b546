"""Sends mixed calls to one node for a while, records what its daemon and helper use, and prints the
slope of each value. Usage: soak.py BINARY MINUTES RESULT.json; standard library only.

The calls: short and long answers, bodies of three sizes, errors, refusals, a deploy every minute,
idle pauses long enough for scale to zero. Everything is on loopback and one call at a time.
"""

import http.client
import json
import pathlib
import shutil
import sys
import tempfile
import time

from footprint import Node, commit, machine

SAMPLE_SECONDS = 5
WARM_UP_SHARE = 0.2  # of the run; what a node allocates once is not a slope
RSS_KIB_PER_MINUTE_BAR = 1.0
FUNCTION = """
def handle(event, ctx):
    if event.path == "/fail":
        raise ValueError("on purpose")
    if event.path == "/long":
        return (b"x" * 4096 for _ in range(64))
    print("called")
    return event.body
"""
MANIFEST = 'version = 1\nruntime = "python"\nentry = "app:handle"\n[limits]\nbody = "1MiB"\n[scale]\nidle = "%s"\n'
CALLS = [
    ("GET", "", b"", 200), ("POST", "", b"small", 200), ("POST", "", b"x" * (60 << 10), 200),
    ("POST", "", b"x" * (900 << 10), 200), ("GET", "/long", b"", 200), ("GET", "/fail", b"", 500),
    ("POST", "", b"x" * (1100 << 10), 413),
]


def deploy(node, folder, name, idle):
    source = folder / name
    source.mkdir(exist_ok=True)
    (source / "app.py").write_text(FUNCTION)
    (source / "mote.toml").write_text(MANIFEST % idle)
    node.mote("deploy", source)


def call(port, path, method, body):
    # A fresh connection per call: refusals may close it, and accepting is part of what may leak.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def slope_per_minute(samples, pick):
    """Least squares over (seconds, value)."""
    points = [(sample["seconds"] / 60, pick(sample)) for sample in samples]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def run(node, folder, minutes):
    deploy(node, folder, "steady", "5m")
    deploy(node, folder, "fleeting", "50ms")
    samples, calls, wrong = [], 0, []
    started, next_sample, next_deploy = time.monotonic(), 0.0, 60.0
    while (now := time.monotonic() - started) < minutes * 60:
        for name in ("steady", "fleeting"):
            for method, path, body, expected in CALLS:
                calls += 1
                try:
                    status = call(node.http, "/" + name + path, method, body)
                except (OSError, http.client.HTTPException) as error:
                    status = repr(error)
                if status != expected and not (expected == 413 and isinstance(status, str)):
                    # A refused upload may end in a reset before the answer is read.
                    wrong.append((method, path, len(body), status))
        if now >= next_deploy:
            deploy(node, folder, "steady", "5m")
            next_deploy += 60
        if now >= next_sample:
            samples.append({"seconds": round(now, 1), "calls": calls, **node.usage()})
            next_sample += SAMPLE_SECONDS
        time.sleep(0.1)  # long enough for `fleeting` to go to zero
    return samples, calls, wrong


def main():
    binary, minutes, target = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mote-soak"))
    folder.chmod(0o755)
    try:
        node = Node(binary, folder)
        samples, calls, wrong = run(node, folder, minutes)
        node.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    late = [sample for sample in samples if sample["seconds"] >= minutes * 60 * WARM_UP_SHARE]
    result = {"commit": commit(), "machine": machine(), "minutes": minutes, "calls": calls,
              "wrong": wrong[:100], "samples": samples}
    pathlib.Path(target).write_text(json.dumps(result, indent=1) + "\n")
    print("%d calls in %g minutes, %d with another status than expected" % (calls, minutes, len(wrong)))
    for method, path, size, status in wrong[:5]:
        print("  %s %s with %d bytes: %s" % (method, path or "/", size, status))
    print("{:<24}{:>10}{:>10}{:>16}".format("", "first", "last", "slope a minute"))
    grows = False
    for process in ("daemon", "helper"):
        for what, factor, unit in (("rss_mib", 1024, "KiB"), ("fds", 1, ""), ("threads", 1, "")):
            values = [sample[process][what] for sample in late]
            slope = slope_per_minute(late, lambda sample: sample[process][what]) * factor
            verdict = ""
            if what == "rss_mib" and slope >= RSS_KIB_PER_MINUTE_BAR:
                verdict, grows = "MISSED (bar %g)" % RSS_KIB_PER_MINUTE_BAR, True
            elif what == "rss_mib":
                verdict = "OK"
            print("{:<24}{:>10}{:>10}{:>12.2f} {:<4}{}".format(process + " " + what, values[0], values[-1], slope, unit, verdict))
    print("written to " + target)
    return 1 if wrong or grows else 0


if __name__ == "__main__":
    sys.exit(main())
