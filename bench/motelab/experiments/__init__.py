"""The named experiments."""

from __future__ import annotations

from motelab.experiments.base import Experiment, later

MOTE = ("mote",)
NODE = "node"


def _scaling(name: str, title: str, paper: str, about: str) -> Experiment:
    run = later("experiments.scaling.run", name=name)
    return Experiment(name, title, paper, run, later("figures.scaling.scaling"), about, MOTE)


EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in [
        Experiment(
            "cold-start",
            "Cold starts",
            "000 4.1",
            later("experiments.calls.cold_start"),
            later("figures.calls.cold_start"),
            "Scales to zero, waits until the instance is gone, sends one request.",
            MOTE,
            repeats=True,
        ),
        Experiment(
            "serial",
            "Serial executions",
            "000 4.2",
            later("experiments.calls.serial"),
            later("figures.calls.serial"),
            "One client sends the next request after each answer.",
        ),
        Experiment(
            "parallel-20",
            "20 requests at once",
            "000 4.3",
            later("experiments.calls.parallel"),
            later("figures.calls.parallel"),
            "Threads of one process compared with processes.",
        ),
        _scaling(
            "native-scaling",
            "OpenFaaS's own scaling rule",
            "000 4.4.1",
            "6 clients with one call per second each.",
        ),
        _scaling(
            "hpa-ramp2",
            "CPU scaling, 2 to 48 clients by 2",
            "000 4.4.2",
            "Clients with one call per second each, added or removed in steps.",
        ),
        _scaling(
            "hpa-down2",
            "CPU scaling, 40 to 2 clients by 2",
            "000 4.4.2",
            "Clients with one call per second each, added or removed in steps.",
        ),
        _scaling(
            "hpa-varied",
            "CPU scaling, varied load",
            "000 4.4.2",
            "Clients with one call per second each, added or removed in steps.",
        ),
        _scaling(
            "hpa-ramp4",
            "CPU scaling, 4 to 48 clients by 4",
            "000 4.4.2",
            "Clients with one call per second each, added or removed in steps.",
        ),
        Experiment(
            "closed-sweep",
            "Closed sweep",
            "002 IV",
            later("experiments.sweeps.closed_sweep"),
            later("figures.sweeps.closed_sweep"),
            "Each client sends the next request after the answer; sieve to 1000.",
            runtime=NODE,
            repeats=True,
        ),
        Experiment(
            "hello-sweep",
            "Hello at several concurrencies",
            "003",
            later("experiments.sweeps.hello_sweep"),
            later("figures.sweeps.sweep"),
            "Five bytes of text; one instance.",
            runtime=NODE,
            repeats=True,
        ),
        Experiment(
            "http-sweep",
            "A fetched page at several concurrencies",
            "004 IV-B1",
            later("experiments.sweeps.http_sweep"),
            later("figures.sweeps.sweep"),
            "A page of 4 bytes; one instance.",
            runtime=NODE,
            repeats=True,
        ),
        Experiment(
            "http-sizes",
            "Fetched pages by size",
            "003",
            later("experiments.sweeps.http_sizes"),
            later("figures.sweeps.sizes"),
            "Pages of several sizes at one concurrency.",
            runtime=NODE,
            repeats=True,
        ),
        Experiment(
            "workers-sweep",
            "Workers per function",
            "003",
            later("experiments.sweeps.workers_sweep"),
            later("figures.sweeps.workers"),
            "Threads of one instance compared with instances.",
            repeats=True,
        ),
        Experiment(
            "process-modes",
            "Kept process or one per request",
            "004 III-B2",
            later("experiments.sweeps.process_modes"),
            later("figures.sweeps.modes"),
            "Both answer with the same text.",
            MOTE,
            repeats=True,
        ),
        Experiment(
            "export-modes",
            "Directly and through the gateway",
            "004 III-C",
            later("experiments.sweeps.export_modes"),
            later("figures.sweeps.exports"),
            "The same server on both paths.",
            repeats=True,
        ),
        Experiment(
            "latency-breakdown",
            "Where the time of a call goes",
            "004 IV-B2",
            later("experiments.breakdown.breakdown"),
            later("figures.calls.breakdown"),
            "Single calls to an idle warm instance.",
            MOTE,
            repeats=True,
        ),
        _scaling(
            "scale-workload-steady",
            "Steady load",
            "004 IV-C1",
            "100 clients, 100 calls per second.",
        ),
        _scaling(
            "scale-workload-bursty",
            "Bursts",
            "003 backup",
            "10 s at 10 calls per second, 10 s at 100.",
        ),
        _scaling(
            "scale-resource", "Scaling by CPU", "004 IV-C2", "100 connections that never pause."
        ),
        _scaling(
            "keepalive-balance",
            "Kept connections and new instances",
            "003",
            "100 kept connections.",
        ),
        _scaling(
            "low-concurrency-high-rate",
            "Low concurrency, high rate",
            "003",
            "9 callers, 400 calls per second.",
        ),
        _scaling(
            "dropped-demand",
            "Refused calls as demand",
            "003",
            "A ramp beyond the capacity, with a queue of 4.",
        ),
        Experiment(
            "network",
            "Calls from another network",
            "ours",
            later("experiments.network.network"),
            later("figures.network.network"),
            "1 and 16 callers over links with a round trip of 20 to 300 ms, 0 to 5 % loss, and a"
            " limited rate.",
            runtime=NODE,
            repeats=True,
        ),
        Experiment(
            "overhead",
            "The platform's share of a workload's time",
            "ours",
            later("experiments.overhead.overhead"),
            later("figures.calls.overhead"),
            "The same code on the platform and in its baseline, in alternated pairs; each round"
            " restarts both.",
        ),
    ]
}
