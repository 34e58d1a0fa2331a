"""Taking back a message before its time (I2).

A recall is a record, too: it stands in the timer topic and *closes* the message that waits (``schedule_log``). To a
RocketMQ that gets the directory it says the same in its own words: TIMER_DEL_UNIQKEY names the unique key of a message
in the same slot.

A handle (``wire.recall``) that was made here names the log offset of the waiting record, which is found by bisection;
one that was not is looked for in its hour, in slices. An hour may have millions of messages, so there is one search at
a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ternmq import names
from ternmq.delay.due import HOUR_MS
from ternmq.delay.hour_files import EntryKind, HourFiles, IndexLine
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.env import Clock
from ternmq.errors import CorruptRecord, IllegalOperation, InvalidHandle, SystemBusy
from ternmq.message import Property
from ternmq.store.log.draft import FIRST, Draft
from ternmq.wire import properties as props
from ternmq.wire.ids import java_hash
from ternmq.wire.recall import RecallHandle, parse_handle
from ternmq.wire.record import HOST_V4_BYTES, Record, unpack_record

#: Why a record closes another without delivering it.
RECALLED: Final = "_RECALL_TAG_"
SETTLED: Final = "_SETTLED_TAG_"
#: Entries looked at in one turn of the loop.
_SLICE: Final = 5_000
#: Bytes of records read in one turn, and what each record costs besides its own.
_SLICE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 4_096
#: Closed messages of one hour that are kept in memory for recalls; beyond, each recall reads what it needs.
_CLOSED_MAX: Final = 200_000
#: Closing marks that such a recall reads in one turn: some 2 ms.
_MARKS: Final = 50_000
#: Recalls that wait while another one searches.
_WAITING_MAX: Final = 1_000
#: Of a key that a closing record repeats. Clients make keys of 32.
_KEY_LENGTH_MAX: Final = 1_000
_NO_HOST: Final = bytes(HOST_V4_BYTES)
_real_topic = props.getter(Property.REAL_TOPIC)
_unique_key = props.getter(Property.UNIQUE_KEY)


def closing_draft(
    entry: IndexLine, record: Record | None, why: str, *, now_ms: int, born_host: bytes = _NO_HOST
) -> Draft:
    """The record that closes ``entry`` without delivering it; ``record`` is what waits, as far as it can be read."""
    properties = record.properties if record is not None else ""
    key = _unique_key(properties) or str(entry.log_offset)
    if len(key) > _KEY_LENGTH_MAX:
        # It stands here twice, and this record must be one that can be stored. What counts is ``closes``.
        key = str(entry.log_offset)
    draft = Draft(
        names.WHEEL_TOPIC,
        0,
        b"0",
        props.join(
            {
                Property.TAGS: why,
                Property.UNIQUE_KEY: key,
                # The key of a message only if that is not to come from RocketMQ, either.
                Property.TIMER_DELETE_KEY: key if why == RECALLED else str(entry.log_offset),
                Property.TIMER_OUT_MS: str(entry.slot_ms),
                Property.REAL_TOPIC: _real_topic(properties) or names.WHEEL_TOPIC,
                Property.REAL_QUEUE_ID: "0",
            }
        ),
        now_ms,
        born_host,
    )
    draft.closes = entry.log_offset
    return draft


class Recalls:
    """All methods belong to the broker's loop."""

    def __init__(self, schedule: ScheduleLog, *, clock: Clock, broker_name: str) -> None:
        self._schedule = schedule
        self._clock = clock
        self._broker_name = broker_name
        #: What is closed of the hour that was asked for last, and how many of its marks that is.
        self._closed: tuple[int, int, set[int]] = (-1, 0, set())
        self._searching = asyncio.Lock()
        self._waiting = 0

    async def draft(self, topic: str, text: str, *, born_host: bytes) -> tuple[Draft, str]:
        """The record that takes back the message of a handle, to be stored at once; and the message's unique key.

        Raises ``IllegalOperation`` if there is no such message, or not any more, and ``SystemBusy``. Nothing is awaited
        behind the last look at whether it waits.
        """
        try:
            handle = parse_handle(text)
        except InvalidHandle as error:
            raise IllegalOperation(str(error)) from None
        if handle.topic != topic:
            raise IllegalOperation(f"recall failed, the handle is of a message to {handle.topic}, not to {topic}")
        if handle.broker_name != self._broker_name:
            raise IllegalOperation(
                f"recall failed, the message is on broker {handle.broker_name}, and this is {self._broker_name}"
            )
        files = self._schedule.hour(handle.slot_ms // HOUR_MS)
        found = await self._waits(files, handle) if files is not None else None
        if found is None:
            raise IllegalOperation(
                f"recall failed, the message {handle.unique_key} to {topic} does not wait on this broker: it was "
                "delivered, was recalled before, or was never stored"
            )
        entry, record = found
        return closing_draft(
            entry, record, RECALLED, now_ms=self._clock.now_ms(), born_host=born_host
        ), handle.unique_key

    @contextmanager
    def taking_back(self, draft: Draft) -> Iterator[None]:
        """While ``draft`` is stored, and until the schedule log has folded it: what it closes is not delivered."""
        in_flight, closed = self._schedule.in_flight, draft.closes if draft.closes != FIRST else 0
        in_flight[closed] = None
        try:
            yield
        except BaseException:
            in_flight.pop(closed, None)
            raise

    async def _waits(self, files: HourFiles, handle: RecallHandle) -> tuple[IndexLine, Record] | None:
        """What a handle names, if it waits."""
        if handle.log_offset is not None and files.closed_count <= _CLOSED_MAX:
            entry = files.find(handle.log_offset)
            found = _matching(files, entry, handle) if entry is not None else None
            return found if found is not None and not self._is_known_closed(files, found[0].log_offset) else None
        if self._waiting >= _WAITING_MAX:
            raise SystemBusy(f"[OVERLOAD]system busy: {self._waiting} recalls wait for their search; retry later")
        self._waiting += 1
        try:
            async with self._searching:
                return await self._search(files, handle)
        finally:
            self._waiting -= 1

    async def _search(self, files: HourFiles, handle: RecallHandle) -> tuple[IndexLine, Record] | None:
        if handle.log_offset is not None:
            entry = files.find(handle.log_offset)
            found = _matching(files, entry, handle) if entry is not None else None
            return found if found is not None and not await self._is_closed(files, found[0].log_offset) else None
        topic_hash, read_bytes = java_hash(handle.topic), 0
        for first in range(0, files.entry_count, _SLICE):
            for entry in files.entries(first, _SLICE):
                if entry is not None and entry.slot_ms == handle.slot_ms and entry.topic_hash == topic_hash:
                    found = _matching(files, entry, handle)
                    # One that RocketMQ has written again stands here more than once.
                    if found is not None and not await self._is_closed(files, entry.log_offset):
                        return found
                    read_bytes += entry.size + _READ_BYTES
                    if read_bytes >= _SLICE_BYTES:
                        read_bytes = 0
                        await asyncio.sleep(0)
            await asyncio.sleep(0)
        return None

    async def _is_closed(self, files: HourFiles, log_offset: int) -> bool:
        """Whether a message is closed; read in slices, and nothing is awaited behind the last one."""
        if files.closed_count <= _CLOSED_MAX:
            return self._is_known_closed(files, log_offset)
        self._closed = (-1, 0, set())
        # What has closed it stands behind it in the log, so only those marks are read.
        first = files.first_mark(log_offset)
        while some := files.closed(first, _MARKS):
            if log_offset in some:
                return True
            first += len(some)
            if first < files.closed_count:
                await asyncio.sleep(0)
        return log_offset in self._schedule.in_flight

    def _is_known_closed(self, files: HourFiles, log_offset: int) -> bool:
        if log_offset in self._schedule.in_flight:
            return True
        hour, marks, offsets = self._closed
        if hour != files.hour or marks > files.closed_count:
            hour, marks, offsets = files.hour, 0, set()
        offsets.update(files.closed(marks, files.closed_count - marks))
        self._closed = (hour, files.closed_count, offsets)
        return log_offset in offsets


def _matching(files: HourFiles, entry: IndexLine, handle: RecallHandle) -> tuple[IndexLine, Record] | None:
    """The entry and its record, if they are what the handle names."""
    if entry.slot_ms != handle.slot_ms or entry.kind == EntryKind.TAKES_BACK:
        return None
    try:
        record = unpack_record(files.record(entry))
    except CorruptRecord:
        return None
    properties = record.properties
    if _real_topic(properties) != handle.topic or _unique_key(properties) != handle.unique_key:
        return None
    return entry, record
