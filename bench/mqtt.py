"""Measures from request to answer through Mosquitto: a function of `mote` and a native client, in
turns.

Both subscribe with QoS 1 over MQTT 5, run the same handler in Node, publish its answer and then
acknowledge the message. The native client is mqtt.js in one process. The generator keeps a number
of messages in flight over that many topics; each turn uses one of the two, in the order A B B A.
CPU is that of all processes of a side: the node and its instances, or the client. The broker's
share is the same for both and is listed separately.

Usage: mqtt.py [--rounds N] [--seconds S] [--inflight N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "warm")]

from machine import machine  # noqa: E402
from node import ROOT, Node, free_port  # noqa: E402

BAR = 2.0
WARM_UP_SECONDS = 4.0
READY_SECONDS_MAX = 30
TICKS = os.sysconf("SC_CLK_TCK")

#: The handler, as text for both sides.
HANDLER = """
export function judge(text) {
  const { sensor, celsius } = JSON.parse(text);
  return JSON.stringify({ sensor, celsius, anomaly: celsius > 60 || celsius < -20 });
}
"""
FUNCTION = """
import { judge } from './judge.mjs';

export function handle(event) {
  return judge(event.text());
}
"""
MANIFEST = """version = 1
name = "judge"
runtime = "node"
entry = "app.mjs"
[scale]
min = 1
max = 1
[[trigger]]
mqtt = "mote/in/+"
qos = 1
inflight = {inflight}
reply = "mote/out/{{1}}"
"""
CLIENT = """
import { createRequire } from 'node:module';
import { judge } from './judge.mjs';
const mqtt = createRequire(process.argv[4])('mqtt');
const client = mqtt.connect(process.argv[2], {
  protocolVersion: 5, clientId: 'native', clean: false,
  properties: { sessionExpiryInterval: 600, receiveMaximum: Number(process.argv[3]) },
});
// mqtt.js acknowledges a message when `done` is called.
client.handleMessage = (packet, done) => {
  const to = packet.topic.replace('/in/', '/out/');
  client.publish(to, judge(packet.payload.toString()), { qos: 1 });
  done();
};
client.on('connect', () => client.subscribe('native/in/+', { qos: 1 }, () => console.log('ready')));
"""


def field(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def packet(first: int, body: bytes) -> bytes:
    length, rest = b"", len(body)
    while True:
        rest, low = rest >> 7, rest & 0x7F
        length += bytes([low | 0x80 if rest else low])
        if not rest:
            return bytes([first]) + length + body


class Generator:
    """A client of MQTT 3.1.1 on a bare socket: it publishes with QoS 1 and receives with QoS 0, so
    that it costs the machine as little as possible."""

    def __init__(self, port: int, inflight: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inflight = inflight
        self.buffer = b""
        self.id = 0
        self.socket.sendall(packet(0x10, field(b"MQTT") + b"\x04\x02\0\0" + field(b"generator")))
        filters = b"".join(field(f) + b"\0" for f in (b"mote/out/+", b"native/out/+"))
        self.socket.sendall(packet(0x82, b"\0\1" + filters))
        kinds: list[int] = []
        while 9 not in kinds:
            kinds += [kind for kind, _ in self.packets()]

    def packets(self) -> list[tuple[int, bytes]]:
        """Waits for bytes; returns the complete packets in them."""
        read = self.socket.recv(1 << 16)
        if not read:
            raise SystemExit("the broker closed the generator's connection")
        data, at, found = self.buffer + read, 0, []
        while True:
            length, shift, end = 0, 0, at + 1
            while end < len(data):
                byte = data[end]
                length |= (byte & 0x7F) << shift
                shift, end = shift + 7, end + 1
                if not byte & 0x80:
                    break
            else:
                break
            if end == at + 1 or end + length > len(data):
                break
            found.append((data[at] >> 4, data[end : end + length]))
            at = end + length
        self.buffer = data[at:]
        return found

    def request(self, side: str, topic: int) -> bytes:
        self.id = self.id % 65535 + 1
        body = b'{"sensor":"attic","celsius":21.5,"at":"2026-11-23T06:00:00Z"}'
        head = field(f"{side}/in/{topic}".encode()) + struct.pack(">H", self.id)
        return packet(0x32, head + body)

    def turn(self, side: str, seconds: float) -> tuple[int, float, list[float]]:
        """Answers, seconds and latencies in milliseconds; everything sent is answered."""
        began = time.perf_counter()
        end = began + seconds
        sent = [time.perf_counter()] * self.inflight
        self.socket.sendall(b"".join(self.request(side, n) for n in range(self.inflight)))
        waiting, latencies = self.inflight, []
        while waiting:
            out = []
            for kind, body in self.packets():
                if kind != 3:
                    continue
                topic = body[2 : 2 + struct.unpack_from(">H", body)[0]]
                number, now = int(topic.rsplit(b"/", 1)[1]), time.perf_counter()
                latencies.append((now - sent[number]) * 1e3)
                if now < end:
                    sent[number] = now
                    out.append(self.request(side, number))
                else:
                    waiting -= 1
            if out:
                self.socket.sendall(b"".join(out))
        return len(latencies), time.perf_counter() - began, latencies


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(folder.name))
    found, at = [pid], 0
    while at < len(found):
        found += parents.get(found[at], [])
        at += 1
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its descendants."""
    ticks = 0
    for one in descendants(pid):
        try:
            words = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(words[11]) + int(words[12])
    return ticks / TICKS


