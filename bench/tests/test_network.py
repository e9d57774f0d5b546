"""The link between two networks: its rules, what it does to packets, and calls that cross it."""

import os
import socket
import time

import pandas as pd
import pytest

from motelab.experiments.network import Setting, percentile_ms
from motelab.network import Link, netem
from motelab.processes import Failed
from motelab.relay import HELD_MAX, Conditions, Lane

PACKET = bytes(1_000)


def arrivals(lane: Lane, until: float = 1e9) -> list[bytes]:
    found = []
    while (packet := lane.leave(until)) is not None:
        found.append(packet)
    return found


def test_a_packet_leaves_after_the_delay_and_not_before() -> None:
    lane = Lane("x", Conditions(delay_s=0.05))
    assert lane.next_at() is None
    lane.accept(10.0, b"a")
    assert lane.next_at() == pytest.approx(10.05)
    assert lane.leave(10.0499) is None
    assert lane.leave(10.0501) == b"a"
    assert (lane.counts.passed, lane.counts.late) == (1, 0)
    lane.accept(20.0, b"b")
    assert lane.leave(20.06) == b"b"
    assert lane.counts.late == 1, "10 ms later than it was due"


def test_a_limited_rate_sends_one_packet_after_another() -> None:
    lane = Lane("x", Conditions(delay_s=0.1, rate_bit_s=1_000_000))
    for _ in range(3):
        lane.accept(5.0, PACKET)
    # A packet of 1,000 bytes takes 8 ms.
    assert [at for at, _ in lane.held] == pytest.approx([5.108, 5.116, 5.124])
    lane.accept(6.0, PACKET)
    assert lane.held[-1][0] == pytest.approx(6.108), "the line was free"


def test_packets_keep_their_order_when_the_link_becomes_shorter() -> None:
    lane = Lane("x", Conditions(delay_s=0.15))
    lane.accept(0.0, b"old")
    before = lane.change(Conditions(delay_s=0.01))
    assert before.passed == 0
    lane.accept(0.001, b"new")
    assert lane.leave(0.1) is None
    assert arrivals(lane, 0.15) == [b"old", b"new"]


def test_a_full_queue_refuses() -> None:
    lane = Lane("x", Conditions(rate_bit_s=1_000))
    for _ in range(HELD_MAX + 5):
        lane.accept(0.0, PACKET)
    assert (len(lane.held), lane.counts.refused) == (HELD_MAX, 5)


def lost(name: str, seed: int, share: float = 0.05, count: int = 10_000) -> list[int]:
    lane = Lane(name, Conditions(loss=share, seed=seed))
    found = []
    for at in range(count):
        before = lane.counts.lost
        lane.accept(0.0, PACKET)
        arrivals(lane)
        if lane.counts.lost > before:
            found.append(at)
    return found


def test_the_seed_decides_which_packets_are_lost() -> None:
    first = lost("x", 1)
    assert first == lost("x", 1)
    assert first != lost("x", 2) and first != lost("y", 1), "the directions are independent"
    # Four standard deviations.
    assert 10_000 * 0.05 - 87 < len(first) < 10_000 * 0.05 + 87
    assert lost("x", 1, share=0.0) == []


def test_netem_is_told_the_same() -> None:
    # A rate of 0 ends the limit of earlier conditions.
    assert " ".join(netem(Conditions(delay_s=0.05))).endswith(
        "delay 50000us loss random 0% rate 0bit"
    )
    all_of_it = " ".join(netem(Conditions(0.15, 0.01, 1e6)))
    assert all_of_it == "netem limit 1000 delay 150000us loss random 1% rate 1000000bit"


def test_half_of_the_round_trip_is_in_each_direction() -> None:
    conditions = Setting(100, 0.01, "1 Mbit/s").conditions(seed=3)
    assert conditions == Conditions(0.05, 0.01, 1_000_000, 3)
    assert Setting(100, 0.0, "unlimited").conditions(0).rate_bit_s is None


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 30.0), (0.6, 30.0), (0.8, 40.0), (0.95, None)]
)
def test_a_failure_takes_longer_than_any_answer(share: float, expected: float | None) -> None:
    rows = pd.DataFrame(
        {
            "response_s": [0.04, 0.01, 0.02, 0.03, 0.001],
            "is_ok": [True, True, True, True, False],
        }
    )
    found = percentile_ms(rows, share)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.fixture(scope="module")
