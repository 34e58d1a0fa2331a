"""Dispatch: everything that is derived from the log is fed here, record by record, in log order (C5).

The log is the truth. A *derived* part (queues, index, later the schedule, pop check points, …) is a fold over its
records: it can be thrown away and folded again, and it never knows more than the log. ``Fact`` is what a fold learns
of a record. There are two ways to one::

    put      ── the draft's own values ride along, nothing is decoded ──┐
                                                                        ├─▶ queues ▶ index ▶ further parts ▶ on_arrival
    recovery ── the record is read back and decoded ────────────────────┘

Both give the same facts, so after any crash a fold of the log equals what was there before. Fresh records of a
plain log are dispatched in ``put`` itself: on the same thread, after the append, before the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from ternmq.message import Property
from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.deleted import DeletedTopics
from ternmq.store.index import WAITING_MAX, Index
from ternmq.store.light import light_places
from ternmq.store.queue import ConsumeQueue
from ternmq.store.queue_entry import ENTRY
from ternmq.store.queues import ConsumeQueues
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import find
from ternmq.wire.record import Record, Sysflag

#: Tags whose hash is kept; beyond that the table starts over. Few topics use more than a handful.
TAGS_MAX: Final = 4096

#: A property as it stands in the text, with the end of the one before: whole names only.
_TAGS: Final = f"\x02{Property.TAGS}\x01"
_TAGS_FIRST: Final = f"{Property.TAGS}\x01"

#: Set in a prepared half and in a rollback, which have no queue entry; a global is quicker than a class's attribute.
_NOT_QUEUED: Final = Sysflag.PREPARED
_TRANSACTION: Final = Sysflag.TRANSACTION_MASK
_ROLLBACK: Final = Sysflag.ROLLBACK
_pack_entry: Final = ENTRY.pack


#: Told of a new entry: topic, queue id, its queue offset + 1, tags code, properties. These are None where it is told of
#: several messages at once: whoever filters by them has to look for himself.
OnArrival: TypeAlias = Callable[[str, int, int, int, str | None], None]


@dataclass(slots=True)
class Fact:
    """What a fold learns of one record; the record itself lies in the log at ``log_offset``."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    sysflag: int
    store_time_ms: int
    tags_code: int
    prepared_transaction_offset: int
    properties: str

    @property
    def is_queued(self) -> bool:
        """Whether the record has a queue entry: a prepared half and a rollback, which has that bit, too, have none."""
        return not self.sysflag & Sysflag.PREPARED

    @property
    def is_indexed(self) -> bool:
        return self.sysflag & Sysflag.TRANSACTION_MASK != Sysflag.ROLLBACK


class Derived(Protocol):
    """A further part that is derived from the log. Its folds run on the store's thread and must be quick."""

    @property
    def folded(self) -> int:
        """Log offset up to which its saved state goes; the store starts feeding it from there."""
        ...

    def fold(self, fact: Fact) -> None:
        """Take in the next record."""
        ...

    def cut(self, log_offset: int) -> None:
        """Forget what came from ``log_offset`` on: the log ends there."""
        ...

    def save(self) -> None:
        """Make the state durable, if it has any; called when the store closes."""
        ...

    @property
    def needed(self) -> int | None:
        """Log offset from which on it cannot do without the records yet: retention waits. None: it can."""
        ...


