"""A walk over the records of a log, one after the other, until the first that is none (C8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ternmq.errors import CorruptRecord
from ternmq.store.disk.base import Segment
from ternmq.wire.layouts.segment_form import SegmentForm
from ternmq.wire.record import BLANK_BYTES, Record, peek_head, unpack_record


class LogWalk:
    """Iterates over records in log order and stops at the first that is none; ``position`` is then the log's end."""

    __slots__ = ("_check_crc", "_form_at", "_segment_at", "_segment_bytes", "position", "trouble")

    def __init__(
        self,
        segment_at: Callable[[int], Segment | None],
        position: int,
        *,
        segment_bytes: int,
        form_at: Callable[[int], SegmentForm],
        check_crc: bool = True,
    ) -> None:
        """``segment_at`` gives the segment that holds a byte of the log, if there is one; ``form_at`` tells what
        stands between its records."""
        self._segment_at = segment_at
        self._segment_bytes = segment_bytes
        self._form_at = form_at
        self._check_crc = check_crc
        self.position = position
        #: Why the walk ended; empty where the log simply goes no further.
        self.trouble = ""

    def __iter__(self) -> Iterator[Record]:
        size = self._segment_bytes
        while (segment := self._segment_at(self.position)) is not None:
            at = self.position - segment.start
            page, form = segment.page, self._form_at(segment.start)
            lead = form.lead
            while True:
                if at + BLANK_BYTES > size:
                    self.trouble = "no blank at the end of the segment"
                    return
                if form.is_blank(page, at):
                    self.position = segment.start + size
                    break
                record_at = at + lead
                total, magic = peek_head(page, record_at if record_at + BLANK_BYTES <= size else at)
                if magic == 0 and total == 0:
                    return
                try:
                    record = unpack_record(page, record_at, check_crc=self._check_crc, end=size)
                except CorruptRecord as error:
                    self.trouble = str(error)
                    return
                if record.log_offset != segment.start + record_at:
                    self.trouble = f"a record of log offset {record.log_offset} stands at {segment.start + record_at}"
                    return
                at = record_at + total
                self.position = segment.start + at
                yield record