def link():
    if os.geteuid():
        pytest.skip("a link between two networks needs root")
    try:
        made = Link()
        with made:
            yield made
    except Failed as why:
        pytest.skip(str(why))


def test_a_link_delays_what_crosses_it(link: Link) -> None:
    link.change(Conditions())
    direct = min(link.round_trips(20))
    for delay_s in (0.01, 0.05):
        link.change(Conditions(delay_s=delay_s))
        trips = sorted(link.round_trips(9))
        assert trips[0] >= 2 * delay_s
        # A busy machine makes some of them longer, but not all.
        assert trips[0] < 2 * delay_s + direct + 0.02


def test_a_link_loses_the_packets_that_its_seed_names(link: Link) -> None:
    if link.kind != "relay":
        pytest.skip("netem draws other packets each time")
    count, conditions = 400, Conditions(loss=0.05, seed=7)
    # The order of the directions is that of `Link.change`.
    expected = lost("to the far side", 7, count=count), lost("to the near side", 7, count=count)
    link.change(conditions)
    near, far = link.sockets(socket.SOCK_DGRAM)
    with near, far:
        near.settimeout(10)
        for at in range(count):
            far.sendto(at.to_bytes(2, "big"), near.getsockname())
            if at not in expected[1]:
                assert near.recv(64) == at.to_bytes(2, "big")
        near.settimeout(0)
        with pytest.raises(BlockingIOError):
            near.recv(64)
    to_far, to_near = link.change(Conditions())
    assert (to_near["lost"], to_near["passed"]) == (len(expected[1]), count - len(expected[1]))
    assert to_far["passed"] + to_far["lost"] == 0


def test_a_link_has_the_rate_that_it_was_given(link: Link) -> None:
    link.change(Conditions(rate_bit_s=1_000_000))
    near, far = link.sockets(socket.SOCK_DGRAM)
    with near, far:
        near.settimeout(10)
        begun = time.monotonic()
        for _ in range(20):
            far.sendto(PACKET, near.getsockname())
        for _ in range(20):
            near.recv(2_000)
        spent = time.monotonic() - begun
    # With the heads of UDP and IP.
    assert spent >= 20 * 1_028 * 8 / 1_000_000
    assert spent < 5


def test_the_two_sides_are_networks_of_their_own(link: Link) -> None:
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        here.listen()
        with socket.create_connection(here.getsockname(), 5):
            pass
        with link.beyond(), pytest.raises(ConnectionRefusedError):
            socket.create_connection(here.getsockname(), 5)


def test_calls_cross_the_link(lab, lab_cache, mote, link: Link) -> None:
    from motelab.__main__ import run_one
    from motelab.experiments import EXPERIMENTS

    lab.target_names, lab.runtime = ["mote", "native", "bun"], "node"
    stored = run_one(lab, EXPERIMENTS["network"], lab_cache / "results")
    table = pd.DataFrame(stored.summary["table"])
    http = ["HTTP", "HTTP, new connections"]
    ways = [f"{name}, {way}" for name in ("mote", "native") for way in http]
    assert set(table.platform) == {*ways, "mote, CoAP"}
    assert set(table.clients) == {1, 16}
    assert (table.success == 1).all()
    # A call crosses the link twice, and a new connection once more in each direction.
    assert (table.p50_ms >= 20).all()
    assert (table[table.platform.str.contains("new")].p50_ms >= 40).all()
    first = pd.DataFrame(stored.summary["first"])
    assert set(first.platform) == {"mote, HTTP", "mote, CoAP", "native, HTTP"}
    assert (first[first.platform == "mote, HTTP"].p50_ms >= 40).all(), "it connects"
    assert stored.summary["link"]["kind"] == link.kind
    said = "bun listens on loopback alone, where another network does not reach it"
    assert stored.summary["missing"] == [said]
    assert {path.name for path in stored.folder.glob("*.png")} == {
        "throughput.png",
        "latency.png",
        "first.png",
    }
