"""What waits, for tools (I2): counts by topic and hour, and single records.

Counts of all topics are kept by the schedule log. The hours of one topic are counted by reading the index of each hour,
in slices; a topic is told there by its hash, so two topics with one hash share their counts (one pair in four billion).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from ternmq.delay.due import HOUR_MS
from ternmq.delay.hour_files import HourFiles
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.errors import CorruptRecord
from ternmq.message import Property
from ternmq.wire import properties as props
from ternmq.wire.ids import java_hash
from ternmq.wire.record import unpack_record

#: Entries read in one turn of the loop.
_SLICE: Final = 5_000
#: Bytes of records in one answer.
PEEK_BYTES_MAX: Final = 1 << 20
PEEK_COUNT_MAX: Final = 256
_real_topic = props.getter(Property.REAL_TOPIC)


class Overview:
    """All methods belong to the broker's loop."""

    def __init__(self, schedule: ScheduleLog) -> None:
        self._schedule = schedule

    def topics(self) -> dict[str, int]:
        """How many messages of each topic wait."""
        return dict(sorted(self._schedule.topics_waiting.items()))

    def hours(self) -> dict[int, int]:
        """How many messages wait for each hour, by its begin in ms."""
        return {files.hour * HOUR_MS: files.waiting for files in self._schedule.hours() if files.waiting > 0}

    async def hours_of(self, topic: str) -> dict[int, int]:
        """The same for one topic."""
        found: dict[int, int] = {}
        topic_hash = java_hash(topic)
        for files in self._schedule.hours():
            closed = set(files.closed(0, files.closed_count))
            count = 0
            for first in range(0, files.entry_count, _SLICE):
                count += sum(
                    entry is not None and entry.topic_hash == topic_hash and entry.log_offset not in closed
                    for entry in files.entries(first, _SLICE)
                )
                await asyncio.sleep(0)
            if count:
                found[files.hour * HOUR_MS] = count
        return found

    async def peek(self, topic: str, *, begin_ms: int, count_max: int) -> list[bytes]:
        """Records of a topic that wait, by hour and in an hour in the order in which they came."""
        found: list[bytes] = []
        count_max, bytes_left = min(count_max, PEEK_COUNT_MAX), PEEK_BYTES_MAX
        for files in self._schedule.hours():
            if (files.hour + 1) * HOUR_MS <= begin_ms:
                continue
            closed = set(files.closed(0, files.closed_count))
            for first in range(0, files.entry_count, _SLICE):
                for record in self._matching(files, first, topic, begin_ms, closed):
                    bytes_left -= len(record)
                    if len(found) >= count_max or (bytes_left < 0 and found):
                        return found
                    found.append(record)
                await asyncio.sleep(0)
        return found

    def _matching(self, files: HourFiles, first: int, topic: str, begin_ms: int, closed: set[int]) -> Iterator[bytes]:
        """Read one by one: all of a slice may be more than the memory has."""
        topic_hash = java_hash(topic)
        records = (
            files.record(entry)
            for entry in files.entries(first, _SLICE)
            if entry is not None
            and entry.topic_hash == topic_hash
            and entry.due_ms >= begin_ms
            and entry.log_offset not in closed
        )
        return (record for record in records if _is_of(record, topic))


def _is_of(record: bytes, topic: str) -> bool:
    try:
        return _real_topic(unpack_record(record).properties) == topic
    except CorruptRecord:
        return False
