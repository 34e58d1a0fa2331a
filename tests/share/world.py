"""Shared consumption on a real store, on a disk and a clock in memory: what the tests of this package share.

No timer runs: time passes when a test says so. A world ends in one of three ways, ``stop``, ``kill`` and ``cut_power``,
and begins again with ``start``. Tables are saved when a test says so, or at a stop; a saved table is on the disk at
once, which is the worst case for all that rests on records that are not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Term
from ternmq.broker.services.access import Access
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.polls import Polls
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.retry import Retries
from ternmq.broker.services.sharing import SharePullOutcome, Sharing
from ternmq.broker.tables.tables import Tables
from ternmq.errors import NotMaster
from ternmq.files import TableFile, do_now
from ternmq.share.wish import ShareTaken
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.store import MessageStore
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.properties import join
from ternmq.wire.record import pack_host, unpack_records
from ternmq.wire.requests_share import ShareAck, SharePull
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles
from tests.store.small import small_config

ROOT: Final = Path("/store")
HOST: Final = pack_host("127.0.0.1", 10911)
TOPIC: Final = "orders"
GROUP: Final = "billing"
RETRY_TOPIC: Final = names.retry_topic(GROUP)
HOUR_S: Final = 3_600.0

T = TypeVar("T")


class InHand(NamedTuple):
    """A message that a consumer was given."""

    body: bytes
    topic: str
    number: int
    life: int
    reconsume_times: int
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class Options:
    queues: int = 2
    offline_ms: int = 180_000
    gone_ms: int = 172_800_000
    #: After so many actions a checkpoint is written.
    checkpoint_actions: int = 20_000
    held_max: int = 10_000
    consumers_max: int = 10_000
    bytes_max: int = 32 << 20
    #: Sizes of files; small ones have more borders to meet.
    log_file_bytes: int = 1 << 14
    queue_file_bytes: int = 100


class World:
    """One broker's shared consumption, without a network."""

    def __init__(self, options: Options | None = None, *, seed: int = 0) -> None:
        self.options = options or Options()
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(page_bytes=512, names_in_order=True, now_ms=self.clock.now_ms)
        self.files = MemoryFiles()
        self.term = 0
        self._runner = asyncio.Runner()
        self.start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def end(self) -> None:
        self._runner.close()

    # --- Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.run(self._start())

    async def _start(self) -> None:
        options = self.options
        config = BrokerConfig(
            broker_name="broker-a",
            share_offline_time=options.offline_ms,
            share_gone_time=options.gone_ms,
            max_share_held=options.held_max,
            max_share_consumers=options.consumers_max,
            max_share_bytes=options.bytes_max,
            enable_property_filter=True,
        )
        store_config = small_config(
            ROOT,
            mapped_file_size_commit_log=options.log_file_bytes,
            mapped_file_size_consume_queue=options.queue_file_bytes,
            file_reserved_time=1,
        )
        self.store = MessageStore.open(store_config, store_host=HOST, clock=self.clock, disk=self.disk, threads=False)
        self.tables = tables = Tables.load(config, self.clock, self.file, delay_levels=18)
        tables.topics.ensure(TOPIC, queues=options.queues)
        tables.groups.find(GROUP)
        # Without redirects: what is written again comes at once.
        intake = Intake(self.store, waiting_max=1_000)
        self.retries = Retries(
            intake=intake,
            topics=tables.topics,
            groups=tables.groups,
            record_at=self.store.record_at,
            cold_record=self.store.cold.record,
            choice=self.random,
            stats=tables.stats,
        )
        self.sharing = Sharing(
            config,
            access=Access(config, topics=tables.topics, groups=tables.groups),
            polls=Polls(config, max_offset=self.store.max_offset, run_lanes=lambda: None),
            store=self.store,
            store_host=HOST,
            groups=tables.groups,
            offsets=tables.offsets,
            stats=tables.stats,
            quotas=Quotas(config, self.clock),
            filters=tables.filters,
            resend=self.retries.resend,
            clock=self.clock,
            choice=self.random,
        )
        self._begin()

    def _begin(self) -> None:
        self.term += 1
        self.master = self.sharing.begin(Term(self.term))
        self.master._log._checkpoint_actions = self.options.checkpoint_actions

    def change_term(self) -> None:
        """The broker steps down, and is the master again."""

        async def change() -> None:
            self.master.stop(NotMaster("a test says so"))
            self._begin()

        self.run(change())

    def stop(self) -> None:
        self.save()
        self.store.close()

    def kill(self) -> None:
        """The process dies; the page cache stays."""
        self.disk.die()

    def cut_power(self) -> None:
        self.disk.power_cut(self.random)

    def save(self) -> None:
        """What the broker does every 5 s."""
        self.tables.offsets.save()

    def tend(self) -> None:
        """What the broker does every second."""
        self.run(self.master.tend())
        self.run(self.master.read_keys())

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.tend()

    def clean(self) -> None:
        """Segments that were not written to for an hour are deleted."""
        self.clock.advance(HOUR_S)
        self.store.retention.ask()
        self.store.tick()

    def file(self, name: str) -> TableFile:
        return TableFile(ROOT / name, do_now, self.files)

    # --- What clients do ----------------------------------------------------------------------------------------

    def send(self, body: bytes, queue_id: int = 0, topic: str = TOPIC, **properties: str) -> Placed:
        return self.store.put(Draft(topic, queue_id, body, join(properties), self.clock.now_ms(), HOST))

    def take(self, consumer: str, *, topic: str = TOPIC, **fields: Any) -> tuple[SharePullOutcome, ShareTaken]:
        given: dict[str, Any] = {"count_max": 32, "held": -1, "life": 0} | fields
        query = SharePull(consumer_group=GROUP, topic=topic, consumer=consumer, **given)

        async def take() -> tuple[SharePullOutcome, ShareTaken]:
            shared = self.sharing.take(query, is_first=True)
            if shared.outcome is SharePullOutcome.OLD:
                shared = await self.sharing.read_old(shared)
            return shared.outcome, shared.taken

        return self.run(take())

    def pull(self, consumer: str, *, topic: str = TOPIC, **fields: Any) -> list[InHand]:
        """What a consumer is given now."""
        _, taken = self.take(consumer, topic=topic, **fields)
        records = [record for view in taken.buffers for record in unpack_records(view)]
        assert len(records) == taken.count
        return [
            InHand(
                bytes(record.body),
                topic,
                taken.first + number,
                taken.life,
                record.reconsume_times,
                record.queue_id,
                record.queue_offset,
            )
            for number, record in enumerate(records)
        ]

    def ack(self, consumer: str, first: InHand, last: InHand | None = None) -> None:
        last = last or first
        query = ShareAck(consumer_group=GROUP, topic=first.topic, consumer=consumer)

        async def ack() -> None:
            self.sharing.ack(query, life=first.life, first=first.number, last=last.number)

        self.run(ack())

    def hold(self, consumer: str, message: InHand, hold_ms: int) -> None:
        query = ShareAck(consumer_group=GROUP, topic=message.topic, consumer=consumer)

        async def hold() -> None:
            self.sharing.hold(query, life=message.life, first=message.number, last=message.number, hold_ms=hold_ms)

        self.run(hold())

    def beat(self, consumer: str, topic: str = TOPIC) -> None:
        query = ShareAck(consumer_group=GROUP, topic=topic, consumer=consumer)

        async def beat() -> None:
            self.sharing.beat(query)

        self.run(beat())

    def leave(self, consumer: str, topic: str = TOPIC) -> None:
        query = ShareAck(consumer_group=GROUP, topic=topic, consumer=consumer)

        async def leave() -> None:
            self.sharing.leave(query)

        self.run(leave())

    def has_retries(self) -> bool:
        return self.tables.topics.get(RETRY_TOPIC) is not None

    def states(self) -> dict[str, tuple[str, int]]:
        """By consumer of the topic: its state, and how much it holds."""
        return {
            member.consumer: (member.state, member.held)
            for member in self.sharing.members(GROUP)[0]
            if member.topic == TOPIC
        }


#: A world with these options; it ends with its test (``conftest``).
Make: TypeAlias = Callable[[Options], World]
