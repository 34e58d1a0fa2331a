"""What the simulation compares a store with, its messages in log order; and what differs from seed to seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Self

from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.wire.properties import find
from ternmq.wire.record import Record, Sysflag

ROOT: Final = Path("/store")
TOPICS: Final = ("orders", "%RETRY%g", "long-" + "t" * 130)
QUEUES: Final = [(topic, queue_id) for topic in TOPICS for queue_id in range(2)]
#: What the derived part folds.
PART_TOPICS: Final = frozenset({"%RETRY%g"})
KEYS: Final = ("k0", "k1", "k2", "order-0000123")

#: What a record that was read is compared by.
Facts = tuple[int, int, str, int, int, int, bytes, str]


def facts_of(record: Record) -> Facts:
    return (
        record.log_offset,
        record.size,
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.sysflag,
        bytes(record.body),
        record.properties,
    )


class SimulatedClock:
    """Time for people can be set back, time for durations cannot."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.passed_ms = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.passed_ms / 1000

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.passed_ms += ms


@dataclass(slots=True)
class Entry:
    """One message; its offsets are -1 as long as it is not known whether it was stored."""

    topic: str
    queue_id: int
    body: bytes
    properties: str
    sysflag: int
    log_offset: int = -1
    end_offset: int = -1
    queue_offset: int = -1
    is_deleted: bool = False
    #: Log offset of the record that it closes.
    closes: int | None = None

    @property
    def is_queued(self) -> bool:
        return not self.sysflag & Sysflag.PREPARED

    @property
    def keys(self) -> list[str]:
        return (find(self.properties, "KEYS") or "").split()

    @property
    def facts(self) -> Facts:
        size = self.end_offset - self.log_offset
        places = self.log_offset, size, self.topic, self.queue_id, self.queue_offset
        return *places, self.sysflag, self.body, self.properties


@dataclass(slots=True)
class Model:
    """All messages that were stored and not lost, also those that are expired or deleted."""

    entries: list[Entry] = field(default_factory=list)
    #: Log offset up to which senders may have been told that the disk has it, and from which on the log exists.
    flushed: int = 0
    log_min: int = 0
    #: Messages of a call that did not return: the first of them may have been stored.
    limbo: list[Entry] = field(default_factory=list)
    #: A topic whose deletion did not return: it is gone, or all of it is there.
    limbo_topic: str = ""

    def queue(self, topic: str, queue_id: int) -> list[Entry]:
        """Every message that the queue has had, by queue offset."""
        return [
            entry
            for entry in self.entries
            if entry.topic == topic and entry.queue_id == queue_id and entry.is_queued and not entry.is_deleted
        ]

    def with_key(self, topic: str, key: str) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.topic == topic and entry.log_offset >= self.log_min and key in entry.keys
        ]

    def delete(self, topic: str) -> None:
        for entry in self.entries:
            if entry.topic == topic:
                entry.is_deleted = True


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed."""

    config: StoreConfig
    page_bytes: int
    names_in_order: bool
    capacity_bytes: int | None
    #: The clock is set, forward and back.
    clock_jumps: bool
    #: A sync takes up to this.
    sync_ms_max: int

    @classmethod
    def choose(cls, random: Random) -> Self:
        capacity_bytes = random.choice((None, None, 60_000))
        config = StoreConfig(
            store_path_root_dir=ROOT,
            mapped_file_size_commit_log=random.choice((4096, 4096, 8192, 20_000)),
            mapped_file_size_consume_queue=random.choice((100, 400, 6000)),
            enable_consume_queue_ext=random.random() < 0.2,
            mapped_file_size_consume_queue_ext=random.choice((100, 1000)),
            max_hash_slot_num=random.choice((3, 50)),
            max_index_num=random.choice((10, 100)),
            message_index_enable=random.random() < 0.9,
            flush_disk_type=random.choice((FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH)),
            flush_consume_queue_thorough_interval=random.choice((1, 5_000, 60_000)),
            max_message_size=2000,
            # On a full disk segments may go before the queues of their records are synced (``MessageStore._needed``).
            file_reserved_time=1 if capacity_bytes is None else 1000,
            clean_file_forcibly_enable=False,
        )
        return cls(
            config=config,
            page_bytes=random.choice((512, 512, 4096)),
            names_in_order=random.random() < 0.5,
            capacity_bytes=capacity_bytes,
            clock_jumps=random.random() < 0.3,
            sync_ms_max=random.choice((0, 0, 3000)),
        )
