"""What leaves a site: readings sent to a distant server, or reduced by a function on the node.

Sensors send readings of 46 bytes. The distant server is in another network namespace, behind a
cable (veth) that counts every packet and stands for the uplink. Three arrangements take turns:

- each reading goes to the distant server, over a new connection or over one that stays open;
- each reading goes to a function on the node, which sends one summary of every 60 to the server.

Then the cable is unplugged, and all readings must still be answered by the node.

Usage: python3 bench/uplink.py [--readings N] [--rounds N] [--no-save]
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import ROOT, Node  # noqa: E402

from wire import (  # noqa: E402
    CABLE,
    CLIENT,
    READING,
    SETTLE_S,
    Traffic,
    cable,
    enter_own_network,
)

PORT = 8100
EVERY = 60  # readings in one summary
MANIFEST = f"""version = 1
name = "meter"
runtime = "python"

[scale]
start = "always"
max = 1

[allow]
net = ["{CLIENT}:{PORT}"]
"""
CODE = f"""import http.client, json

readings = []

def handle(event, ctx):
    reading = json.loads(event.body)
    readings.append(reading["celsius"])
    if len(readings) >= {EVERY}:
        summary = {{"sensor": reading["sensor"], "count": len(readings), "min": min(readings),
                   "max": max(readings), "mean": sum(readings) / len(readings)}}
        readings.clear()
        try:
            server = http.client.HTTPConnection("{CLIENT}", {PORT}, timeout=1)
            server.request("POST", "/", json.dumps(summary))
            server.getresponse().read()
            server.close()
        except OSError as error:
            print(f"the summary could not be sent: {{error}}")
    return {{"kept": len(readings)}}
"""
SERVER = f"""
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("{CLIENT}", {PORT}), Answer)
print("ready", flush=True)
server.serve_forever()
"""


def send(host: str, port: int, path: str, readings: int, *, kept: bool) -> None:
    """Sends readings, and fails if one is not answered."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    for _ in range(readings):
        connection.request("POST", path, READING, {"content-type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{host}:{port}{path} answered {answer.status}: {body[:200]!r}")
        if not kept:
            connection.close()
    connection.close()


def counted(readings: int, host: str, port: int, path: str, *, kept: bool) -> Traffic:
    before = Traffic.now()
    send(host, port, path, readings, kept=kept)
    # A measurement's pause, not a wait: until what follows the last answer has been sent.
    time.sleep(SETTLE_S)
    return Traffic.now() - before


def measure(readings: int, rounds: int, beyond: int) -> dict:
    command = ["nsenter", "-t", str(beyond), "-n", "--", sys.executable, "-c", SERVER]
    ways = {
        "each reading, new connections": (CLIENT, PORT, "/", False),
        "each reading, one connection": (CLIENT, PORT, "/", True),
        "summaries by a function on the node": None,
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, Node() as node:
        try:
            server.stdout.readline()
            function = node.folder / "meter"
            function.mkdir()
            (function / "mote.toml").write_text(MANIFEST)
            (function / "app.py").write_text(CODE)
            node.deploy(function)
            here = ("127.0.0.1", node.http, "/meter", True)
            found: dict[str, list[Traffic]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, to in ways.items():
                    host, port, path, kept = to or here
                    found[name].append(counted(readings, host, port, path, kept=kept))
            rows = [
                {
                    "way": name,
                    "bytes_per_reading":
                        statistics.median(each.bytes for each in counts) / readings,
                    "packets_per_reading":
                        statistics.median(each.packets for each in counts) / readings,
                }
                for name, counts in found.items()
            ]
            subprocess.run(["ip", "link", "set", "dev", CABLE, "down"], check=True)
            before = Traffic.now()
            send(*here[:3], readings, kept=True)
            offline = {"answered": readings, "bytes": (Traffic.now() - before).bytes}
        finally:
            server.terminate()
    return {"rows": rows, "without_uplink": offline}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-uplink", description=__doc__.splitlines()[0])
    parser.add_argument("--readings", type=int, default=600, help="a multiple of 60")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    enter_own_network()
    described = machine()
    with cable() as beyond:
        result = measure(options.readings, options.rounds, beyond)
    for row in result["rows"]:
        print(f"{row['way']:36} {row['bytes_per_reading']:7.1f} bytes "
              f"{row['packets_per_reading']:5.2f} packets a reading")
    offline = result["without_uplink"]
    print(f"without uplink: {offline['answered']} readings answered, {offline['bytes']} bytes left")
    least = min(row["bytes_per_reading"] for row in result["rows"][:2])
    is_met = result["rows"][2]["bytes_per_reading"] * 10 <= least
    print(f"a tenth of the bytes or less: {'met' if is_met else 'MISSED'}")
    if not options.no_save:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
        path = ROOT / "bench" / "results" / f"uplink-{stamp}.json"
        path.write_text(json.dumps({"machine": described, **result}, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
