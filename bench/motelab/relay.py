"""A link between two networks, for kernels without netem: passes IP packets from one TUN device to
the other, each with a delay, and loses some of them.

`Lane` decides, for one direction, when a packet leaves and which packets are lost. It is pure: the
time is an argument. The rest of the file moves packets between the two devices. `network.Link`
starts this file as a program of its own, so that nothing else delays packets.

Each line on the standard input is a JSON object with new conditions. The program answers with a
line that has the counts since the last change of the conditions.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field

#: Packets that one direction holds at most, whether they wait for the line or are on their way.
#: The kernel's netem has the same limit by default.
HELD_MAX = 1_000
#: The packets that are read in one turn from one device, so that neither direction waits for the
#: other.
BATCH_MAX = 64
PACKET_BYTES_MAX = 65_535
#: Packets that leave later than this were delayed by the machine.
LATE_S = 0.001


@dataclass(frozen=True)
class Conditions:
    """What happens to each packet, in each of the two directions."""

    #: The time on the way, without the time in the queue.
    delay_s: float = 0.0
    #: The probability that a packet is lost.
    loss: float = 0.0
    #: Bits per second of IP packets; unlimited if there is no number.
    rate_bit_s: float | None = None
    #: Equal seeds lose the same packets, counted from the change of the conditions.
    seed: int = 0


@dataclass
class Counts:
    """What happened in one direction since the conditions were last changed."""

    passed: int = 0
    lost: int = 0
    #: Packets that found the queue full.
    refused: int = 0
    #: Packets that left more than `LATE_S` late.
    late: int = 0


@dataclass
class Lane:
    """One direction. Packets leave in the order in which they arrived."""

    name: str
    conditions: Conditions = field(default_factory=Conditions)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.held: deque[tuple[float, bytes]] = deque()
        #: When the line has sent everything that it was given.
        self.free_at = 0.0
        self.last_at = 0.0
        self.change(self.conditions)

    def change(self, conditions: Conditions) -> Counts:
        """Begins new conditions. Packets under way keep their times; the counts start again."""
        before, self.counts, self.conditions = self.counts, Counts(), conditions
        self.chance = random.Random(f"{conditions.seed} {self.name}")
        return before

    def accept(self, now: float, packet: bytes) -> None:
        """Takes a packet that arrives now."""
        of = self.conditions
        # Drawn for every packet, so that a full queue does not change what is lost afterwards.
        if self.chance.random() < of.loss:
            self.counts.lost += 1
            return
        if len(self.held) >= HELD_MAX:
            self.counts.refused += 1
            return
        sent_at = now
        if of.rate_bit_s:
            sent_at = max(now, self.free_at) + len(packet) * 8 / of.rate_bit_s
            self.free_at = sent_at
        # Packets of earlier conditions with a longer delay are not overtaken.
        self.last_at = max(sent_at + of.delay_s, self.last_at)
        self.held.append((self.last_at, packet))

    def next_at(self) -> float | None:
        """When the next packet leaves."""
        return self.held[0][0] if self.held else None

    def leave(self, now: float) -> bytes | None:
        """The next packet, if it leaves now."""
        if not self.held or self.held[0][0] > now:
            return None
        due, packet = self.held.popleft()
        self.counts.passed += 1
        self.counts.late += now - due > LATE_S
        return packet


def _pass_on(lane: Lane, device: int) -> None:
    while (packet := lane.leave(time.monotonic())) is not None:
        try:
            os.write(device, packet)
        except OSError:
            # The receiving side has no room or is being removed: such a packet is lost, as on any
            # network.
            lane.counts.passed -= 1
            lane.counts.refused += 1


def _read(lane: Lane, device: int) -> None:
    for _ in range(BATCH_MAX):
        try:
            packet = os.read(device, PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        lane.accept(time.monotonic(), packet)


def _be_punctual() -> None:
    """Runs before other programs, where that is permitted. The relay needs little time, but needs
    it when a packet is due."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        print("relay: no real-time priority; packets may leave late", file=sys.stderr)


def serve(near: int, far: int) -> None:
    """Passes packets on until the standard input ends."""
    _be_punctual()
    lanes = {near: Lane("to the far side"), far: Lane("to the near side")}
    other = {near: far, far: near}
    for device in lanes:
        os.set_blocking(device, False)
    orders = sys.stdin.fileno()
    while True:
        for device, lane in lanes.items():
            _pass_on(lane, other[device])
        times = [at for lane in lanes.values() if (at := lane.next_at()) is not None]
        wait = max(min(times) - time.monotonic(), 0.0) if times else None
        ready, _, _ = select.select([near, far, orders], [], [], wait)
        for device, lane in lanes.items():
            if device in ready:
                _read(lane, device)
        if orders in ready:
            line = os.read(orders, 4_096)
            if not line:
                return
            conditions = Conditions(**json.loads(line))
            counts = [asdict(lane.change(conditions)) for lane in lanes.values()]
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