def broker(folder: Path, port: int) -> subprocess.Popen[bytes]:
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
        "max_inflight_messages 1000\nmax_queued_messages 0\n"
    )
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process
        except OSError:
            time.sleep(0.01)
    raise SystemExit("mosquitto did not start")


def wait_until_subscribed(node: Node) -> None:
    until = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < until:
        described = json.loads(node.mote("--output", "json", "describe", "judge"))
        if described["mqtt"][0]["state"] == "subscribed":
            return
        time.sleep(0.05)
    raise SystemExit("the function did not subscribe")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    port = free_port()
    function = folder / "judge"
    function.mkdir()
    (function / "judge.mjs").write_text(HANDLER)
    (function / "app.mjs").write_text(FUNCTION)
    (function / "mote.toml").write_text(MANIFEST.format(inflight=args.inflight))
    native = folder / "native"
    native.mkdir()
    (native / "judge.mjs").write_text(HANDLER)
    (native / "client.mjs").write_text(CLIENT)
    modules = str(ROOT / ".cache" / "test-node" / "package.json")
    url = f"mqtt://127.0.0.1:{port}"
    broker_process = broker(folder, port)
    client = subprocess.Popen(
        ["node", str(native / "client.mjs"), url, str(args.inflight), modules],
        stdout=subprocess.PIPE, text=True,
    )
    try:
        if client.stdout is None or client.stdout.readline().strip() != "ready":
            raise SystemExit("the native client did not start: scripts/setup.sh test")
        with Node("--mqtt-broker", url) as node:
            node.deploy(function)
            wait_until_subscribed(node)
            generator = Generator(port, args.inflight)
            pids = {"mote": node.pid, "native": client.pid}
            for side in pids:
                generator.turn(side, WARM_UP_SECONDS)
            turns = []
            for at in range(args.rounds):
                for side in ("mote", "native") if at % 2 == 0 else ("native", "mote"):
                    before, of_broker = cpu_seconds(pids[side]), cpu_seconds(broker_process.pid)
                    count, seconds, latencies = generator.turn(side, args.seconds)
                    latencies.sort()
                    turns.append({
                        "side": side,
                        "answers": count,
                        "per_second": count / seconds,
                        "p50_ms": latencies[len(latencies) // 2],
                        "p99_ms": latencies[len(latencies) * 99 // 100],
                        "cpu_us": (cpu_seconds(pids[side]) - before) / count * 1e6,
                        "broker_cpu_us": (cpu_seconds(broker_process.pid) - of_broker)
                        / count * 1e6,
                    })
            return {"turns": turns}
    finally:
        for process in (client, broker_process):
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--inflight", type=int, default=64)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mote-mqtt"))
    folder.chmod(0o755)
    about = machine()
    try:
        result = measure(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    medians = {
        side: {
            key: statistics.median(turn[key] for turn in result["turns"] if turn["side"] == side)
            for key in ("per_second", "p50_ms", "p99_ms", "cpu_us", "broker_cpu_us")
        }
        for side in ("mote", "native")
    }
    ratios = {
        "per_second": medians["mote"]["per_second"] / medians["native"]["per_second"],
        "cpu": medians["native"]["cpu_us"] / medians["mote"]["cpu_us"],
    }
    for side, values in medians.items():
        print(
            f"{side:7} {values['per_second']:7.0f} answers/s  p50 {values['p50_ms']:6.2f} ms  "
            f"p99 {values['p99_ms']:6.2f} ms  CPU {values['cpu_us']:6.1f} us/message  "
            f"(broker {values['broker_cpu_us']:.1f})"
        )
    print(f"ratio   {ratios['per_second']:.2f} in answers, {ratios['cpu']:.2f} in CPU (bar {BAR})")
    now = datetime.datetime.now(datetime.UTC)
    out = HERE / "results" / f"mqtt-{now:%Y-%m-%dT%H%M%SZ}.json"
    out.parent.mkdir(exist_ok=True)
    whole = {
        "machine": about, "inflight": args.inflight, "seconds": args.seconds,
        "medians": medians, "ratios": ratios, **result,
    }
    out.write_text(json.dumps(whole, indent=1) + "\n")
    print(out)
    if min(ratios.values()) < BAR:
        raise SystemExit("the bar was missed")


if __name__ == "__main__":
    main()
