"""The claims of the papers, and how each is judged. Data only: `figures` reads, `page` judges."""

from __future__ import annotations

from dataclasses import dataclass

from motelab.evidence import figures
from motelab.evidence.figures import Figure

#: Most throughput that the native server may have over tinyFaaS, by the paper (IV-B).
SMALL_LOAD, HIGH_LOAD = 1.08, 1.33
#: Two numbers of executions count as equal if one is at least this share of the other.
TIED = 0.98
#: What is counted as the bytes of a call.
WIRE = "IP packets in both directions for 46 bytes of JSON and an answer of about 70"
#: The whole platform that ran in the same cluster.
KNATIVE = "knative"
#: Workloads that hold the interpreter's lock.
BOUND = ("float-operation", "pyaes", "chameleon", "gzip-compression")


@dataclass(frozen=True)
class Claim:
    """One row of the page."""

    #: A key of `papers.PAPERS`, and the section.
    paper: str
    section: str
    text: str
    #: The paper's figures, by their names in `papers.csv`; words if the paper prints no number.
    theirs: tuple[str, ...] | str
    #: The experiment whose newest stored run has the figure; none if nothing here can show it.
    experiment: str | None
    figure: Figure | None = None
    #: A description of our figure, for the page.
    what: str = ""
    #: `least` or `most`, and the number.
    rule: tuple[str, float] | None = None
    #: The name of mote in the run: a protocol, a way or a scaling rule may follow.
    ours: str = "mote"
    runtime: str | None = None
    #: Another target that must be in the run.
    among: str | None = None
    unit: str = ""
    #: Of these systems alone, where several have a figure of that name.
    systems: tuple[str, ...] = ()
    #: Why the claim is not shown, or what limits the figure.
    note: str = ""


