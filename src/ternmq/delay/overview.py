"""What waits, for tools (I2): counts by topic and hour, and single records.

Counts of all topics are kept by the schedule log. The hours of one topic are counted by reading the index of each hour,
in slices; a topic is told there by its hash, so two topics with one hash share their counts (one pair in four billion).
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from typing import Final

from ternmq.delay.due import HOUR_MS, slot_of
from ternmq.delay.hour_files import HourFiles
from ternmq.delay.rocketmq_timer import pack_check_point
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.errors import CorruptRecord
from ternmq.message import Property
from ternmq.wire import properties as props
from ternmq.wire.ids import java_hash
from ternmq.wire.record import unpack_record

#: Entries, or closing marks, read in one turn of the loop: some 3 ms.
_SLICE: Final = 5_000
#: Bytes of records in one answer, and read in one turn.
PEEK_BYTES_MAX: Final = 1 << 20
PEEK_COUNT_MAX: Final = 256
#: What reading a record costs besides its own bytes.
_READ_BYTES: Final = 4_096
_real_topic = props.getter(Property.REAL_TOPIC)


class Overview:
    """All methods belong to the broker's loop."""

    def __init__(self, schedule: ScheduleLog) -> None:
        self._schedule = schedule
        #: One search at a time: each may need some bytes for every message of an hour.
        self._searching = asyncio.Lock()

    def topics(self) -> dict[str, int]:
        """How many messages of each topic wait."""
        return dict(sorted(self._schedule.topics_waiting.items()))

    def hours(self) -> dict[int, int]:
        """How many messages wait for each hour, by its begin in ms."""
        return {files.hour * HOUR_MS: files.waiting for files in self._schedule.hours() if files.waiting > 0}

    def timer_check(self, queue_offset: int) -> bytes:
        """How far messages are delivered, for a slave of RocketMQ; ``queue_offset`` is the end of the timer topic."""
        return pack_check_point(slot_of(max(self._schedule.delivered_ms, 1)), queue_offset)

    async def hours_of(self, topic: str) -> dict[int, int]:
        """The same for one topic."""
        async with self._searching:
            return await self._hours_of(topic)

    async def _hours_of(self, topic: str) -> dict[int, int]:
        found: dict[int, int] = {}
        topic_hash = java_hash(topic)
        for files in self._schedule.hours():
            if files.waiting <= 0:
                continue
            closed, count = await _closed(files), 0
            for first in range(0, files.entry_count, _SLICE):
                count += sum(
                    entry is not None
                    and entry.topic_hash == topic_hash
                    and not (number < len(closed) and closed[number])
                    for number, entry in enumerate(files.entries(first, _SLICE), first)
                )
                await asyncio.sleep(0)
            if count:
                found[files.hour * HOUR_MS] = count
        return found

    async def peek(self, topic: str, *, begin_ms: int, count_max: int) -> list[bytes]:
        """Records of a topic that wait, by hour and in an hour in the order in which they came."""
        async with self._searching:
            return await self._peek(topic, begin_ms=begin_ms, count_max=count_max)

    async def _peek(self, topic: str, *, begin_ms: int, count_max: int) -> list[bytes]:
        found: list[bytes] = []
        topic_hash, count_max = java_hash(topic), min(count_max, PEEK_COUNT_MAX)
        bytes_left = turn_bytes = PEEK_BYTES_MAX
        for files in self._schedule.hours():
            if (files.hour + 1) * HOUR_MS <= begin_ms or files.waiting <= 0:
                continue
            closed = await _closed(files)
            for first in range(0, files.entry_count, _SLICE):
                for number, entry in enumerate(files.entries(first, _SLICE), first):
                    if (
                        entry is None
                        or entry.topic_hash != topic_hash
                        or entry.due_ms < begin_ms
                        or (number < len(closed) and closed[number])
                    ):
                        continue
                    # One by one: all of a slice may be more than the memory has.
                    turn_bytes -= entry.size + _READ_BYTES
                    if turn_bytes < 0:
                        turn_bytes = PEEK_BYTES_MAX
                        await asyncio.sleep(0)
                    record = files.record(entry)
                    if not _is_of(record, topic):
                        continue
                    bytes_left -= len(record)
                    if len(found) >= count_max or (bytes_left < 0 and found):
                        return found
                    found.append(record)
                await asyncio.sleep(0)
        return found


async def _closed(files: HourFiles) -> bytearray:
    """By number of an entry, whether it is closed. Made in slices, with 9 bytes for each entry; none without marks."""
    offsets = array("q")
    if not files.closed_count:
        return bytearray()
    while len(offsets) < files.entry_count:
        offsets += files.log_offsets(len(offsets), _SLICE)
        await asyncio.sleep(0)
    closed, marks = bytearray(len(offsets)), 0
    while marks < files.closed_count:
        some = files.closed(marks, _SLICE)
        marks += len(some)
        for log_offset in some:
            number = bisect_left(offsets, log_offset)
            if number < len(closed) and offsets[number] == log_offset:
                closed[number] = 1
        await asyncio.sleep(0)
    return closed


def _is_of(record: bytes, topic: str) -> bool:
    try:
        return _real_topic(unpack_record(record).properties) == topic
    except CorruptRecord:
        return False
