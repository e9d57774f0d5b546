"""Plays a year of real temperatures from simulated sensors against the deployed `thermo` function.

The hourly temperatures of Seattle that ship with vega_datasets become SENSORS sensors: each begins
at its own hour of the year and has its own bias. Half speak CoAP (confirmable POST), half HTTP with
kept connections. Faults are injected at known readings, so what the function finds can be checked
against what is there. Exits 1 when an answer is missing or a known fault was not found.
"""

import argparse
import asyncio
import csv
import http.client
import json
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

SENSORS = 60
READINGS = 100  # of each sensor
WARM_UP = 30  # readings before the first fault: the function needs some to know what is usual
FAULTS = 3  # of each sensor
FAULT_CELSIUS = 45.0  # no weather does that within an hour, so every fault is a known anomaly
HTTP_CONNECTIONS = 8
COAP_AT_ONCE = 8  # exchanges under way; each sensor has at most one
ANSWER_SECONDS_MAX = 10
RUN_SECONDS_MAX = 60


def hourly_celsius(path=None):
    """The year, hour by hour; without a file, that of the installed data set."""
    if path is None:
        from vega_datasets import local_data

        path = local_data.seattle_temps.filepath
    with open(path, newline="") as file:
        return [(row["date"], (float(row["temp"]) - 32) * 5 / 9) for row in csv.DictReader(file)]


def readings_of(number, year, seed):
    """[(payload, whether a fault was injected)] of one sensor, the same in every run."""
    chance = random.Random(seed * 1000 + number)
    start, bias = number * len(year) // SENSORS, chance.uniform(-2, 2)
    faults = {}
    for at in chance.sample(range(WARM_UP, READINGS), FAULTS):
        faults[at] = chance.choice((-1, 1)) * FAULT_CELSIUS
    readings = []
    for i in range(READINGS):
        date, celsius = year[(start + i) % len(year)]
        value = round(celsius + bias + faults.get(i, 0.0), 2)
        body = json.dumps({"sensor": "sensor-%02d" % number, "celsius": value, "at": date}).encode()
        readings.append((body, i in faults))
    return readings


class Tally:
    """What one protocol saw."""

    def __init__(self, name):
        self.name, self.lock = name, threading.Lock()
        self.sent = self.answered = self.flagged = self.injected = self.found = 0
        self.millis, self.phases, self.errors = [], {}, []

    def sending(self, fault):
        with self.lock:
            self.sent += 1
            self.injected += fault

    def answer(self, payload, fault, millis, timing=""):
        anomaly = json.loads(payload)["anomaly"]
        with self.lock:
            self.answered += 1
            self.flagged += anomaly
            self.found += anomaly and fault
            self.millis.append(millis)
            for entry in filter(None, timing.split(",")):
                name, _, duration = entry.strip().partition(";dur=")
                self.phases.setdefault(name, []).append(float(duration or 0))

    def failed(self, why):
        with self.lock:
            self.errors.append(why)

    def complete(self):
        return self.answered == self.sent and self.found == self.injected and self.sent > 0


def play_http(sensors, host, port, path, tally):
    """One kept connection that carries the readings of several sensors, in their order."""
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS_MAX)
    for round_of_readings in zip(*sensors):
        for body, fault in round_of_readings:
            tally.sending(fault)
            started = time.perf_counter()
            try:
                connection.request("POST", path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                payload = response.read()
                millis = (time.perf_counter() - started) * 1000
                if response.status != 200:
                    raise ValueError("status %d: %s" % (response.status, payload[:200]))
                tally.answer(payload, fault, millis, response.getheader("server-timing") or "")
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                tally.failed(repr(error))
                connection.close()
    connection.close()


async def play_coap(sensors, host, port, path, tally):
    import aiocoap

    context = await aiocoap.Context.create_client_context()
    uri = "coap://%s:%d%s" % (host, port, path)
    places = asyncio.Semaphore(COAP_AT_ONCE)

    async def play(readings):
        for body, fault in readings:
            async with places:
                tally.sending(fault)
                request = aiocoap.Message(code=aiocoap.POST, uri=uri, payload=body)  # confirmable is its default
                request.opt.content_format = 50  # application/json
                started = time.perf_counter()
                try:
                    answer = await asyncio.wait_for(context.request(request).response, ANSWER_SECONDS_MAX)
                    millis = (time.perf_counter() - started) * 1000
                    if not answer.code.is_successful():
                        raise ValueError("%s: %s" % (answer.code, answer.payload[:200]))
                    tally.answer(answer.payload, fault, millis)
                except (asyncio.TimeoutError, aiocoap.error.Error, OSError, ValueError, KeyError) as error:
                    tally.failed(repr(error))

    await asyncio.gather(*map(play, sensors))
    await context.shutdown()


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def table(tallies, seconds):
    line = "{:<10}{:>8}{:>10}{:>23}{:>9}{:>10}{:>10}"
    print(line.format("protocol", "sent", "answered", "anomalies found/inj.", "flagged", "p50 ms", "p99 ms"))
    for tally in tallies:
        found = "%d / %d" % (tally.found, tally.injected)
        p50, p99 = ("%.2f" % percentile(tally.millis, share) for share in (0.5, 0.99))
        print(line.format(tally.name, tally.sent, tally.answered, found, tally.flagged, p50, p99))
    print()
    print("phases of the HTTP answers (Server-Timing), ms")
    line = "{:<10}{:>10}{:>10}{:>10}"
    print(line.format("phase", "p50", "p99", "mean"))
    phases = tallies[0].phases
    for name in ("queue", "init", "handover", "invoke"):
        values = phases.get(name, [])
        shown = [percentile(values, 0.5), percentile(values, 0.99), statistics.mean(values)] if values else None
        print(line.format(name, *("%.3f" % one for one in shown) if shown else ("not sent",) * 3))
    total = sum(tally.answered for tally in tallies)
    print("\n%d readings of %d sensors in %.1f s, %.0f a second" % (total, SENSORS, seconds, total / seconds))
    for tally in tallies:
        for error in tally.errors[:5]:
            print("%s: %s" % (tally.name, error), file=sys.stderr)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--http-port", type=int, default=6683)
    options.add_argument("--coap-port", type=int, default=5683)
    options.add_argument("--path", default="/thermo")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--temperatures", help="the data set as CSV, where vega_datasets is not installed")
    options.add_argument("--seconds", type=float, default=RUN_SECONDS_MAX, help="most that the run may take")
    options = options.parse_args()

    year = hourly_celsius(options.temperatures)
    sensors = [readings_of(number, year, options.seed) for number in range(SENSORS)]
    by_http, by_coap = sensors[::2], sensors[1::2]
    tallies = Tally("http"), Tally("coap")
    started = time.perf_counter()
    with ThreadPoolExecutor(HTTP_CONNECTIONS) as pool:
        # A sensor's readings stay on one connection, so the function sees them in their order.
        groups = [by_http[i::HTTP_CONNECTIONS] for i in range(HTTP_CONNECTIONS)]
        jobs = [pool.submit(play_http, group, options.host, options.http_port, options.path, tallies[0]) for group in groups]
        coap = play_coap(by_coap, options.host, options.coap_port, options.path, tallies[1])
        try:
            asyncio.run(asyncio.wait_for(coap, options.seconds))
        except asyncio.TimeoutError:
            tallies[1].failed("not done after %d s" % options.seconds)
        for job in jobs:
            job.result()
    table(tallies, time.perf_counter() - started)
    if not all(tally.complete() for tally in tallies):
        print("FAILED: an answer is missing or a known anomaly was not found", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
