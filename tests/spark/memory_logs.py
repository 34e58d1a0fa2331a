"""``Logs`` in memory, which break: brokers that lose answers, tear batches, show late, and take up what a dead driver
sent when its successor is already there (U2).

``World`` is what lasts: brokers with one log each. ``Driver`` is one process that talks to them; after its crash every
call of it fails, and what it had sent may still arrive.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from ternmq.admin.messages import COUNT_MAX
from ternmq.errors import MessagesLost, NetworkError, RouteMissing, SystemBusy
from ternmq.message import MessageQueue, Property, SendReceipt, SendStatus
from ternmq.names import SCHEDULE_TOPIC, WHEEL_TOPIC
from ternmq.spark.runtime.cluster import Bounds
from ternmq.spark.sink.logs import AppendData, NotSafe, Stored
from ternmq.spark.sink.publish import TIMER_SETTING
from ternmq.spark.sink.rows import TIMER_DELIVER_MS
from ternmq.wire import properties as property_texts
from ternmq.wire.batch import unpack_messages

#: How long each call takes.
_ANSWER_S = 0.001


class Crash(BaseException):
    """The process is gone."""


@dataclass
class MemoryBroker:
    """A log, of which queues show a part."""

    log: list[tuple[MessageQueue, Stored]] = field(default_factory=list)
    queues: dict[MessageQueue, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    shown: int = 0
    #: How much of the log a power cut would leave.
    safe: int = 0
    #: Received, not taken up yet.
    stragglers: list[tuple[MessageQueue, AppendData]] = field(default_factory=list)

    def take(self, queue: MessageQueue, parcel: AppendData, now_ms: int, *, rows: int | None = None) -> int:
        """Append a parcel, or of a batch its first rows; the queue offset of the first."""
        messages = (
            [(body, text.decode()) for _, body, text in unpack_messages(bytes(parcel.body))]
            if parcel.is_batch
            else [(bytes(parcel.body), parcel.properties)]
        )
        first = self.ends[queue]
        for body, text in messages[:rows]:
            pairs = property_texts.parse(text)
            at = queue
            if Property.DELAY in pairs:
                at = MessageQueue(SCHEDULE_TOPIC, queue.broker_name, int(pairs[Property.DELAY]) - 1)
            elif TIMER_DELIVER_MS in pairs:
                at = MessageQueue(WHEEL_TOPIC, queue.broker_name, 0)
            unique_key, keys, tags = (
                pairs.get(name, "") for name in (Property.UNIQUE_KEY, Property.KEYS, Property.TAGS)
            )
            self.log.append((at, Stored(self.ends[at], now_ms, unique_key, keys, tags, body)))
            self.ends[at] += 1
        return first

    def take_stragglers(self, now_ms: int) -> None:
        waiting, self.stragglers = self.stragglers, []
        for queue, parcel in waiting:
            self.take(queue, parcel, now_ms)

    def show(self, count: int) -> None:
        for queue, stored in self.log[self.shown : self.shown + count]:
            self.queues[queue].append(stored)
        self.shown = min(len(self.log), self.shown + count)


class World:
    """Brokers ``a``, ``b``, … and topics that all of them have, with so many queues each."""

    def __init__(self, seed: int, *, brokers: int = 2, topics: dict[str, int] | None = None) -> None:
        self.chance = random.Random(seed)
        self.topics = {SCHEDULE_TOPIC: 18, WHEEL_TOPIC: 1, **(topics or {})}
        self.brokers = {chr(ord("a") + number): MemoryBroker() for number in range(brokers)}
        #: Brokers that no name server knows at the moment.
        self.away: set[str] = set()
        #: How many records a broker may show more by the next look at it.
        self.shows: Sequence[int] = (0, 0, 1, 5)
        self.now_s = 1_000.0
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032X}"

    def new_chunk_id(self) -> str:
        return self.new_id()[-28:]

    def stored(self, *topics: str) -> list[Stored]:
        """All that brokers have of these topics, by queue."""
        everything = [one for broker in self.brokers.values() for one in broker.log]
        return [stored for queue, stored in sorted(everything) if queue.topic in topics]

    def unsafe(self, *topics: str) -> list[Stored]:
        """What brokers have of these topics, and would lose with their machines."""
        logs = (broker.log[broker.safe :] for broker in self.brokers.values())
        return [stored for log in logs for queue, stored in log if queue.topic in topics]

    def settle(self) -> None:
        """Whatever is under way arrives."""
        for broker in self.brokers.values():
            broker.take_stragglers(int(self.now_s * 1000))
            broker.show(len(broker.log))


class Driver:
    """``Logs`` for one process, which dies at its call number ``crash_at`` (from 0)."""

    def __init__(self, world: World, *, crash_at: int | None = None, faults: float = 0.0) -> None:
        self.world = world
        self.calls = 0
        #: The topics that it has read.
        self.has_read: set[str] = set()
        self._crash_at = crash_at
        self._faults = faults
        self._is_dead = False

    async def brokers_of(self, topic: str) -> list[str]:
        await self._call()
        if topic not in self.world.topics:
            raise RouteMissing(f"no topic {topic}", topic=topic)
        return [name for name in self.world.brokers if name not in self.world.away]

    async def writable(self, topic: str) -> Sequence[MessageQueue]:
        brokers = await self.brokers_of(topic)
        return [MessageQueue(topic, name, at) for name in brokers for at in range(self.world.topics[topic])]

    async def make(self, topic: str, *, queues: int) -> None:
        await self._call()
        self.world.topics[topic] = queues

    async def append(self, queue: MessageQueue, parcel: AppendData) -> int:
        world, chance = self.world, self.world.chance
        broker, now_ms = world.brokers[queue.broker_name], int(world.now_s * 1000)
        if self._dies():
            # The request may never have left, be stored, or lie in the broker's inbox.
            fate = chance.choice(("never", "stored", "straggles"))
            if fate == "stored":
                broker.take(queue, parcel, now_ms)
            elif fate == "straggles":
                broker.stragglers.append((queue, parcel))
            raise Crash
        await asyncio.sleep(0)
        self._still_alive()
        if queue.broker_name in world.away:
            raise NetworkError(f"{queue.broker_name} is away")
        waiting, broker.stragglers = broker.stragglers, []
        fault = chance.choice(("busy", "no answer", "torn", "unsafe")) if chance.random() < self._faults else ""
        try:
            if fault == "busy":
                raise SystemBusy("busy")
            if fault == "torn":
                broker.take(queue, parcel, now_ms, rows=chance.randrange(3))
            else:
                first = broker.take(queue, parcel, now_ms)
            if fault == "unsafe":
                raise NotSafe(SendReceipt(SendStatus.SLAVE_NOT_AVAILABLE, "", "", queue, first))
            if fault:
                raise NetworkError("the connection broke")
            # Slaves and disks take the log in its order.
            broker.safe = len(broker.log)
            return first
        finally:
            # What lay in its inbox before is taken up now: after this request, before the next.
            broker.stragglers = waiting
            broker.take_stragglers(now_ms)

    async def bounds(self, queue: MessageQueue) -> Bounds:
        await self._call()
        broker = self.world.brokers[queue.broker_name]
        broker.show(self.world.chance.choice(self.world.shows))
        return Bounds(0, len(broker.queues[queue]))

    async def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[Stored]]:
        shown = self.world.brokers[queue.broker_name].queues[queue]
        self.has_read.add(queue.topic)
        for at in range(start, end, 3):
            await self._call()
            page = shown[at : min(at + 3, end)]
            if len(page) < min(3, end - at):
                raise MessagesLost(f"{queue} does not show {end}", first=at, end=end)
            yield page

    async def hint(self, queue: MessageQueue, key: str, tag: str) -> int | None:
        await self._call()
        shown = self.world.brokers[queue.broker_name].queues[queue]
        # An index tells the newest, and may have lost the others.
        known = [one for one in reversed(shown) if one.keys == key][: self.world.chance.choice((0, 2, COUNT_MAX))]
        return min((one.queue_offset for one in known if one.tags == tag), default=None)

    async def indexed(self, broker: str, topic: str, unique_key: str) -> bool:
        await self._call()
        shown = self.world.brokers[broker].queues[MessageQueue(topic, broker, 0)]
        return any(one.unique_key == unique_key for one in shown)

    async def settings(self, broker: str) -> Mapping[str, str]:
        await self._call()
        return {TIMER_SETTING: "true"} if broker in self.world.brokers else {}

    def monotonic(self) -> float:
        return self.world.now_s

    async def pause(self, seconds: float) -> None:
        await self._call()
        self.world.now_s += seconds

    async def _call(self) -> None:
        if self._dies():
            raise Crash
        # Others run meanwhile, as they would over a network.
        await asyncio.sleep(0)
        self._still_alive()

    def _dies(self) -> bool:
        self._still_alive()
        self.calls += 1
        self.world.now_s += _ANSWER_S
        self._is_dead = self.calls - 1 == self._crash_at
        return self._is_dead

    def _still_alive(self) -> None:
        if self._is_dead:
            raise Crash
