"""Whether the hour files say what the log says (I2, C5): for ``tern store verify`` and ``tern store info``.

The log is read once, in its order, which is also the order of entries and marks in each hour. So each hour is read
along: the next record that waits for it must be its next entry, byte for byte, and the next closing record its next
mark. What is older than the log is only in the hour files; there it must be whole.

Not faults: what lies behind the log offset up to which the files are complete, because a start folds it; an hour
without files, if as many of its messages are closed in the log as wait in it; marks of what a RocketMQ has delivered,
which no record of the log made.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ternmq.delay.due import HOUR_MS, stored_place, stored_waiting
from ternmq.delay.hour_files import HourFiles, IndexLine
from ternmq.delay.schedule_log import STATE, ScheduleLog, kind_of
from ternmq.errors import CorruptRecord
from ternmq.names import WHEEL_TOPIC
from ternmq.store.inspect.faults import REBUILD, Fault, Tally, plural
from ternmq.store.inspect.view import StoreView
from ternmq.store.log.draft import FIRST
from ternmq.types import Buffer
from ternmq.wire.ids import java_hash
from ternmq.wire.record import Record, Sysflag, unpack_record


@dataclass(slots=True, frozen=True)
class ScheduleSummary:
    """What waits. Times are -1 if nothing does."""

    waiting: int
    hours: int
    topics: dict[str, int]
    #: Begin of the first and of the last hour for which messages wait.
    first_hour_ms: int
    last_hour_ms: int


def load_schedule(view: StoreView) -> tuple[ScheduleLog, int]:
    """The schedule log of a directory, to be looked at, and the log offset up to which it is complete."""
    schedule = ScheduleLog(view.disk, view.root, ring=lambda _: None)
    # What is damaged becomes a finding; the sentences for a broker's log are not for this.
    logger = logging.getLogger("ternmq.delay.schedule_log")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        return schedule, schedule.load()
    finally:
        logger.disabled = was_disabled


def summary(view: StoreView) -> ScheduleSummary:
    """What waits in a directory, as its files tell."""
    schedule, _ = load_schedule(view)
    hours = [files.hour for files in schedule.hours() if files.waiting > 0]
    found = ScheduleSummary(
        schedule.waiting,
        len(hours),
        dict(sorted(schedule.topics_waiting.items())),
        hours[0] * HOUR_MS if hours else -1,
        hours[-1] * HOUR_MS if hours else -1,
    )
    schedule.close()
    return found


class ScheduleCheck:
    """Told records of the log (``store.inspect.verify.Check``)."""

    topics: Final = (WHEEL_TOPIC,)

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._schedule, self._complete = load_schedule(view)
        self._hours: dict[int, _HourCheck] = {
            files.hour: _HourCheck(files, view.log.begin) for files in self._schedule.hours()
        }
        #: By hour without files: messages of the log that wait for it, and are not closed.
        self._open: Counter[int] = Counter()

    def expect(self, record: Record) -> None:
        if record.log_offset >= self._complete:
            return
        closes = 0 if record.sysflag & Sysflag.TRANSACTION_MASK else record.prepared_transaction_offset
        if closes:
            place = stored_place(record.properties)
            if place is not None:
                self._expect_closing(place[0] // HOUR_MS, record.log_offset, closes if closes != FIRST else 0)
        elif record.topic == WHEEL_TOPIC:
            waiting = stored_waiting(record.properties)
            if waiting is None or self._schedule.handover.has_delivered(waiting.slot_ms, record.queue_offset):
                return
            hour = waiting.slot_ms // HOUR_MS
            check = self._hours.get(hour)
            if check is None:
                self._open[hour] += 1
                return
            due_ms = waiting.due_ms(record.store_time_ms)
            entry = IndexLine(
                due_ms,
                record.log_offset,
                0,
                record.queue_offset,
                record.size,
                java_hash(waiting.topic),
                due_ms - waiting.slot_ms,
                kind_of(record.properties),
            )
            check.expect(entry, self._view.log.view(record.log_offset, record.size) or b"")

    def _expect_closing(self, hour: int, closing: int, closed: int) -> None:
        check = self._hours.get(hour)
        if check is not None:
            check.expect_closing(closing, closed)
        elif closed >= self._view.log.begin:
            self._open[hour] -= 1

    def faults(self) -> Iterator[Fault]:
        path = str(self._schedule.directory)
        if self._schedule.is_doubtful:
            yield Fault(
                kind="schedule-state",
                path=str(self._schedule.directory / STATE),
                at=0,
                what="it is damaged, or counts more than the files of delayed messages have",
                cost="a start reads the whole log again; what is neither in the log nor sound in the files is lost",
                cure=f"{REBUILD}; restore {path} from a backup if messages are lost",
            )
        missing = sum(count for count in self._open.values() if count > 0)
        if missing:
            yield self._missing(path, -1, missing)
        for hour, check in sorted(self._hours.items()):
            if not self._schedule.is_doubtful:
                # Otherwise all is folded again.
                check.end()
            path = str(check.files.paths[0])
            if check.missing.count:
                yield self._missing(path, check.missing.first, check.missing.count)
            if check.wrong.count:
                yield Fault(
                    kind="schedule-wrong",
                    path=path,
                    at=check.wrong.first,
                    count=check.wrong.count,
                    what=f"{plural(check.wrong.count, 'delayed message')} of hour {hour}, the first at log offset "
                    f"{check.wrong.first:,}, differ from the log",
                    cost="they are delivered at a wrong time, or with a wrong content, or not at all",
                    cure=REBUILD,
                )
            if check.marks.count:
                yield Fault(
                    kind="schedule-closed",
                    path=str(check.files.paths[2]),
                    at=check.marks.first,
                    count=check.marks.count,
                    what=f"{plural(check.marks.count, 'delayed message')}, the first at log offset "
                    f"{check.marks.first:,}, are closed in the log and not here",
                    cost="they are delivered again",
                    cure=REBUILD,
                )
            if check.lost.count:
                yield Fault(
                    kind="schedule-lost",
                    path=str(check.files.paths[1]),
                    at=check.lost.first,
                    count=check.lost.count,
                    what=f"{plural(check.lost.count, 'delayed message')} are damaged, and the log has them no more",
                    cost="they are lost",
                    cure=f"restore the directory {self._schedule.directory} from a backup or a slave",
                )
        self._schedule.close()

    @staticmethod
    def _missing(path: str, at: int, count: int) -> Fault:
        return Fault(
            kind="schedule-missing",
            path=path,
            at=at,
            count=count,
            what=f"{plural(count, 'delayed message')} of the log are missing here",
            cost="they are never delivered",
            cure=REBUILD,
        )


class _HourCheck:
    """The files of one hour, read along with the log."""

    def __init__(self, files: HourFiles, log_begin: int) -> None:
        self.files = files
        #: Log offsets of messages that are missing, differ, are not closed, or are lost.
        self.missing, self.wrong, self.marks, self.lost = Tally(), Tally(), Tally(), Tally()
        #: Messages of the log that are not here. That is no fault if they are done: an hour may be removed and come
        #: back, when the clock is set back.
        self._unknown: dict[int, None] = {}
        self._entries = self._sound_entries()
        self._damaged = 0
        self._next = next(self._entries, None)
        self._marks = files.all_marks()
        self._mark = next(self._marks, None)
        while self._next is not None and self._next.log_offset < log_begin:
            if not self._is_whole(self._next):
                self.lost.add(self._next.log_offset)
            self._next = next(self._entries, None)

    def _sound_entries(self) -> Iterator[IndexLine]:
        for entry in self.files.all_entries():
            if entry is not None:
                yield entry
            else:
                # Which one it was shows when its record comes; if none does, the log has it no more.
                self._damaged += 1

    def _is_whole(self, entry: IndexLine) -> bool:
        try:
            return unpack_record(self.files.record(entry)).log_offset == entry.log_offset
        except CorruptRecord:
            return False

    def expect(self, expected: IndexLine, data: Buffer) -> None:
        """The next record of the log that waits for this hour."""
        self._skip_to(expected.log_offset)
        entry = self._next
        if entry is None or entry.log_offset != expected.log_offset:
            self._unknown[expected.log_offset] = None
            return
        self._next = next(self._entries, None)
        if entry._replace(at=0) != expected or self.files.record(entry) != data:
            self.wrong.add(expected.log_offset)

    def _skip_to(self, log_offset: int) -> None:
        while self._next is not None and self._next.log_offset < log_offset:
            # The log has no such record.
            self.wrong.add(self._next.log_offset)
            self._next = next(self._entries, None)

    def expect_closing(self, closing: int, closed: int) -> None:
        """The next record of the log that closes a message of this hour."""
        while self._mark is not None and self._mark[0] < closing:
            # Of a record that the log has forgotten, or of none: a RocketMQ has delivered it.
            self._mark = next(self._marks, None)
        if self._mark == (closing, closed):
            self._mark = next(self._marks, None)
        elif closed in self._unknown:
            del self._unknown[closed]
        elif self.files.find(closed) is not None:
            self.marks.add(closed)

    def end(self) -> None:
        """The log is at its end: what is left here belongs to no record of it."""
        self._skip_to(1 << 62)
        for log_offset in self._unknown:
            self.missing.add(log_offset)
        for _ in range(self._damaged - len(self._unknown)):
            self.lost.add(-1)
