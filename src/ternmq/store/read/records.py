"""Records of a queue one by one, for folds of internal topics; and where a new group begins in a queue (F6, F9, R1)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from ternmq.errors import CorruptRecord
from ternmq.store.read.query import GetResult, GetStatus
from ternmq.wire.record import Record, unpack_place, unpack_record

log = logging.getLogger(__name__)

#: Records read at once.
_COUNT: Final = 32


class ReadStore(Protocol):
    """What these need of the message store."""

    def get(self, topic: str, queue_id: int, queue_offset: int, *, count_max: int) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


def queue_records(
    store: ReadStore, topic: str, queue_id: int, queue_offset: int
) -> Iterator[tuple[int, Record | None]]:
    """All records from ``queue_offset`` on, each with the queue offset behind it; None where nothing can be read."""
    while True:
        found = store.get(topic, queue_id, queue_offset, count_max=_COUNT)
        if found.status is not GetStatus.FOUND:
            if found.next_offset <= queue_offset:
                return
            queue_offset = found.next_offset
            yield queue_offset, None
            continue
        for view in found.buffers:
            at = 0
            while at < len(view):
                try:
                    record = unpack_record(view, at)
                except CorruptRecord as error:
                    # The log's own recovery has let it pass; it must not keep the broker from starting.
                    log.error("skipped damaged records of %s: %s", topic, error)
                    break
                at += record.size
                yield record.queue_offset + 1, record
        queue_offset = found.next_offset
        yield queue_offset, None


def offsets_of(buffers: Sequence[memoryview]) -> list[int]:
    """Queue offsets of records side by side, without decoding them."""
    offsets: list[int] = []
    for view in buffers:
        at = 0
        while at < len(view):
            size, queue_offset = unpack_place(view, at)
            offsets.append(queue_offset)
            at += size
    return offsets


def start_offset(store: ReadStore, topic: str, queue_id: int, *, from_last: bool) -> int:
    """Where a group begins that is new to a queue: at its first message, or with ``from_last`` behind its last.

    A young queue, of which nothing was deleted and whose first message is still in memory, is read from its first
    message in any case: the group may have been started together with the topic (as for pulls, F6).
    """
    first = store.min_offset(topic, queue_id)
    if not from_last or (first <= 0 and not store.get(topic, queue_id, 0, count_max=1).is_behind):
        return first
    return store.max_offset(topic, queue_id)