class Dispatcher:
    """Feeds the derived parts of one store."""

    __slots__ = ("_delays_ms", "_deleted", "_index", "_queues", "_tags", "_with_units", "deriveds", "on_arrival")

    def __init__(
        self, queues: ConsumeQueues, index: Index | None, deleted: DeletedTopics, *, delays_ms: tuple[int, ...]
    ) -> None:
        self._queues = queues
        self._index = index
        self._deleted = deleted
        self._delays_ms = delays_ms
        self._tags: dict[str, int] = {}
        #: Whether each entry gets a unit beside it (C3), for which a fact is needed.
        self._with_units = queues.exts is not None and queues.exts.writes
        self.deriveds: list[Derived] = []
        self.on_arrival: OnArrival | None = None

    def fresh(
        self,
        queue: ConsumeQueue,
        properties: str,
        sysflag: int,
        log_offset: int,
        size: int,
        queue_offset: int,
        store_time_ms: int,
        prepared_transaction_offset: int,
    ) -> None:
        """Take in the record that was just appended. Hot: no decoding, no object but for further parts."""
        tags_code = 0
        at = properties.rfind(_TAGS)
        if at >= 0 or properties.startswith(_TAGS_FIRST):
            at += len(_TAGS)  # also right for -1, where the name begins the text and lacks the character before it
            end = properties.find("\x02", at)
            tags = properties[at:end] if end >= 0 else properties[at:]
            code = self._tags.get(tags)
            tags_code = code if code is not None else self._learn_tags(tags, properties)
        if queue.topic == SCHEDULE_TOPIC:
            tags_code = due_time(properties, store_time_ms, self._delays_ms) or tags_code
        with_units = self._with_units
        if with_units or self.deriveds:
            fact = Fact(
                queue.topic,
                queue.queue_id,
                queue_offset,
                log_offset,
                size,
                sysflag,
                store_time_ms,
                tags_code,
                prepared_transaction_offset,
                properties,
            )
        if not sysflag & _NOT_QUEUED:
            if with_units:
                queue.add(fact)
            else:
                queue.append(log_offset, size, tags_code)
        if self._index is not None and sysflag & _TRANSACTION != _ROLLBACK:
            waiting = self._index.waiting
            waiting.append((queue.topic, properties, log_offset, store_time_ms))
            if len(waiting) >= WAITING_MAX:
                self._index.overflow()
        if self.deriveds:
            for derived in self.deriveds:
                derived.fold(fact)
        if self.on_arrival is not None and not sysflag & _NOT_QUEUED:
            self.on_arrival(queue.topic, queue.queue_id, queue_offset + 1, tags_code, properties)

    def fresh_batch(
        self,
        queue: ConsumeQueue,
        properties: list[str],
        more_properties: str,
        sizes: list[int],
        log_offset: int,
        sysflag: int,
        store_time_ms: int,
    ) -> list[int]:
        """Take in records that were just appended to one queue, back to back; returns their log offsets.

        ``more_properties`` stand behind those of each, and hold neither tags nor keys.
        """
        topic, first = queue.topic, queue.next_offset
        known_tags, waiting = self._tags, self._index.waiting if self._index is not None else []
        log_offsets: list[int] = []
        tags_codes: list[int] = []
        entries: list[bytes] = []
        for text, size in zip(properties, sizes, strict=True):
            tags_code = 0
            at = text.rfind(_TAGS)
            if at >= 0 or text.startswith(_TAGS_FIRST):
                at += len(_TAGS)
                end = text.find("\x02", at)
                tags = text[at:end] if end >= 0 else text[at:]
                code = known_tags.get(tags)
                tags_code = code if code is not None else self._learn_tags(tags, text)
            tags_codes.append(tags_code)
            log_offsets.append(log_offset)
            entries.append(_pack_entry(log_offset, size, tags_code))
            waiting.append((topic, text, log_offset, store_time_ms))
            log_offset += size
        facts: list[Fact] = []
        if self._with_units or self.deriveds:
            records = zip(properties, log_offsets, sizes, tags_codes, strict=True)
            facts = [
                Fact(
                    topic,
                    queue.queue_id,
                    first + number,
                    at,
                    size,
                    sysflag,
                    store_time_ms,
                    code,
                    0,
                    text + more_properties,
                )
                for number, (text, at, size, code) in enumerate(records)
            ]
        if self._with_units:
            for fact in facts:
                queue.add(fact)
        else:
            queue.extend(b"".join(entries), log_offset)
        if self._index is not None and len(waiting) >= WAITING_MAX:
            self._index.overflow()
        for derived in self.deriveds:
            for fact in facts:
                derived.fold(fact)
        if self.on_arrival is not None:
            # Who waits is told once for all messages of a tag.
            for tags_code in dict.fromkeys(tags_codes):
                self.on_arrival(topic, queue.queue_id, queue.next_offset, tags_code, None)
        return log_offsets

    def fact(self, record: Record) -> Fact:
        """What a record that was read back tells: the same as when it was fresh."""
        properties = record.properties
        tags = find(properties, Property.TAGS)
        tags_code = java_hash(tags) if tags else 0
        if record.topic == SCHEDULE_TOPIC:
            tags_code = due_time(properties, record.store_time_ms, self._delays_ms) or tags_code
        return Fact(
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.log_offset,
            record.size,
            record.sysflag,
            record.store_time_ms,
            tags_code,
            record.prepared_transaction_offset,
            properties,
        )

    def refold(self, record: Record) -> None:
        """Take in a record from the log. Parts that have it already leave it."""
        fact = self.fact(record)
        if not self._deleted.is_deleted(record.topic, record.log_offset):
            self._queues.fold(fact)
            if self._queues.has_light:
                for topic, queue_offset in light_places(record.properties):
                    self._queues.fold(replace(fact, topic=topic, queue_id=0, queue_offset=queue_offset))
        if self._index is not None:
            self._index.fold(fact)
        for derived in self.deriveds:
            if derived.folded <= record.log_offset:
                derived.fold(fact)

    def _learn_tags(self, tags: str, properties: str) -> int:
        if not tags:
            tags = find(properties, Property.TAGS) or ""
        if len(self._tags) >= TAGS_MAX:
            self._tags.clear()
        code = self._tags[tags] = java_hash(tags)
        return code


def delay_level(properties: str, level_max: int) -> int:
    """The delay level of a message (I1): one beyond the last is the last; 0 without one, or if it is no number."""
    text = find(properties, Property.DELAY) or ""
    # Ten digits are as many as Java's number has.
    return min(int(text), level_max) if text.isascii() and text.isdigit() and len(text) <= 10 else 0


def due_time(properties: str, store_time_ms: int, delays_ms: tuple[int, ...]) -> int:
    """When a message of the schedule topic is due, which its entry holds in place of the tags code (C2); 0: never."""
    level = delay_level(properties, len(delays_ms))
    return store_time_ms + delays_ms[level - 1] if level else 0
