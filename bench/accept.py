"""Measures how fast a node accepts invocations that must survive a power cut.

Usage: accept.py MOTE NATS-SERVER RESULT.json

Four contestants take turns on the same disk: a loop that writes 4 KiB and calls `fdatasync`; `mote`
with 64 clients that each wait for their 202; JetStream (file store, `sync_interval: always`, so
that an acknowledgement means the same) with 64 publishers that each wait for their acknowledgement;
and `mote` again with its journal in that JetStream. Then one client of `mote` against the loop
gives the latency that is added to one sync. The numbers of one round are compared with each other,
because the machine and its disk are shared; the result is the median of the rounds.
"""

import asyncio
import json
import os
import pathlib
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import nats

ROUNDS = 5
SECONDS = 3
CLIENTS = 64
BODY = b"x" * 100
FUNCTION = "export default async (event) => event.body;\n"
RATIO_BAR = 10.0  # of the rate of fdatasync
ADDED_MS_BAR = 0.2  # at one client


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(what, ready, seconds=30):
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            sys.exit(f"waited in vain: {what}")
        time.sleep(0.01)


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def syncs(folder):
    """Rate and median in milliseconds of a write of 4 KiB and fdatasync."""
    path = folder / "syncs"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    block, times = b"x" * 4096, []
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        before = time.perf_counter()
        os.write(file, block)
        os.fdatasync(file)
        times.append(time.perf_counter() - before)
    rate = len(times) / (time.perf_counter() - began)
    os.close(file)
    path.unlink()
    return rate, statistics.median(times) * 1e3


class Mote:
    def __init__(self, binary, folder, *flags):
        folder.mkdir()
        self.binary, self.port = binary, free_port()
        env = dict(os.environ, MOTE_SOCKET=str(folder / "s"))
        env.pop("MOTE_NODE", None)
        source = folder / "accept.mjs"
        source.write_text(FUNCTION)
        self.child = subprocess.Popen(
            [binary, "up", "--data", folder / "data", "--socket", folder / "s",
             "--http", f"127.0.0.1:{self.port}", "--coap", "off", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        wait_until("the node", lambda: connects(self.port))
        subprocess.run([binary, "deploy", source], env=env, check=True, stderr=subprocess.DEVNULL)

    def accept(self, clients):
        """Rate and median latency in milliseconds of 202 answers."""
        url = f"http://127.0.0.1:{self.port}/accept"
        output = subprocess.run(
            [self.binary, "bench", url, "-H", "prefer: respond-async", "-d", BODY.decode(),
             "-c", str(clients), "--duration", f"{SECONDS}s", "-o", "json"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        result = json.loads(output)
        if result["failed"]:
            sys.exit(f"mote refused invocations: {result['failures']}")
        return result["answered_per_s"], result["latency"]["p50_ms"]

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(30)


class JetStream:
    def __init__(self, binary, folder):
        self.port = free_port()
        config = folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{folder / "jetstream"}", sync_interval: always }}\n')
        self.child = subprocess.Popen([binary, "-c", config], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
        wait_until("nats-server", lambda: connects(self.port))
        asyncio.run(self.prepare())

    async def prepare(self):
        connection = await nats.connect(f"nats://127.0.0.1:{self.port}")
        await connection.jetstream().add_stream(name="bench", subjects=["bench"], max_msgs=200_000)
        await connection.close()

    async def publish(self):
        connection = await nats.connect(f"nats://127.0.0.1:{self.port}")
        stream = connection.jetstream(timeout=30)
        count, until = 0, time.perf_counter() + SECONDS

        async def publisher():
            nonlocal count
            while time.perf_counter() < until:
                await stream.publish("bench", BODY)
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*(publisher() for _ in range(CLIENTS)))
        rate = count / (time.perf_counter() - began)
        await connection.close()
        return rate

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(30)


def main():
    mote_binary, nats_binary, result_path = sys.argv[1:]
    version = subprocess.run([nats_binary, "--version"], stdout=subprocess.PIPE, text=True).stdout
    rounds = []
    # In the repository's folder, because /tmp may be in memory.
    with tempfile.TemporaryDirectory(dir=pathlib.Path(__file__).parent) as name:
        folder = pathlib.Path(name)
        jetstream = JetStream(nats_binary, folder)
        mote = Mote(mote_binary, folder / "local")
        replicated = Mote(mote_binary, folder / "replicated", "--journal-name", "bench",
                          "--nats", f"nats://127.0.0.1:{jetstream.port}")
        try:
            for number in range(ROUNDS):
                sync_rate, sync_ms = syncs(folder)
                mote_rate, _ = mote.accept(CLIENTS)
                nats_rate = asyncio.run(jetstream.publish())
                replicated_rate, _ = replicated.accept(CLIENTS)
                sync_rate_after, sync_ms_after = syncs(folder)
                _, one_ms = mote.accept(1)
                _, replicated_ms = replicated.accept(1)
                sync_ms = (sync_ms + sync_ms_after) / 2
                sync_rate = (sync_rate + sync_rate_after) / 2
                rounds.append({
                    "fdatasync_per_s": sync_rate, "fdatasync_ms": sync_ms,
                    "mote_per_s": mote_rate, "jetstream_per_s": nats_rate,
                    "replicated_per_s": replicated_rate,
                    "replicated_to_jetstream": replicated_rate / nats_rate,
                    "replicated_one_client_ms": replicated_ms, "mote_one_client_ms": one_ms,
                    "ratio": mote_rate / sync_rate,
                    "to_jetstream": mote_rate / nats_rate, "added_ms": one_ms - sync_ms,
                })
                print(f"round {number + 1}: fdatasync {sync_rate:6.0f}/s ({sync_ms:.3f} ms), "
                      f"mote {mote_rate:6.0f}/s, JetStream {nats_rate:6.0f}/s, "
                      f"mote in JetStream {replicated_rate:6.0f}/s, "
                      f"one client {one_ms:.3f} ms, in JetStream {replicated_ms:.3f} ms",
                      flush=True)
        finally:
            mote.stop()
            replicated.stop()
            jetstream.stop()
    middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    print(f"\nmedian: mote accepts {middle['ratio']:.1f} times the rate of fdatasync "
          f"(bar: {RATIO_BAR:g}), {middle['to_jetstream']:.1f} times JetStream's; one client waits "
          f"{middle['added_ms']:.3f} ms longer than one fdatasync (bar: {ADDED_MS_BAR:g})")
    print(f"with its journal in JetStream it accepts {middle['replicated_per_s']:.0f}/s, "
          f"{middle['replicated_to_jetstream']:.2f} times the rate of single messages; one client "
          f"waits {middle['replicated_one_client_ms']:.3f} ms")
    machine = {"kernel": platform.release(), "cores": os.cpu_count(), "arch": platform.machine()}
    pathlib.Path(result_path).write_text(json.dumps(
        {"machine": machine, "nats_server": version.strip(), "clients": CLIENTS,
         "seconds": SECONDS, "median": middle, "rounds": rounds}, indent=1) + "\n")
    print(f"written to {result_path}")
    if middle["ratio"] < RATIO_BAR or middle["added_ms"] > ADDED_MS_BAR:
        sys.exit("a bar was missed")


main()
