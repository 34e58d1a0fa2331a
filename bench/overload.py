"""A broker that gets four times what it can take (M1).

::

    script/soak overload                         # TernMQ, 30 minutes
    script/soak overload --minutes 2 --rocketmq  # and RocketMQ 4.9.4 for as long (needs Java)

The broker gets a part of its time: it is stopped (SIGSTOP) for most of each period. So senders on the same machine can
make four times the load. First the load is found that it can take in this way: each connection has so many sends under
way. Then four times that load comes at a fixed rate, whether it is answered or not.

Expected: what is accepted is accepted soon, the rest gets SYSTEM_BUSY, memory does not grow without end, and each
message that was acknowledged is in its queue afterwards. Latency counts from the call of the client on, so it includes
what waits in the client and in the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop

from bench import systems
from bench.systems import System
from ternmq import Admin, PullConsumer
from ternmq.errors import NetworkError
from ternmq.net.dial import connect
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.latency import Latency
from ternmq.net.peer import Peer
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import SendMessageV2

TOPIC: Final = "overload"
QUEUES: Final = 4
CONNECTIONS: Final = 4
#: Sends under way of one connection, while the load is found.
WINDOW: Final = 256
FIND_S: Final = 10.0
#: What is offered, in times of that.
LOAD: Final = 4
#: The broker runs for the first part of each period.
RUN_S: Final = 0.01
STOP_S: Final = 0.05
TICK_S: Final = 0.005
#: Sends that wait in one client; what is more is not sent, and counted.
UNDER_WAY_MAX: Final = 20_000
#: How long the last answers may take, and 99 of 100 accepted sends.
LAST_S: Final = 20.0
ACCEPTED_S_MAX: Final = 3.0
GROWTH_MB_MAX: Final = 512
NUMBER: Final = struct.Struct(">q")
PADDING: Final = bytes(120)


@dataclass(slots=True)
class Counts:
    """What became of sends."""

    offered: int = 0
    #: Not sent, as the client had too many under way.
    withheld: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    accepted: Latency = field(default_factory=Latency)
    refused: Latency = field(default_factory=Latency)
    under_way: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: set[int] = field(default_factory=set)


class Senders:
    """Connections to one broker, and the numbers of the messages."""

    def __init__(self, peers: list[Peer]) -> None:
        self._peers = peers
        self._number = 0

    def send(self, counts: Counts) -> asyncio.Future[Response] | None:
        """The next message; None if the client must wait."""
        peer, number = self._peers[self._number % len(self._peers)], self._number
        if counts.under_way >= UNDER_WAY_MAX:
            counts.withheld += 1
            return None
        header = SendMessageV2(
            producer_group="overload",
            topic=TOPIC,
            queue_id=number % QUEUES,
            born_time_ms=int(time.time() * 1000),
            properties=f"UNIQ_KEY\x01{number:032X}\x02",
        )
        began = time.monotonic()
        try:
            call = peer.start_call(RequestCode.SEND_MESSAGE_V2, header, NUMBER.pack(number) + PADDING)
        except NetworkError:
            counts.withheld += 1
            return None
        self._number += 1
        counts.offered += 1
        counts.under_way += 1
        counts.idle.clear()

        def ended(done: asyncio.Future[Response]) -> None:
            counts.under_way -= 1
            if not counts.under_way:
                counts.idle.set()
            error = done.exception()
            if error is not None:
                counts.errors[type(error).__name__] += 1
                return
            code, took_s = done.result().code, time.monotonic() - began
            counts.codes[code] += 1
            if code == ResponseCode.SUCCESS:
                counts.accepted.add(took_s)
                counts.acknowledged.add(number)
            else:
                counts.refused.add(took_s)

        call.add_done_callback(ended)
        return call

    async def find_load(self) -> float:
        """Sends a second that the broker can take."""
        counts, end = Counts(), time.monotonic() + FIND_S

        async def one_after_the_other() -> None:
            while time.monotonic() < end:
                call = self.send(counts)
                if call is not None:
                    await call

        await asyncio.gather(*(one_after_the_other() for _ in range(WINDOW * len(self._peers))))
        return len(counts.acknowledged) / FIND_S

    async def offer(self, rate: float, seconds: float, counts: Counts) -> None:
        """Send at a rate, whatever is answered; returns when all sends have ended."""
        began = time.monotonic()
        due = 0.0
        while (now := time.monotonic() - began) < seconds:
            while due < now * rate:
                self.send(counts)
                due += 1
            await asyncio.sleep(TICK_S)
        async with asyncio.timeout(LAST_S):
            await counts.idle.wait()


@asynccontextmanager
async def slowed(system: System) -> AsyncIterator[None]:
    """The broker gets a part of its time."""

    async def stop_and_go() -> None:
        while True:
            os.kill(system.broker_pid, signal.SIGSTOP)
            await asyncio.sleep(STOP_S)
            os.kill(system.broker_pid, signal.SIGCONT)
            await asyncio.sleep(RUN_S)

    task = asyncio.create_task(stop_and_go())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        os.kill(system.broker_pid, signal.SIGCONT)


async def stored_numbers(name_servers: str) -> set[int]:
    """The numbers of all messages in the topic."""
    found: set[int] = set()
    async with PullConsumer("overload-check", name_servers=name_servers) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, wait=False)
                found.update(NUMBER.unpack_from(message.body)[0] for message in result.messages)
                offset = result.next_offset
    return found


async def measure(system: System, minutes: float) -> list[str]:
    """Print what was measured; returns what is wrong."""
    async with Admin(system.namesrv) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES)
        [master] = await admin.brokers.masters()
    counts, memory = Counts(), [system.memory_mb()]
    async with Tasks() as tasks:
        lanes = Lanes([LaneConfig("client")])
        peers = [await connect(master.address, routes={}, lanes=lanes, tasks=tasks) for _ in range(CONNECTIONS)]
        senders = Senders(peers)

        async def watch() -> None:
            while True:
                await asyncio.sleep(1)
                memory.append(system.memory_mb())

        watching = asyncio.create_task(watch())
        # A JVM compiles what runs often.
        await senders.find_load()
        async with slowed(system):
            rate = await senders.find_load()
            memory[1:] = [system.memory_mb()]
            await senders.offer(LOAD * rate, minutes * 60, counts)
        watching.cancel()
        for peer in peers:
            peer.close()
            await peer.closed.wait()
    lost = counts.acknowledged - await stored_numbers(system.namesrv)
    accepted, refused = counts.codes[ResponseCode.SUCCESS], counts.codes[ResponseCode.SYSTEM_BUSY]
    seconds = minutes * 60
    print(f"{system.name}: takes {rate:,.0f}/s; got {counts.offered / seconds:,.0f}/s for {minutes:g} min")
    print(f"  accepted {accepted:,} ({accepted / seconds / rate:.0%} of what it takes), SYSTEM_BUSY {refused:,}")
    print(f"  not sent by the client, which waited: {counts.withheld:,}; errors {dict(counts.errors) or 'none'}")
    others = {code: count for code, count in counts.codes.items() if code not in (0, ResponseCode.SYSTEM_BUSY)}
    print(f"  other codes {others or 'none'}; acknowledged and lost {len(lost):,}")
    print(
        f"  accepted after {quantile(counts.accepted, 0.5)} / {quantile(counts.accepted, 0.99)} (50 %, 99 %), ", end=""
    )
    print(
        f"at most {counts.accepted.max_s * 1000:,.0f} ms; refused after at most {counts.refused.max_s * 1000:,.0f} ms"
    )
    print(f"  memory {memory[0]:,.0f} MB at the start, {memory[1]:,.0f} before, {max(memory):,.0f} at most")
    return wrong(system, counts, lost, memory)


def wrong(system: System, counts: Counts, lost: set[int], memory: list[float]) -> list[str]:
    found = []
    if lost:
        found.append(f"{system.name} has lost {len(lost)} acknowledged messages, the first is {min(lost)}")
    late = sum(count for bound, count in zip(bounds_s(), counts.accepted.counts, strict=True) if bound > ACCEPTED_S_MAX)
    if late * 100 > sum(counts.accepted.counts):
        found.append(f"{system.name} accepted {late} messages after more than {ACCEPTED_S_MAX} s")
    if max(memory) - memory[1] > GROWTH_MB_MAX:
        found.append(f"{system.name} grew by {max(memory) - memory[1]:.0f} MB, expected at most {GROWTH_MB_MAX}")
    # What the client withheld has not reached the broker, and does not count.
    if counts.offered < LOAD * len(counts.acknowledged):
        found.append(
            f"{system.name} got {counts.offered / max(len(counts.acknowledged), 1):.1f} times what it accepted, "
            f"expected {LOAD}: stop it for longer (STOP_S), or let more sends be under way (UNDER_WAY_MAX)"
        )
    return found


def bounds_s() -> list[float]:
    return [float(bound) / 1000 for bound, _ in Latency().up_to()]


def quantile(latency: Latency, part: float) -> str:
    """The bound of the bucket that has it."""
    total = sum(latency.counts)
    bound = next((bound for bound, count in latency.up_to() if count >= part * total), "+Inf")
    return f"<= {bound} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, for each system")
    parser.add_argument("--rocketmq", action="store_true", help="RocketMQ 4.9.4, too (needs Java)")
    options = parser.parse_args()
    found: list[str] = []
    starts: list[Callable[[Path], AbstractContextManager[System]]] = [systems.start_ternmq]
    if options.rocketmq:
        starts.append(systems.start_rocketmq)
    for start in starts:
        with tempfile.TemporaryDirectory(prefix="overload-") as directory, start(Path(directory)) as system:
            problems = uvloop.run(measure(system, options.minutes))
            # Only TernMQ is under test; the other one is beside it.
            found += problems if start is systems.start_ternmq else []
    for problem in found:
        print(f"FAILED: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
