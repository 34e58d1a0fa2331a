"""A broker that gets four times what it can take (M1).

::

    script/soak overload                                        # TernMQ, 30 minutes
    script/soak overload --minutes 2 --systems ternmq rocketmq  # and RocketMQ 4.9.4 for as long (needs Java)

The broker has a part of one CPU (``bench.cpu_limit``), as in a container with a limit, so that senders on the same
machine can make four times the load; and the sender costs little (``bench.raw_sends``). First the broker runs without a
limit until a JVM has compiled what it needs. Then, with the limit, the load is found that it can take: so many sends
are under way, more and more until it takes no more. Then four times that comes at a fixed rate, whether it is answered
or not.

The sender holds back what a socket does not take: a broker that does not read slows its clients down.

Expected: the broker accepts most of what it can take, and soon; the rest gets SYSTEM_BUSY or is held back; memory does
not grow without end; and each message that was acknowledged is in its queue afterwards. Latency counts from the call of
the client on, so it includes what waits in the client and in the kernel.

What a broker gets of the CPU varies on a machine that is not quiet. So what was accepted is also told for a second of
CPU time of the broker, which is comparable.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from bench import systems
from bench.cpu_limit import limited
from bench.raw_sends import NUMBER, Counts, RawSender, Template
from bench.systems import System
from ternmq import Admin, PullConsumer
from ternmq.net.latency import BOUNDS_MS, Latency
from ternmq.wire.codes import ResponseCode

TOPIC: Final = "overload"
QUEUES: Final = 4
CONNECTIONS: Final = 4
BODY_BYTES: Final = 120
#: Of one CPU, for the broker.
SHARE: Final = 0.1
WARM_UP_S: Final = 15.0
#: Sends under way of all connections while the load is found, and how long with each.
WINDOWS: Final = (64, 128, 256, 512, 1024)
FIND_S: Final = 4.0
#: What is offered, in times of that.
LOAD: Final = 4
TICK_S: Final = 0.005
#: As RocketMQ's clients have it (``com.rocketmq.remoting.socket.sndbuf.size``).
SEND_BUFFER_BYTES: Final = 65_535
#: How long the last answers may take.
LAST_S: Final = 20.0
#: 99 of 100 accepted sends take no longer. A send may wait in its lane for 0.2 s.
ACCEPTED_MS_MAX: Final = 1_000
#: Of what the broker can take, with as much CPU time.
ACCEPTED_PART_MIN: Final = 0.8
GROWTH_MB_MAX: Final = 512
STARTS: Final[dict[str, Callable[[Path], AbstractContextManager[System]]]] = {
    "ternmq": systems.start_ternmq,
    "rocketmq": systems.start_rocketmq,
}


@dataclass(slots=True, frozen=True)
class Span:
    """What was accepted in some time, and what the broker used for it."""

    accepted: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.accepted / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Sends accepted for a second of CPU time."""
        return self.accepted / self.cpu_s


