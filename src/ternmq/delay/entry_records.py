"""The records of entries of the schedule log: where they are read, and how they are closed (I2, I3).

The files of an hour have the whole record of each entry. The log may still have its original, and that counts where the
files are damaged. An entry is *closed* by any record of the log that says so (``Draft.closes``); while that record is
not dispatched, the entry is in flight, and is not closed again.
"""

from __future__ import annotations

from ternmq import names
from ternmq.delay.due import stored_place
from ternmq.delay.hour_files import HourFiles, IndexLine
from ternmq.delay.recalls import closing_draft
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.env import Clock
from ternmq.errors import CorruptRecord, StoreError
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.types import Buffer
from ternmq.wire.record import Record, unpack_record


class EntryRecords:
    """Belongs to the broker's loop."""

    def __init__(self, store: MessageStore, schedule: ScheduleLog, *, clock: Clock) -> None:
        self._store = store
        self._schedule = schedule
        self._clock = clock

    def read(self, files: HourFiles, entry: IndexLine) -> Record | None:
        """The record of an entry, or its original in the log; None if both are damaged.

        Raises ``StoreError`` if it cannot be read now, and the log does not have it.
        """
        failure: StoreError | None = None
        try:
            return unpack_record(files.record(entry))
        except CorruptRecord:
            pass
        except StoreError as error:
            failure = error
        page = self._store.record_at(entry.log_offset, entry.size)
        try:
            if page is not None:
                return unpack_record(page)
        except CorruptRecord:
            pass
        if failure is not None:
            raise failure
        return None

    def is_in_log(self, files: HourFiles, entry: IndexLine) -> bool:
        """Whether the log has the record of an entry, or has deleted it."""
        if entry.log_offset < self._store.min_log_offset:
            return True
        page = self._store.record_at(entry.log_offset, entry.size)
        if page is None:
            return False
        try:
            record = files.record(entry)
            if page == record:
                return True
            unpack_record(record)
        except StoreError:
            # Damaged, or not readable now: what the log has is the same if it stands in the same place and waits for
            # the same time.
            return _is_original(entry, page)
        return False

    def close(self, entry: IndexLine, record: Record | None, why: str) -> None:
        """Close an entry without delivering it."""
        self.put(entry, closing_draft(entry, record, why, now_ms=self._clock.now_ms()))

    def put(self, entry: IndexLine, draft: Draft) -> None:
        """Store a draft that closes an entry, unless it is in flight."""
        if entry.log_offset in self._schedule.in_flight:
            return
        placed = self._store.put(draft)
        if self._store.dispatched < placed.end_offset:
            self._schedule.in_flight[entry.log_offset] = None


def _is_original(entry: IndexLine, page: Buffer) -> bool:
    try:
        record = unpack_record(page)
    except CorruptRecord:
        return False
    place = stored_place(record.properties)
    is_same = (record.topic, record.queue_offset) == (names.WHEEL_TOPIC, entry.queue_offset)
    return is_same and place is not None and place[0] == entry.slot_ms
