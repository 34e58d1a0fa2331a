"""The hour files made anew, for ``tern store rebuild`` (I2, C5).

What the log has is folded again. What is older than the log is only in the old hour files, so all that is whole there
is taken over first, with its closing marks. The same goes for marks that no record made: a RocketMQ that had the
directory has delivered these messages, and they must not come again. They count as older than the log.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ternmq.delay.due import HOUR_MS, stored_waiting
from ternmq.delay.hour_files import HourFiles, IndexLine
from ternmq.delay.schedule_check import load_schedule
from ternmq.delay.schedule_log import DIRECTORY, ScheduleLog
from ternmq.errors import CorruptRecord
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.view import StoreView
from ternmq.wire.record import unpack_record

log = logging.getLogger(__name__)


def fresh_schedule(view: StoreView, directory: Path) -> ScheduleLog | None:
    """A schedule log in ``directory`` with what the log of a store does not have any more; its log is to be folded.

    None for a store that has none: then a start folds the whole log anyway.
    """
    if not view.disk.list(view.root / DIRECTORY):
        return None
    old, _ = load_schedule(view)
    fresh = ScheduleLog(FileDisk(), directory, ring=lambda _: None)
    fresh.handover, fresh.handed_over = old.handover, old.handed_over
    for files in old.hours():
        _take_over(view, files, fresh)
    old.close()
    return fresh


def _take_over(view: StoreView, files: HourFiles, fresh: ScheduleLog) -> None:
    begin, damaged = view.log.begin, 0
    for entry in files.all_entries():
        if entry is not None and entry.log_offset >= begin:
            break
        topic = _topic_of(files, entry) if entry is not None else None
        if entry is None or topic is None:
            damaged += 1
        else:
            fresh.take_over(files.hour, entry, topic, files.record(entry))
    for closing, closed in files.all_marks():
        if closing < begin or not _closes(view, closing, closed):
            fresh.take_over_mark(files.hour, min(closing, begin - 1), closed)
    if damaged:
        log.error(
            "%d delayed messages in %s are damaged; those that the log does not have are lost", damaged, files.paths[0]
        )


def _topic_of(files: HourFiles, entry: IndexLine) -> str | None:
    """The own topic of a message; None if its record is damaged."""
    try:
        waiting = stored_waiting(unpack_record(files.record(entry)).properties)
    except CorruptRecord:
        return None
    return waiting.topic if waiting is not None and waiting.slot_ms // HOUR_MS == files.hour else None


def _closes(view: StoreView, closing: int, closed: int) -> bool:
    """Whether the log has a record that closes another one."""
    record = view.record(closing)
    return record is not None and record.prepared_transaction_offset == (closed or 1)