class Senders:
    """Connections to one broker, and the numbers of the messages."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._templates = [Template(TOPIC, queue_id, BODY_BYTES) for queue_id in range(QUEUES)]
        self._senders: list[RawSender] = []
        #: For each number: 1 if it was acknowledged.
        self.acknowledged = bytearray()
        #: Answered sends are followed by as many, until this time.
        self._follows_until = 0.0

    async def open(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(CONNECTIONS):
            sock = socket.create_connection((host, int(port)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            _, sender = await asyncio.get_running_loop().create_connection(
                lambda: RawSender(self._follow, self.acknowledged), sock=sock
            )
            self._senders.append(sender)

    def close(self) -> None:
        for sender in self._senders:
            sender.close()

    @property
    def under_way(self) -> int:
        return sum(sender.under_way for sender in self._senders)

    def _send(self, sender: RawSender, count: int) -> None:
        first = len(self.acknowledged)
        numbers = range(first, first + count)
        self.acknowledged += bytes(count)
        templates = self._templates
        sender.send([templates[number % QUEUES].fill(number) for number in numbers], numbers)

    def _follow(self, sender: RawSender, count: int) -> None:
        if count and time.monotonic() < self._follows_until:
            self._send(sender, count)

    def _begin(self) -> tuple[float, float]:
        for sender in self._senders:
            sender.counts = Counts()
        return time.monotonic(), self._system.cpu_s()

    def _span(self, began: float, cpu_s: float) -> Span:
        accepted = sum(sender.counts.codes[ResponseCode.SUCCESS] for sender in self._senders)
        return Span(accepted, time.monotonic() - began, max(self._system.cpu_s() - cpu_s, 0.01))

    async def _end(self) -> None:
        """Wait for the last answers, for a while."""
        end = time.monotonic() + LAST_S
        while self.under_way and time.monotonic() < end:  # noqa: ASYNC110 - the sum of four counters
            await asyncio.sleep(TICK_S)

    async def take(self, window: int, seconds: float) -> Span:
        """So many sends are under way, for so long: what the broker accepts."""
        began, cpu_s = self._begin()
        self._follows_until = began + seconds
        for sender in self._senders:
            self._send(sender, window // CONNECTIONS)
        await asyncio.sleep(seconds)
        span = self._span(began, cpu_s)
        await self._end()
        return span

    async def find(self) -> Span:
        """The most that the broker can take."""
        return max([await self.take(window, FIND_S) for window in WINDOWS], key=lambda span: span.rate)

    async def offer(self, rate: float, seconds: float) -> tuple[Span, Counts]:
        """Send at a rate, whatever is answered; returns when all sends have ended."""
        began, cpu_s = self._begin()
        due = withheld = 0
        while (now := time.monotonic() - began) < seconds:
            count, due = int(now * rate) - due, int(now * rate)
            for number, sender in enumerate(self._senders):
                part = (count + number) // CONNECTIONS
                if sender.is_full:
                    withheld += part
                else:
                    self._send(sender, part)
            await asyncio.sleep(TICK_S)
        span = self._span(began, cpu_s)
        await self._end()
        return span, self._sum(withheld)

    def _sum(self, withheld: int) -> Counts:
        total = Counts()
        total.withheld, total.unanswered = withheld, self.under_way
        for counts in (sender.counts for sender in self._senders):
            total.offered += counts.offered
            total.codes += counts.codes
            for whole, part in ((total.accepted, counts.accepted), (total.refused, counts.refused)):
                whole.counts = [sum(pair) for pair in zip(whole.counts, part.counts, strict=True)]
                whole.max_s = max(whole.max_s, part.max_s)
        return total


async def count_lost(name_servers: str, acknowledged: bytearray) -> int:
    """How many acknowledged numbers are not in the topic. They are marked as found."""
    async with PullConsumer("overload-check", name_servers=name_servers) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, wait=False)
                for message in result.messages:
                    acknowledged[NUMBER.unpack_from(message.body)[0]] = 2
                offset = result.next_offset
    return acknowledged.count(1)


async def measure(system: System, minutes: float, share: float) -> list[str]:
    """Print what was measured; returns what is wrong."""
    async with Admin(system.namesrv) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES)
        [master] = await admin.brokers.masters()
    senders = Senders(system)
    await senders.open(master.address)
    await senders.take(WINDOWS[-1], WARM_UP_S)
    with limited(system.broker_pid, share):
        can_take = await senders.find()
        memory = [system.memory_mb()]

        async def watch() -> None:
            while True:
                await asyncio.sleep(1)
                memory.append(system.memory_mb())

        watching = asyncio.create_task(watch())
        took, counts = await senders.offer(LOAD * can_take.rate, minutes * 60)
        watching.cancel()
    senders.close()
    lost = await count_lost(system.namesrv, senders.acknowledged)
    report(system, can_take, took, counts, lost, memory)
    return wrong(system, can_take, took, counts, lost, memory)


def report(system: System, can_take: Span, took: Span, counts: Counts, lost: int, memory: list[float]) -> None:
    accepted, refused = counts.codes[ResponseCode.SUCCESS], counts.codes[ResponseCode.SYSTEM_BUSY]
    others = Counter(counts.codes)
    del others[ResponseCode.SUCCESS], others[ResponseCode.SYSTEM_BUSY]
    print(
        f"{system.name}: can take {can_take.rate:,.0f}/s with {can_take.cpu_s / can_take.seconds:.1%} of a CPU; got "
        f"{counts.offered / took.seconds:,.0f}/s for {took.seconds / 60:.1f} min, with {took.cpu_s / took.seconds:.1%}"
    )
    print(
        f"  accepted {accepted:,} ({took.rate / can_take.rate:.0%} of what it can take; "
        f"{took.cpu_rate / can_take.cpu_rate:.0%} with as much CPU time), SYSTEM_BUSY {refused:,}"
    )
    print(f"  not sent, as the broker did not read: {counts.withheld:,}; other codes {dict(others) or 'none'}")
    print(f"  acknowledged and lost {lost:,}; not answered after {LAST_S:g} s: {counts.unanswered:,}")
    for name, latency in (("accepted", counts.accepted), ("refused", counts.refused)):
        print(
            f"  {name} after {quantile(latency, 0.5)} / {quantile(latency, 0.99)} (50 %, 99 %), at most "
            f"{latency.max_s * 1000:,.0f} ms"
        )
    print(f"  memory {memory[0]:,.0f} MB before, {max(memory):,.0f} at most")


def wrong(system: System, can_take: Span, took: Span, counts: Counts, lost: int, memory: list[float]) -> list[str]:
    found = []
    if lost:
        found.append(f"{system.name} has lost {lost} acknowledged messages")
    if counts.unanswered:
        found.append(f"{system.name} has not answered {counts.unanswered} sends {LAST_S:g} s after the last one")
    late = counts.accepted.between(ACCEPTED_MS_MAX, None)
    if late * 100 > sum(counts.accepted.counts):
        found.append(f"{system.name} accepted {late} messages after more than {ACCEPTED_MS_MAX} ms")
    if took.cpu_rate < ACCEPTED_PART_MIN * can_take.cpu_rate:
        part = took.cpu_rate / can_take.cpu_rate
        found.append(
            f"{system.name} accepted {part:.0%} of what it can take, expected at least {ACCEPTED_PART_MIN:.0%}"
        )
    if max(memory) - memory[0] > GROWTH_MB_MAX:
        found.append(f"{system.name} grew by {max(memory) - memory[0]:.0f} MB, expected at most {GROWTH_MB_MAX}")
    offered = (counts.offered + counts.withheld) / took.seconds / can_take.rate
    if offered < 0.9 * LOAD:
        found.append(
            f"{system.name} got {offered:.1f} times what it can take, expected {LOAD}: the machine is too busy, or the "
            "broker needs a smaller part of it (--share)"
        )
    return found


def quantile(latency: Latency, part: float) -> str:
    """The bound of the bucket that has it."""
    total = sum(latency.counts)
    bound = next((bound for bound, count in latency.up_to() if count >= part * total), "+Inf")
    return f"<= {bound} ms" if bound != "+Inf" else f"> {BOUNDS_MS[-1]} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, for each system")
    parser.add_argument("--share", type=float, default=SHARE, help="the part of one CPU that the broker has")
    parser.add_argument(
        "--systems", nargs="+", choices=STARTS, default=["ternmq"], help="rocketmq is RocketMQ 4.9.4 (needs Java)"
    )
    options = parser.parse_args()
    found: list[str] = []
    for name in options.systems:
        start = STARTS[name]
        with tempfile.TemporaryDirectory(prefix="overload-") as directory, start(Path(directory)) as system:
            problems = uvloop.run(measure(system, options.minutes, options.share))
            # Only TernMQ is under test; the other one is beside it.
            found += problems if name == "ternmq" else []
    for problem in found:
        print(f"FAILED: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
