"""The bytes and packets of one call, over each way to a function.

A sensor sends a reading of 46 bytes to a function and gets an answer of about 70. The node and the
client are in two network namespaces with a cable between them (veth), which counts every packet.
The client is curl for HTTP, one on libcoap for CoAP (bench/peers/coap_client.c), and Mosquitto's
for MQTT.

"First call" is a call with everything that it needs: the connection, its keys and its end. "Each
further call" is what a call adds on the same connection. Bytes are those of IP packets, with their
heads and without Ethernet's.

Usage: python3 bench/wire.py [--calls N] [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "warm"))
from machine import machine
from node import ROOT, Node

INSIDE = "MOTE_WIRE_INSIDE"
READING = '{"sensor":"attic","celsius":21.5,"at":"12:00"}'
ETHERNET_BYTES = 14  # of each packet that a device counts
# Between messages of MQTT, which would otherwise share packets. So each of them has a packet for
# its acknowledgement, which in the other rows travels with the next request.
PAUSE_S = 0.1
SETTLE_S = 0.4  # until what follows an answer (delayed acknowledgements) has been sent
# Addresses for benchmarks (RFC 2544).
NODE, CLIENT, CABLE = "198.18.0.1", "198.18.0.2", "cable"
PORTS = {"https": 7443, "coap+tcp": 7683, "coaps": 7684, "coaps+tcp": 7685, "mqtt": 7883,
         "mqtts": 7884}
MANIFEST = """version = 1
name = "wire"
runtime = "python"

[access]
mode = "public"

[scale]
start = "always"
max = 1

[[trigger]]
mqtt = "readings"
"""
# Answers as long as the example `thermo` does.
CODE = """import json

def handle(event, ctx):
    reading = json.loads(event.body)
    return {"sensor": reading["sensor"], "mean": 21.5, "sd": 0.5, "z": 0.0, "anomaly": False}
"""


@dataclass
class Traffic:
    """What has crossed the cable, in both directions together."""

    bytes: int
    packets: int

    @staticmethod
    def now() -> Traffic:
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == CABLE:
                fields = [int(field) for field in counters.split()]
                packets = fields[1] + fields[9]
                return Traffic(fields[0] + fields[8] - ETHERNET_BYTES * packets, packets)
        raise SystemExit(f"this namespace has no device {CABLE}")

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.bytes - other.bytes, self.packets - other.packets)


@dataclass
class Way:
    """One way to the function. `command` makes a number of calls over one connection."""

    name: str
    command: Callable[[int], list[str]]
    note: str = ""


def counted(way: Way, calls: int, beyond: int) -> Traffic:
    """What a number of calls takes. `beyond` is a process in the client's namespace."""
    inside = ["nsenter", "-t", str(beyond), "-n", "--", *way.command(calls)]
    before = Traffic.now()
    done = subprocess.run(inside, capture_output=True, text=True,
                          timeout=120)
    if done.returncode:
        raise SystemExit(f"{way.name}: {done.stderr or done.stdout}")
    # A measurement's pause, not a wait: see SETTLE_S.
    time.sleep(SETTLE_S)
    return Traffic.now() - before


def ways(node: Node, client: Path) -> list[Way]:
    def curl(url: str, *flags: str) -> Callable[[int], list[str]]:
        def command(calls: int) -> list[str]:
            one = ["-X", "POST", "-H", "content-type: application/json", "--data-binary", READING,
                   "-o", "/dev/null", "-f", "-s", "-S", "-k", *flags, url]
            more = [word for _ in range(calls - 1) for word in ("--next", *one)]
            return ["curl", *one, *more]
        return command

    def coap(scheme: str, port: int) -> Callable[[int], list[str]]:
        return lambda calls: [str(client), scheme, NODE, str(port), "wire", READING,
                              str(calls), *(secret if scheme == "coaps" else [])]

    def publish(port: int, *flags: str) -> Callable[[int], list[str]]:
        base = ["mosquitto_pub", "-h", NODE, "-p", str(port), "-t", "readings", "-m", READING]
        return lambda calls: [*base, "--repeat", str(calls), "--repeat-delay", str(PAUSE_S), *flags]

    secret = node.mote("key", "create", "attic", "--function", "wire", "--psk").split()
    authority = str(node.folder / "data" / "certificates" / "self-signed.crt")
    web, safe = f"http://{NODE}:{node.http}/wire", f"https://{NODE}:{PORTS['https']}/wire"
    no_answer = "the function's answer is not sent to the client"
    return [
        Way("CoAP over UDP", coap("coap", node.coap)),
        Way("CoAP over TCP", coap("coap+tcp", PORTS["coap+tcp"])),
        Way("CoAP over DTLS 1.2, pre-shared key", coap("coaps", PORTS["coaps"])),
        Way("CoAP over TLS", coap("coaps+tcp", PORTS["coaps+tcp"])),
        Way("HTTP/1.1", curl(web, "--http1.1")),
        # What HTTP needs at least: curl names itself and the types that it accepts.
        Way("HTTP/1.1, fewest fields",
            curl(web, "--http1.1", "-H", "user-agent:", "-H", "accept:")),
        Way("HTTP/1.1 over TLS 1.3", curl(safe, "--http1.1")),
        Way("HTTP/2 over TLS 1.3", curl(safe, "--http2")),
        Way("MQTT 3.1.1, QoS 0", publish(PORTS["mqtt"], "-q", "0"), no_answer),
        Way("MQTT 3.1.1, QoS 1", publish(PORTS["mqtt"], "-q", "1"), no_answer),
        Way("MQTT over TLS, QoS 1",
            publish(PORTS["mqtts"], "-q", "1", "--cafile", authority, "--insecure"),
            no_answer),
    ]


