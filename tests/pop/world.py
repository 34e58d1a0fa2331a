"""Pop on a real store, on a disk and a clock in memory: what the tests of this package share.

No timer runs: time passes when a test says so (``pass_time``). A world ends in one of three ways, ``stop``, ``kill``
and ``cut_power``, and begins again with ``start``. The groups' offsets are saved when a test says so, or at a stop; a
saved table is on the disk at once, which is the worst case for all that rests on records that are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from ternmq import names
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.files import TableFile, do_now
from ternmq.pop.buffer import PopBuffer
from ternmq.pop.orderly import Orders
from ternmq.pop.revive import Reviver
from ternmq.pop.revive_log import ReviveLog
from ternmq.pop.take import PopTaken, PopTaker, PopWish
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.handles import NORMAL, RETRY_V1, RETRY_V2, parse_messages, parse_starts
from ternmq.wire.properties import join
from ternmq.wire.record import Record, pack_host, unpack_records
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles
from tests.store.small import small_config

ROOT: Final = Path("/store")
HOST: Final = pack_host("127.0.0.1", 10911)
TOPIC: Final = "orders"
GROUP: Final = "poppers"
CLUSTER: Final = "DefaultCluster"
REVIVE_TOPIC: Final = names.revive_topic(CLUSTER)
REVIVE_QUEUES: Final = 2


class NoTimer:
    def cancel(self) -> None:
        pass


def no_timer(_seconds: float, _callback: Callable[[], None]) -> NoTimer:
    return NoTimer()


class InHand(NamedTuple):
    """A message that a consumer has popped."""

    body: bytes
    key: tuple[str, str, int]
    start_offset: int
    pop_time_ms: int
    queue_offset: int
    reconsume_times: int
    record: Record


@dataclass(slots=True)
class Options:
    enabled: bool = True
    retry_v2: bool = False
    count_max: int = 1000
    carry_records: int = 1000


class World:
    """One broker's pop, without a network."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.clock = ManualClock()
        self.disk = SimulatedDisk(page_bytes=512, names_in_order=True, now_ms=self.clock.now_ms)
        self.files = MemoryFiles()
        self.freed: list[tuple[str, str, int]] = []
        self.start()

    # --- Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        config = small_config(ROOT, mapped_file_size_commit_log=1 << 16)
        self.store = MessageStore.open(config, store_host=HOST, clock=self.clock, disk=self.disk, threads=False)
        self.topics = Topics(
            self.file("topics"), self.clock, broker_name="broker-a", cluster_name=CLUSTER, delay_levels=18
        )
        self.groups = Groups(self.file("groups"), self.clock, broker_name="broker-a")
        self.offsets = Offsets(self.file("offsets"), self.file("own_offsets"), self.clock)
        for table in (self.topics, self.groups, self.offsets):
            table.load()
        self.topics.ensure(TOPIC, queues=2)
        self.groups.find(GROUP)
        self.revive_log = ReviveLog(
            self.store,
            self.offsets,
            topic=REVIVE_TOPIC,
            queues=REVIVE_QUEUES,
            broker_name="broker-a",
            store_host=HOST,
            now_ms=self.clock.now_ms,
            carry_records=self.options.carry_records,
        )
        reviver = Reviver(
            store=self.store,
            offsets=self.offsets,
            topics=self.topics,
            has_group=lambda group: self.groups.get(group) is not None,
            retry_v2=self.options.retry_v2,
            count=lambda topic, messages, size_bytes: None,
        )
        self.buffer = PopBuffer(
            store=self.store,
            offsets=self.offsets,
            revive_log=self.revive_log,
            reviver=reviver,
            clock=self.clock,
            call_later=no_timer,
            enabled=self.options.enabled,
            count_max=self.options.count_max,
        )
        self.orders = Orders(self.file("orders"), self.clock, call_later=no_timer, on_free=self.freed.append)
        self.orders.load()
        self.buffer.open()
        self.taker = PopTaker(
            store=self.store, offsets=self.offsets, buffer=self.buffer, orders=self.orders, broker_name="broker-a"
        )

    def stop(self) -> None:
        self.orders.close()
        self.buffer.close()
        self.save()
        self.store.close()

    def kill(self) -> None:
        """The process dies; the page cache stays."""
        self._forget_timers()
        self.disk.die()

    def cut_power(self, random: Random) -> None:
        self._forget_timers()
        self.disk.power_cut(random)

    def save(self) -> None:
        """What the broker does every 5 s."""
        self.offsets.save()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        while self.buffer.deadlines.run() or self.orders.deadlines.run():
            pass

    def file(self, name: str) -> TableFile:
        return TableFile(ROOT / f"{name}.json", do_now, self.files)

    def _forget_timers(self) -> None:
        self.buffer.deadlines.close()
        self.orders.deadlines.close()

    # --- What clients do ----------------------------------------------------------------------------------------

    def send(self, body: bytes, queue_id: int = 0, topic: str = TOPIC, **properties: str) -> None:
        self.store.put(Draft(topic, queue_id, body, join(properties), self.clock.now_ms(), HOST))

    def pop(self, queue_id: int = 0, *, retry: int = NORMAL, **fields: Any) -> list[InHand]:
        """Messages of one queue, or of the topic's retry topic."""
        given: dict[str, Any] = {
            "group": GROUP,
            "topic": TOPIC,
            "count_max": 32,
            "invisible_ms": 60_000,
            "pop_time_ms": self.clock.now_ms(),
            "revive_queue_id": self.revive_log.next_queue_id(),
            "matches": None,
            "accepts": None,
            "from_last": False,
            "ordered": False,
            "attempt_id": None,
        }
        wish = PopWish(**(given | fields))
        topic = self.retry_topic(wish.group, retry) if retry else wish.topic
        taken = PopTaken()
        self.taker.take(wish, taken, topic, queue_id, retry)
        starts, offsets = parse_starts(taken.infos.starts), parse_messages(taken.infos.messages)
        records = [record for view in taken.buffers for record in unpack_records(view)]
        assert [record.queue_offset for record in records] == offsets.get((retry, queue_id), [])
        assert len(records) == taken.count
        return [
            InHand(
                bytes(record.body),
                (wish.group, topic, queue_id),
                starts[retry, queue_id],
                wish.pop_time_ms,
                record.queue_offset,
                record.reconsume_times,
                record,
            )
            for record in records
        ]

    def pop_everywhere(self, **fields: Any) -> list[InHand]:
        found = [message for queue_id in range(2) for message in self.pop(queue_id, **fields)]
        kind = RETRY_V2 if self.options.retry_v2 else RETRY_V1
        if self.topics.get(self.retry_topic(GROUP, kind)) is not None:
            found += self.pop(0, retry=kind, **fields)
        return found

    def ack(self, *messages: InHand) -> int:
        first = messages[0]
        offsets = [message.queue_offset for message in messages]
        return self.buffer.ack(first.key, first.start_offset, first.pop_time_ms, offsets)

    def change(self, message: InHand, invisible_ms: int) -> InHand | None:
        changed = self.buffer.change(
            message.key, message.start_offset, message.pop_time_ms, message.queue_offset, invisible_ms=invisible_ms
        )
        if changed is None:
            return None
        return message._replace(start_offset=message.queue_offset, pop_time_ms=changed)

    def committed(self, queue_id: int = 0) -> int:
        return self.offsets.get(GROUP, TOPIC, queue_id)

    def retry_topic(self, group: str, retry: int) -> str:
        return names.pop_retry_topic_v2(group, TOPIC) if retry == RETRY_V2 else names.pop_retry_topic(group, TOPIC)
