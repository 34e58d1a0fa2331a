"""A walk over the records of a log, one after the other, until the first that is none (C8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ternmq.errors import CorruptRecord
from ternmq.store.disk.base import Segment
from ternmq.wire.record import BLANK_BYTES, MAGIC_BLANK, Record, peek_head, unpack_record


class LogWalk:
    """Iterates over records in log order and stops at the first that is none; ``position`` is then the log's end."""

    __slots__ = ("_check_crc", "_lead", "_segment_at", "_segment_bytes", "position", "trouble")

    def __init__(
        self,
        segment_at: Callable[[int], Segment | None],
        position: int,
        *,
        segment_bytes: int,
        lead: int = 0,
        check_crc: bool = True,
    ) -> None:
        """``segment_at`` gives the segment that holds a byte of the log, if there is one; ``lead`` bytes stand in front
        of each record."""
        self._segment_at = segment_at
        self._segment_bytes = segment_bytes
        self._lead = lead
        self._check_crc = check_crc
        self.position = position
        #: Why the walk ended; empty where the log simply goes no further.
        self.trouble = ""

    def __iter__(self) -> Iterator[Record]:
        size, lead = self._segment_bytes, self._lead
        while (segment := self._segment_at(self.position)) is not None:
            at = self.position - segment.start
            page = segment.page
            while True:
                if at + BLANK_BYTES > size:
                    self.trouble = "no blank at the end of the segment"
                    return
                total, magic = peek_head(page, at)
                if magic == MAGIC_BLANK:
                    self.position = segment.start + size
                    break
                record_at = at + lead
                if lead and record_at + BLANK_BYTES <= size:
                    total, magic = peek_head(page, record_at)
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
