"""Dispatch: everything that is derived from the log is fed here, record by record, in log order (C5).

The log is the truth. A *derived* part (queues, index, and those of ``store.derived.parts``) is a fold over its records:
it can be thrown away and folded again, and it never knows more than the log. ``Fact`` is what a fold learns of a
record. There are two ways to one::

    put      ── the draft's own values ride along, nothing is decoded ──┐
                                                                        ├─▶ queues ▶ index ▶ further parts ▶ on_arrival
    recovery ── the record is read back and decoded ────────────────────┘

Both give the same facts, so after any crash a fold of the log equals what was there before. Only a *confirmed* record
is dispatched. Fresh records of a plain log are confirmed with the append and dispatched in ``put`` itself: on the same
thread, before the answer. Those of another log wait until it confirms them (``store.log.pending``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from ternmq.message import Property
from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.derived.fact import Fact, Fresh
from ternmq.store.derived.index import WAITING_MAX, Index
from ternmq.store.derived.light import light_places
from ternmq.store.derived.parts import Parts
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.durable.deleted import DeletedTopics
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES
from ternmq.wire.properties import find
from ternmq.wire.record import Record, Sysflag, unpack_record
from ternmq.wire.tags import TagsCodes

if TYPE_CHECKING:
    from ternmq.store.log.run import SealedRun

#: Set in a prepared half and in a rollback, which have no queue entry; a global is quicker than a class's attribute.
_NOT_QUEUED: Final = Sysflag.PREPARED
_TRANSACTION: Final = Sysflag.TRANSACTION_MASK
_ROLLBACK: Final = Sysflag.ROLLBACK
_pack_entry: Final = ENTRY.pack
#: A text without this has neither of the two properties that are indexed.
_ANY_KEY: Final = "KEY"
assert all(_ANY_KEY in name for name in (Property.UNIQUE_KEY, Property.KEYS))


#: Told of a new entry: topic, queue id, its queue offset + 1, tags code, properties. These are None where it is told of
#: several messages at once: a consumer that filters by them has to look by itself.
OnArrival: TypeAlias = Callable[[str, int, int, int, str | None], None]


class Dispatcher:
    """Feeds the derived parts of one store."""

    __slots__ = (
        "_delays_ms",
        "_deleted",
        "_index",
        "_listened",
        "_queues",
        "_tags_code",
        "_with_units",
        "on_arrival",
        "parts",
    )

    def __init__(
        self,
        queues: ConsumeQueues,
        index: Index | None,
        deleted: DeletedTopics,
        *,
        delays_ms: tuple[int, ...],
        parts: Parts | None = None,
        on_arrival: OnArrival | None = None,
        listened: Container[str] | None = None,
    ) -> None:
        """``on_arrival`` need not be told of topics that are not ``listened`` to, if that is known."""
        self._queues = queues
        self._index = index
        self._deleted = deleted
        self._delays_ms = delays_ms
        self._tags_code = TagsCodes().of_text
        #: Whether each entry gets a unit beside it (C3), for which a fact is needed.
        self._with_units = queues.exts is not None and queues.exts.writes
        #: Further parts that take in records, if there are any.
        self.parts = parts or None
        self.on_arrival = on_arrival
        self._listened = listened

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
        topic = queue.topic
        tags_code = self._tags_code(properties)
        if queue.has_due_times:
            tags_code = due_time(properties, store_time_ms, self._delays_ms) or tags_code
        # In a commit, the offset names its half, which is not closed by it (``Draft.closes``).
        closes = prepared_transaction_offset and not sysflag & _TRANSACTION
        fact = None
        if queue.needs_facts or closes:
            fact = Fact(
                topic,
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
            if self._with_units:
                self.confirmed(fact)
                return
        is_queued = not sysflag & _NOT_QUEUED
        if is_queued:
            queue.append(log_offset, size, tags_code)
        index = self._index
        if index is not None and sysflag & _TRANSACTION != _ROLLBACK:
            waiting = index.waiting
            waiting.append((topic, properties, log_offset, store_time_ms))
            if len(waiting) >= WAITING_MAX:
                index.overflow()
        if fact is not None and self.parts is not None:
            self.parts.fold(fact)
        if is_queued and self.on_arrival is not None and (self._listened is None or topic in self._listened):
            self.on_arrival(topic, queue.queue_id, queue_offset + 1, tags_code, properties)

    def fresh_all(self, records: Sequence[Fresh]) -> None:
        """Take in records of any queues that were just appended: ``fresh`` for each, in a loop of its own."""
        if self._with_units or self._index is None:
            for record in records:
                self.fresh(*record)
            return
        index, parts, on_arrival, get_tags_code = self._index, self.parts, self.on_arrival, self._tags_code
        waiting = index.waiting
        for queue, properties, sysflag, log_offset, size, queue_offset, store_time_ms, prepared_offset in records:
            if queue.has_due_times or sysflag & _TRANSACTION:
                self.fresh(queue, properties, sysflag, log_offset, size, queue_offset, store_time_ms, prepared_offset)
                continue
            topic, tags_code = queue.topic, get_tags_code(properties)
            queue.append(log_offset, size, tags_code)
            waiting.append((topic, properties, log_offset, store_time_ms))
            if parts is not None and (queue.needs_facts or prepared_offset):
                parts.fold(
                    Fact(
                        topic,
                        queue.queue_id,
                        queue_offset,
                        log_offset,
                        size,
                        sysflag,
                        store_time_ms,
                        tags_code,
                        prepared_offset,
                        properties,
                    )
                )
            if on_arrival is not None:
                on_arrival(topic, queue.queue_id, queue_offset + 1, tags_code, properties)
        if len(waiting) >= WAITING_MAX:
            index.overflow()

    def fresh_batch(
        self,
        queue: ConsumeQueue,
        properties: list[str],
        more_properties: str,
        sizes: list[int],
        log_offsets: list[int],
        sysflag: int,
        store_time_ms: int,
    ) -> None:
        """Take in records that were just appended to one queue.

        ``more_properties`` stand behind those of each, and hold neither tags nor keys.
        """
        topic, first = queue.topic, queue.next_offset
        get_tags_code, waiting = self._tags_code, self._index.waiting if self._index is not None else []
        tags_codes: list[int] = []
        entries: list[bytes] = []
        for text, log_offset, size in zip(properties, log_offsets, sizes, strict=True):
            tags_code = get_tags_code(text)
            tags_codes.append(tags_code)
            entries.append(_pack_entry(log_offset, size, tags_code))
            # Op records of transactions have neither a unique key nor keys.
            if _ANY_KEY in text:
                waiting.append((topic, text, log_offset, store_time_ms))
        facts: list[Fact] = []
        if queue.needs_facts:
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
            queue.extend(b"".join(entries), log_offsets[-1] + sizes[-1])
        if self._index is not None and len(waiting) >= WAITING_MAX:
            self._index.overflow()
        if self.parts is not None:
            for fact in facts:
                self.parts.fold(fact)
        if self.on_arrival is not None:
            # Consumers are told once for all messages of a tag.
            for tags_code in dict.fromkeys(tags_codes):
                self.on_arrival(topic, queue.queue_id, queue.next_offset, tags_code, None)

    def fresh_run(self, run: SealedRun) -> None:
        """Take in records of several queues that were just appended, or just confirmed, by what a kernel made of them.
        Not for queues whose entries have due times or units beside them."""
        parts = run.parts
        ConsumeQueue.extend_all(parts)
        if self._index is not None and run.keys:
            self._index.add_made(run.keys, run.last_offset)
        if self.parts is not None:
            for queue, entries, log_end, _, _ in parts:
                if queue.needs_facts:
                    begin = ENTRY.unpack_from(entries)[0]
                    with self.parts.view(begin, log_end - begin) as data:
                        self.fold_run(queue.topic, entries, data, begin)
            if run.closings is not None:
                self.parts.fold_closings(run.closings)
        if self.on_arrival is not None:
            on_arrival, listened = self.on_arrival, self._listened
            for queue, _, _, _, tags in parts:
                for tags_code, end_offset in tags if listened is None or queue.topic in listened else ():
                    on_arrival(queue.topic, queue.queue_id, end_offset, tags_code, None)

    def fold_run(self, topic: str, entries: bytes, data: memoryview, begin: int) -> None:
        """Give records to the further parts, by their new queue entries. ``data`` has the log from ``begin`` on."""
        parts = self.parts
        assert parts is not None, "no queue needs facts without further parts"
        while entries:
            entries = entries[parts.fold_run(topic, entries, data, begin) * ENTRY_BYTES :]
            if entries:
                # One that a part has to look at by itself.
                log_offset, size, _ = ENTRY.unpack_from(entries)
                at = log_offset - begin
                with data[at : at + size] as record:
                    parts.fold(self.fact(unpack_record(record)), record)
                entries = entries[ENTRY_BYTES:]

    def fact(self, record: Record) -> Fact:
        """What a record that was read back tells: the same as when it was fresh."""
        properties = record.properties
        return Fact(
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.log_offset,
            record.size,
            record.sysflag,
            record.store_time_ms,
            self.entry_code(record.topic, properties, record.store_time_ms),
            record.prepared_transaction_offset,
            properties,
        )

    def entry_code(self, topic: str, properties: str, store_time_ms: int) -> int:
        """What the queue entry of a record has as its tags code."""
        tags_code = self._tags_code(properties)
        if topic == SCHEDULE_TOPIC:
            tags_code = due_time(properties, store_time_ms, self._delays_ms) or tags_code
        return tags_code

    def is_deleted(self, topic: str, log_offset: int) -> bool:
        """Whether the topic of the record at ``log_offset`` was deleted after it was stored."""
        return self._deleted.is_deleted(topic, log_offset)

    def confirmed(self, fact: Fact, record: memoryview | None = None) -> None:
        """Take in a record that was appended, perhaps some time ago. Without ``record`` the log has its bytes."""
        self.fold(fact, record)
        if self.on_arrival is not None and fact.is_queued and not self.is_deleted(fact.topic, fact.log_offset):
            self.on_arrival(fact.topic, fact.queue_id, fact.queue_offset + 1, fact.tags_code, fact.properties)

    def fold(self, fact: Fact, record: memoryview | None) -> None:
        """Take in a record from the log. Parts that have it already leave it."""
        if not self.is_deleted(fact.topic, fact.log_offset):
            self._queues.fold(fact)
            if self._queues.has_light:
                for topic, queue_offset in light_places(fact.properties):
                    self._queues.fold(replace(fact, topic=topic, queue_id=0, queue_offset=queue_offset))
        if self._index is not None:
            self._index.fold(fact)
        if self.parts is not None:
            self.parts.fold(fact, record)


def delay_level(properties: str, level_max: int) -> int:
    """The delay level of a message (I1): one beyond the last is the last; 0 without one, or if it is not a number."""
    text = find(properties, Property.DELAY) or ""
    # Ten digits are as many as Java's number has.
    return min(int(text), level_max) if text.isascii() and text.isdigit() and len(text) <= 10 else 0


def due_time(properties: str, store_time_ms: int, delays_ms: tuple[int, ...]) -> int:
    """When a message of the schedule topic is due, which its entry holds in place of the tags code (C2); 0: never."""
    level = delay_level(properties, len(delays_ms))
    return store_time_ms + delays_ms[level - 1] if level else 0
