"""Records of a directory, chosen by what is in them.

A whole queue is read along its entries, everything else by one scan of the log, past damaged places. Keys are compared
with those in the record, so a broken index hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ternmq.message import Property
from ternmq.store.inspect.scan import LogScan, OnScanned
from ternmq.store.inspect.view import StoreView
from ternmq.wire.properties import find
from ternmq.wire.record import Record


@dataclass(slots=True, frozen=True, kw_only=True)
class RecordChoice:
    """Which records. ``from_offset`` is a queue offset if topic and queue are given, else a log offset."""

    topic: str | None = None
    queue_id: int | None = None
    from_offset: int | None = None
    key: str | None = None
    count_max: int | None = None

    def takes(self, record: Record) -> bool:
        """Whether a record is one of those."""
        if self.topic is not None and record.topic != self.topic:
            return False
        if self.queue_id is not None and record.queue_id != self.queue_id:
            return False
        return self.key is None or self.key in _keys(record)


def records(view: StoreView, wanted: RecordChoice, *, progress: OnScanned | None = None) -> Iterator[Record]:
    """The records that are wanted, in the order of the log. Bodies are views."""
    count = 0
    for record in _candidates(view, wanted, progress):
        if count == wanted.count_max:
            return
        if wanted.takes(record):
            yield record
            count += 1


def _candidates(view: StoreView, wanted: RecordChoice, progress: OnScanned | None) -> Iterator[Record]:
    if wanted.topic is not None and wanted.queue_id is not None:
        queue = view.queues.table.get((wanted.topic, wanted.queue_id))
        if queue is not None:
            begin = max(wanted.from_offset or 0, view.first_offset(queue))
            for queue_offset in range(begin, queue.next_offset):
                entry = queue.entry(queue_offset)
                record = view.record(entry[0]) if entry is not None else None
                if record is not None:
                    yield record
        return
    begin = max(wanted.from_offset or 0, view.log.begin)
    yield from LogScan(view.log, begin, next_data=view.next_data, progress=progress)


def _keys(record: Record) -> list[str]:
    """The keys by which a broker finds a record: its unique key, and each of its own."""
    unique_key, keys = find(record.properties, Property.UNIQUE_KEY), find(record.properties, Property.KEYS)
    return [*([unique_key] if unique_key else []), *(keys.split(" ") if keys else [])]