CLAIMS: tuple[Claim, ...] = (
    # 000: Kubernetes distributions for the edge
    Claim(
        "000",
        "4.1",
        "A container of a function starts in seconds on every distribution",
        ("mean container start",),
        "cold-start",
        figures.mean_of_functions("mean"),
        "cold minus warm response time, mean of the workloads",
        ("most", 5.62),
        unit="s",
        note="the paper measures the start of the container, ours is the time that the caller"
        " waits; mote keeps prewarmed interpreters",
    ),
    Claim(
        "000",
        "4.1",
        "The same in a cluster, next to a whole platform",
        ("mean container start",),
        "cold-start",
        figures.mean_of_functions("mean"),
        "cold minus warm response time of hello in Python, in a cell",
        ("most", 5.62),
        ours="mote-cluster",
        runtime="python",
        among=KNATIVE,
        unit="s",
    ),
    Claim(
        "000",
        "4.2",
        "Platforms execute a function equally often in 5 minutes, in 10 of 14 workloads",
        "10 of 14 tied",
        "serial",
        figures.share_of_functions("n", TIED),
        "share of the workloads with at least 0.98 of the executions of the same code without a"
        " platform",
        ("least", 10 / 14),
    ),
    Claim(
        "000",
        "4.2",
        "dd runs less often on full Kubernetes than on the light distributions",
        (
            "fewer executions of dd than light distributions",
            "longer mean response of dd than light distributions",
        ),
        None,
        note="needs three Kubernetes distributions on machines of their own",
    ),
    Claim(
        "000",
        "4.3",
        "Four workers of one container do not speed up functions that hold the interpreter's lock",
        (
            "speed-up of interpreter-bound functions at least",
            "speed-up of interpreter-bound functions at most",
            "concurrent executions per container",
        ),
        "parallel-20",
        figures.least_of(BOUND, "speedup_vs_serial"),
        "speed-up of 20 concurrent calls over serial calls with four threads, smallest of four"
        " workloads",
        ("least", 0.66),
        ours="mote, 4 threads",
    ),
    Claim(
        "000",
        "4.4.1",
        "Under a constant 6 calls/s, OpenFaaS's own rule scales to the maximum",
        ("time to 20 instances",),
        "native-scaling",
        figures.value("peak"),
        "most instances under the same load with the rule `auto`",
        ("most", 19),
        ours="auto",
    ),
    Claim(
        "000",
        "4.4.2",
        "CPU scaling follows four load strategies",
        "figures 8 and 9",
        None,
        note="steps of 5 minutes on a quiet machine; the steps of `edge` are shorter than the"
        " period of the autoscaler that they would show",
    ),
    # 002: tinyFaaS
    Claim(
        "002",
        "III-A",
        "CoAP costs a device less than HTTP",
        "no number",
        "bench-wire",
        figures.on_the_wire("further_bytes", "CoAP over UDP", "HTTP/1.1"),
        "bytes per call after the first, CoAP over HTTP/1.1",
        ("most", 1.0),
        note=WIRE,
    ),
    Claim(
        "002",
        "III-A",
        "The same, if HTTP sends as few fields as it can",
        "no number",
        "bench-wire",
        figures.on_the_wire("further_bytes", "CoAP over UDP", "HTTP/1.1, fewest fields"),
        "bytes per call after the first, CoAP over HTTP/1.1 without the fields that curl adds",
        ("most", 1.0),
    ),
    Claim(
        "002",
        "III-A",
        "The same, for a device that connects for each call",
        "no number",
        "bench-wire",
        figures.on_the_wire("first_bytes", "CoAP over UDP", "HTTP/1.1"),
        "bytes of a first call with its connection, CoAP over HTTP/1.1",
        ("most", 1.0),
    ),
    Claim(
        "002",
        "III-A",
        "The same, in packets",
        "no number",
        "bench-wire",
        figures.on_the_wire("first_packets", "CoAP over UDP", "HTTP/1.1"),
        "packets of a first call with its connection, CoAP over HTTP/1.1",
        ("most", 1.0),
    ),
    Claim(
        "002",
        "III-A",
        "The same, with encryption",
        "no number",
        "bench-wire",
        figures.on_the_wire(
            "further_bytes", "CoAP over DTLS 1.2, pre-shared key", "HTTP/1.1 over TLS 1.3"
        ),
        "bytes per call after the first, CoAP over DTLS over HTTP/1.1 over TLS",
        ("most", 1.0),
    ),
    Claim(
        "002",
        "III-A",
        "The same, with encryption, compared with HTTP/2",
        "no number",
        "bench-wire",
        figures.on_the_wire(
            "further_bytes", "CoAP over DTLS 1.2, pre-shared key", "HTTP/2 over TLS 1.3"
        ),
        "bytes per call after the first, CoAP over DTLS over HTTP/2 over TLS",
        ("most", 1.0),
        note="the node speaks HTTP/2 over TLS only",
    ),
    Claim(
        "002",
        "III-A",
        "The same, with encryption, for a device that connects for each call",
        "no number",
        "bench-wire",
        figures.on_the_wire(
            "first_bytes", "CoAP over DTLS 1.2, pre-shared key", "HTTP/1.1 over TLS 1.3"
        ),
        "bytes of a first call with its handshake, CoAP over DTLS over HTTP/1.1 over TLS",
        ("most", 1.0),
    ),
    Claim(
        "002",
        "IV-B",
        "Success rate equal to the native server at every load",
        ("success rate compared with native",),
        "closed-sweep",
        figures.worst("success"),
        "answers within 1 s over native's, smallest of all loads",
        ("least", 1.0),
    ),
    Claim(
        "002",
        "IV-B",
        "Ahead of the native server at 16 clients",
        ("throughput over native at 16 clients on a board",),
        "closed-sweep",
        figures.ratio("rate", clients=16),
        "throughput over native's at 16 clients",
        ("least", 1.59),
    ),
    Claim(
        "002",
        "IV-B",
        "At small load the native server is at most 8 % faster",
        ("native faster at small load on a server",),
        "bench-warm",
        figures.least_warm(*(f"node {clients} shared" for clients in (1, 2, 4, 8))),
        "throughput over native's, smallest with 1, 2, 4 and 8 connections",
        ("least", 1 / SMALL_LOAD),
        note="the sweep's runs of one client are too short for this; a call wakes two processes,"
        " in Node's own server one",
    ),
    Claim(
        "002",
        "IV-B",
        "At medium to high load the native server is at most 33 % faster",
        (
            "native faster at medium to high load on a server",
            "native faster at high load on a board",
        ),
        "closed-sweep",
        figures.at_most_clients("rate"),
        "throughput over native's at the largest number of clients",
        ("least", 1 / HIGH_LOAD),
    ),
    Claim(
        "002",
        "IV-B",
        "CoAP serves the same load as HTTP",
        "every figure of the paper",
        "closed-sweep",
        figures.at_most_clients("rate"),
        "throughput over CoAP, over native's over HTTP, at the largest number of clients",
        ("least", 1 / HIGH_LOAD),
        ours="mote, CoAP",
    ),
    Claim(
        "002",
        "IV-B",
        "Success rate equal to the native server over links with a delay and loss",
        "1, on a local network",
        "network",
        figures.over_links("success", lossy=True),
        "answers within 10 s over native's, smallest of all links that lose packets, 16 callers",
        ("least", 1.0),
    ),
    Claim(
        "002",
        "IV-B",
        "The native server is at most 33 % faster over links with a delay",
        "at most 33 %, on a local network",
        "network",
        figures.over_links("rate", lossy=False),
        "throughput over native's, smallest of all links without loss, 16 callers",
        ("least", 1 / HIGH_LOAD),
        note="where the link is full (1 Mbit/s, 20 ms), because an answer of mote has more fields"
        " than one of Node's server",
    ),
    Claim(
        "002",
        "IV-B",
        "CoAP serves the same load as HTTP over links with a delay",
        "every figure of the paper, on a local network",
        "network",
        figures.over_links("rate", lossy=False),
        "throughput over CoAP, over native's over HTTP, smallest of all links without loss, 16"
        " callers",
        ("least", 1 / HIGH_LOAD),
        ours="mote, CoAP",
    ),
    Claim(
        "002",
        "IV-B",
        "CoAP serves the same load as HTTP over links with loss",
        "every figure of the paper, on a local network",
        "network",
        figures.over_links("rate", lossy=True),
        "throughput over CoAP, over native's over HTTP, smallest of all links that lose packets, 16"
        " callers",
        ("least", 1 / HIGH_LOAD),
        ours="mote, CoAP",
        note="CoAP repeats a message after 2 to 3 s (RFC 7252), TCP after"
        " about a round trip and 0.2 s",
    ),
    Claim(
        "002",
        "IV-C",
        "At least 20 times as fast as Lean OpenWhisk",
        (
            "latency over tinyFaaS on a server",
            "latency over tinyFaaS on a board almost",
            "faster than Lean OpenWhisk at least",
        ),
        "closed-sweep",
        figures.ratio("mean_s", "mote", clients=16),
        "mean latency over mote's at 16 clients; of OpenWhisk, its action runtime alone",
        ("least", 20),
        ours="openwhisk",
        systems=("Lean OpenWhisk", "tinyFaaS"),
        note="a whole OpenWhisk (JVM, Kafka, containers) was not run, only what every call passes"
        " in its container",
    ),
    Claim(
        "002",
        "IV-C",
        "About ten times as fast as Kubeless",
        ("latency over tinyFaaS on a board at least", "latency over tinyFaaS on a server"),
        None,
        systems=("Kubeless",),
        note="Kubeless has ended, and its images are no longer available",
    ),
    Claim(
        "002",
        "IV-C",
        "The same with Knative Serving in the place of Kubeless",
        "8 and 13 times, with Kubeless",
        "closed-sweep",
        figures.ratio("mean_s", "mote", clients=16),
        "mean latency of Knative over that of mote on a plain node at 16 clients",
        ("least", 10),
        ours=KNATIVE,
        among=KNATIVE,
    ),
    Claim(
        "002",
        "IV-C",
        "The same, both in one cluster",
        "8 and 13 times, with Kubeless",
        "closed-sweep",
        figures.ratio("mean_s", "mote-cluster", clients=16),
        "mean latency of Knative over that of mote in a cell at 16 clients",
        ("least", 10),
        ours=KNATIVE,
        among=KNATIVE,
    ),
    Claim(
        "002",
        "IV",
        "tinyFaaS itself",
        "1",
        "closed-sweep",
        figures.ratio("rate", "tinyfaas", clients=16),
        "throughput over that of tinyFaaS's own proxy and handler at 16 clients",
        ("least", 1.0),
    ),
    Claim(
        "002",
        "V",
        "Several functions in one container (SAND) are faster than OpenWhisk",
        ("faster than OpenWhisk",),
        None,
        note="SAND's code is not public",
    ),
    # 003: Understanding open source serverless platforms
    Claim(
        "003",
        "hello",
        "Throughput of a function that does nothing; Nuclio is the fastest of four",
        "a figure without numbers",
        "hello-sweep",
        figures.ratio("rate", "nuclio", clients=100),
        "throughput over Nuclio's at 100 clients (Node)",
        ("least", 1.0),
        runtime="node",
    ),
    Claim(
        "003",
        "hello",
        "The same in Python",
        "a figure without numbers",
        "hello-sweep",
        figures.ratio("rate", clients=100),
        "throughput over the native server's at 100 clients (Python)",
        ("least", 1.0),
        runtime="python",
    ),
    Claim(
        "003",
        "hello",
        "The same in Python, next to a whole platform in one cluster",
        "a figure without numbers",
        "hello-sweep",
        figures.ratio("rate", KNATIVE, clients=100),
        "throughput in a cell over Knative's at 100 clients (Python, one call at a time)",
        ("least", 1.0),
        ours="mote-cluster",
        runtime="python",
        among=KNATIVE,
    ),
    Claim(
        "003",
        "workers",
        "More workers, more throughput",
        "a figure without numbers",
        "workers-sweep",
        figures.growth("workers"),
        "throughput of the most processes over that of one; the generator shares the processors",
        ("least", 1.0),
        ours="mote, processes",
    ),
    Claim(
        "003",
        "export",
        "What the gateway costs, compared with a direct port",
        "a figure without numbers",
        "export-modes",
        figures.within("handler, through the gateway", "handler, own port", clients=100),
        "throughput through the gateway over that at a port of its own, 100 clients",
        ("least", 0.9),
    ),
    Claim(
        "003",
        "backup",
        "Throughput by the size of a fetched page",
        "a figure without numbers",
        "http-sizes",
        figures.ratio("rate", bytes=100_000),
        "throughput over native's with pages of 100 kB, 100 clients",
        ("least", 1 / HIGH_LOAD),
        note="outbound requests go through the node, which checks their destination",
    ),
    Claim(
        "003",
        "backup",
        "Bursts from 10 to 100 calls/s",
        "a figure without numbers",
        "scale-workload-bursty",
        figures.served_share,
        "share of the calls that were answered with the rule `auto`",
        ("least", 1.0),
        ours="auto",
    ),
    Claim(
        "003",
        "observations",
        "With a concurrency target of 10, 9 callers at 400 calls/s are never scaled",
        ("achieved rate of 400/s offered",),
        "low-concurrency-high-rate",
        figures.value("peak"),
        "most instances with the rule `auto`",
        ("least", 2),
        ours="auto",
        note="with a target of 10, mote does not scale either",
    ),
    Claim(
        "003",
        "observations",
        "Kept connections do not reach new instances",
        "a statement: new instances stay without calls",
        "keepalive-balance",
        figures.value("least_share"),
        "calls of the instance with the fewest over the mean of 10 instances, 100 kept connections,"
        " rule `concurrency 10`",
        ("least", 0.5),
        ours="concurrency 10",
    ),
    Claim(
        "003",
        "observations",
        "Autoscalers do not see the calls that were refused",
        "a statement",
        "dropped-demand",
        figures.peak_after_refusals,
        "instances when most calls exceed a queue of 4, rule `rps 10`",
        ("least", 10),
        ours="rps 10",
    ),
    # 004 (and 001): Analyzing open-source serverless platforms
    Claim(
        "004",
        "III-B2",
        "A persistent process has about 10 times the throughput of a process per request",
        ("kept process over process per request",),
        "process-modes",
        figures.within_best(
            "kept, Node", ("per request, Node", "streaming, Node", "serializing, Node")
        ),
        "throughput of a persistent Node process over the fastest way to start Node per request",
        ("least", 10),
    ),
    Claim(
        "004",
        "IV-B1",
        "p99 of a function that fetches a page, at 100 clients",
        ("p99 at 100 clients at most",),
        "http-sweep",
        figures.value("p99_ms", clients=100),
        "p99 at 100 clients",
        ("most", 500),
        unit="ms",
    ),
    Claim(
        "004",
        "IV-B1",
        "Throughput of a function that fetches a page; Nuclio is the fastest of four",
        "a figure without numbers",
        "http-sweep",
        figures.ratio("rate", "nuclio", clients=100),
        "throughput over Nuclio's at 100 clients",
        ("least", 1.0),
    ),
    Claim(
        "003",
        "breakdown; 004 IV-B2",
        "Time from the proxy to the function",
        ("t1-t2",),
        "latency-breakdown",
        figures.value("t1-t2"),
        "t1 to t2, mean",
        ("most", 0.63),
        ours="mote, python",
        unit="ms",
    ),
    Claim(
        "003",
        "breakdown; 004 IV-B2",
        "Time from the function back to the proxy",
        ("t3-t4",),
        "latency-breakdown",
        figures.value("t3-t4"),
        "t3 to t4, mean",
        ("most", 0.54),
        ours="mote, python",
        unit="ms",
    ),
    Claim(
        "004",
        "IV-C1",
        "From 1 to 10 instances at 100 calls/s",
        ("time to 10 instances",),
        "scale-workload-steady",
        figures.time_to_ten,
        "time to 10 instances with a target of 10 calls/s",
        ("most", 12),
        ours="rps 10",
        unit="s",
    ),
    Claim(
        "004",
        "IV-C1",
        "The same in a cluster, next to Knative itself",
        ("time to 10 instances",),
        "scale-workload-steady",
        figures.time_to_ten,
        "time to 10 instances in a cell with a target of 10 calls/s",
        ("most", 12),
        ours="mote-cluster, rps 10",
        among=KNATIVE,
        unit="s",
    ),
    Claim(
        "004",
        "IV-C2",
        "From 1 to 10 instances by processor time",
        ("time to 10 instances",),
        None,
        note="ten instances at 50 % need five processors, and the machine has two",
    ),
)

#: Why a peer can be ahead, in a few words; a stored page needs a reason for each peer that is.
REASONS: dict[str, str] = {
    "native": "no sandbox, queue or limits: one process",
    "deno": "no sandbox, queue or limits: HTTP in native code, one process",
    "bun": "no sandbox, queue or limits: HTTP in native code, one process",
    "workerd": "no sandbox per function: HTTP in native code, one process",
    "go": "compiled code, HTTP and function in one process",
    "uvicorn": "no sandbox, queue or limits: one process",
    "granian": "no sandbox, queue or limits: HTTP in native code, one process",
    "runc": "no preparation besides namespaces",
    "docker": "the image is empty and on the machine",
    "nuclio": "one worker, so calls wait outside the function",
    "of-watchdog": "its kept server is slower, or its programs start outside a sandbox",
}