def measure(calls: int, rounds: int, beyond: int) -> list[dict]:
    flags = ["--lan", "--mqtt-anonymous", "all"]
    for name, port in PORTS.items():
        setting = {"coap+tcp": "coap-tcp", "coaps": "coap-dtls", "coaps+tcp": "coap-tls",
                   "mqtts": "mqtt-tls"}.get(name, name)
        flags += [f"--{setting}", f"{NODE}:{port}"]
    rows = []
    with Node(*flags, address=NODE) as node:
        function = node.folder / "wire"
        function.mkdir()
        (function / "mote.toml").write_text(MANIFEST)
        (function / "app.py").write_text(CODE)
        node.deploy(function)
        client = node.folder / "coap_client"
        source = ROOT / "bench" / "peers" / "coap_client.c"
        subprocess.run(["cc", "-O2", "-o", client, source, "-lcoap-3-openssl"], check=True)
        for way in ways(node, client):
            counted(way, 1, beyond)  # certificates, tickets and the first session are made
            first = [counted(way, 1, beyond) for _ in range(rounds)]
            many = [counted(way, calls + 1, beyond) for _ in range(rounds)]
            row = {"way": way.name, "note": way.note}
            for unit in ("bytes", "packets"):
                one = statistics.median(getattr(count, unit) for count in first)
                whole = statistics.median(getattr(count, unit) for count in many)
                row[f"first_{unit}"] = one
                row[f"further_{unit}"] = (whole - one) / calls
            print(line(row), flush=True)
            rows.append(row)
    return rows


def enter_own_network() -> None:
    """Begins this program again in a network namespace of its own, unless it is in one."""
    if INSIDE in os.environ:
        return
    if os.geteuid() or not shutil.which("ip"):
        raise SystemExit("needs root and `ip`, for a network namespace")
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    os.execvpe(inside[0], [*inside, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})


@contextlib.contextmanager
def cable() -> Iterator[int]:
    """Lays a cable into another namespace, and returns a process that lives there."""
    command = ["unshare", "--net", "sh", "-c", "echo ready && exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            holder.stdout.readline()
            there = ["nsenter", "-t", str(holder.pid), "-n", "--"]
            ends = ["name", CABLE, "type", "veth", "peer", "name", CABLE, "netns", str(holder.pid)]
            subprocess.run(["ip", "link", "add", *ends], check=True)
            for where, address in (([], NODE), (there, CLIENT)):
                for step in (["addr", "add", f"{address}/24", "dev", CABLE],
                             # A packet here is one that a cable would carry.
                             ["link", "set", "dev", CABLE, "gso_max_segs", "1"],
                             ["link", "set", "dev", CABLE, "up"]):
                    subprocess.run([*where, "ip", *step], check=True)
                # Packets with which IPv6 introduces itself would count as somebody's.
                quiet = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"
                subprocess.run([*where, "sh", "-c", quiet], check=True)
            yield holder.pid
        finally:
            holder.terminate()


def line(row: dict) -> str:
    return (f"{row['way']:36} first call {row['first_bytes']:6.0f} bytes "
            f"{row['first_packets']:4.0f} packets   each further call {row['further_bytes']:6.0f} "
            f"bytes {row['further_packets']:4.1f} packets")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-wire", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20, help="further calls on a connection")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    options = parser.parse_args()
    enter_own_network()
    described = machine()
    with cable() as beyond:
        rows = measure(options.calls, options.rounds, beyond)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = ROOT / "bench" / "results" / f"wire-{stamp}.json"
    path.write_text(json.dumps({"machine": described, "reading_bytes": len(READING), "rows": rows},
                               indent=1) + "\n")
    print(f"written to {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
