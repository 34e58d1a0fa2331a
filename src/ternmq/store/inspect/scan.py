"""The log from end to end, past what is damaged (C8).

Recovery stops at the first record that is none, because what is behind it was not acknowledged or cannot be trusted. A
tool that is to say what is left must go on. After a damaged place the scan takes up again

- behind the record, if only its body is wrong and something sensible follows where it says that it ends;
- else at the next whole record in the segment: its magic number is searched for, and it must check in full and know its
  own log offset, so that no message that contains records (a copy of a log, say) is taken for one;
- else in the next segment that begins with a record.

Zeros are the log's end, unless whole records follow. What lies behind the last whole record is a *torn tail*.

The user of a scan may take in records by itself, where a compiled kernel finds ordinary ones (``LogScan.take``).
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ternmq.errors import CorruptRecord
from ternmq.store.derived.follower import is_torn
from ternmq.store.log.protocol import Log
from ternmq.wire.layouts.segment_form import PLAIN_FORM, SegmentForm
from ternmq.wire.record import (
    BLANK_BYTES,
    MAGIC_AT,
    MAGIC_BEGIN,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Record,
    peek_head,
    unpack_record,
)

#: Told how many bytes of the log are done, now and then.
OnScanned = Callable[[int], object]
#: Takes in whole records that follow each other from a position on, in one segment, and tells how many, and where the
#: last of them ends. Those are not handed out.
Taker = Callable[[int], tuple[int, int]]

_SEARCH_BYTES: Final = 4 << 20
#: Records between two calls of ``progress``.
_STRIDE: Final = 4096


class Damage(enum.Enum):
    """What can be wrong at a place in the log."""

    CRC = "the body of the record does not match its CRC"
    LENGTH = "the lengths inside the record do not add up to its size"
    NO_RECORD = "no record begins here"
    LEAD = "the entry header in front of the record does not belong to it"
    MISPLACED = "the record says that it belongs to another place"
    TORN = "the end of the record never reached the disk"
    HOLE = "there are zeros where records should be"
    NO_BLANK = "the segment ends without a blank"


@dataclass(slots=True, frozen=True)
class Damaged:
    """Bytes from ``begin`` up to ``end`` that are no records."""

    kind: Damage
    begin: int
    end: int
    #: Whole records that were found behind it.
    records_behind: int = 0


class LogScan:
    """Iterates over all whole records; afterwards ``damages`` tells where there are none, in order."""

    def __init__(
        self,
        log: Log,
        log_offset: int | None = None,
        *,
        next_data: Callable[[int], int] | None = None,
        progress: OnScanned | None = None,
    ) -> None:
        """``next_data`` tells where in its segment the file goes on behind a hole: a GiB of zeros is long."""
        self._log = log
        self._next_data = next_data or _same
        self._size = log.segment_bytes
        self._progress = progress or _report_nothing
        self._starts = log.starts
        self._begin = log_offset if log_offset is not None else log.begin
        #: Log offset behind the last whole record, or behind the blank of the last segment.
        self.position = self._begin
        self.records = 0
        #: Asked at each record.
        self.take: Taker | None = None
        #: Kind, begin, end, and how many records stand before it.
        self._found: list[tuple[Damage, int, int, int]] = []

    @property
    def damages(self) -> list[Damaged]:
        """The damaged places that have whole records behind them."""
        return [
            Damaged(kind, begin, end, self.records - before)
            for kind, begin, end, before in self._found
            if before < self.records
        ]

    @property
    def torn_tail(self) -> Damaged | None:
        """What stands behind the last whole record, unless it is zeros."""
        tail = next((found for found in self._found if found[3] == self.records), None)
        if tail is None or tail[0] in (Damage.HOLE, Damage.NO_BLANK):
            return None
        return Damaged(*tail[:3])

    def damage_at(self, log_offset: int) -> int | None:
        """Where the damaged place begins that holds this byte, if one does, as far as the scan has come."""
        number = bisect_right(self._found, log_offset, key=lambda found: found[1]) - 1
        if number < 0 or log_offset >= self._found[number][2]:
            return None
        return self._found[number][1]

    def __iter__(self) -> Iterator[Record]:
        for start in self._starts:
            if start + self._size > self._begin:
                page = self._log.view(start, self._size)
                assert page is not None, "segments that were listed are there"
                yield from self._segment(page, start, max(self._begin - start, 0))
                self._progress(start + self._size - self._begin)

    def _segment(self, page: memoryview, start: int, at: int) -> Iterator[Record]:
        size, form, told, take = self._size, self._log.form_at(start), self.records, self.take
        while at + BLANK_BYTES <= size:
            if take is not None:
                count, end = take(start + at)
                if count:
                    at = end - start
                    self.position = end
                    self.records += count
                    told = self._tell(told)
                    continue
            found = look(page, start, at, size, form)
            if found is None:
                self.position = start + size
                return
            if isinstance(found, Damage):
                end = resume(page, start, at, size, found, self._next_data, form=form)
                self._found.append((found, start + at, start + end, self.records))
                at = end
                continue
            at += form.lead + found.size
            self.position = start + at
            self.records += 1
            yield found
            told = self._tell(told)
        if at < size:
            self._found.append((Damage.NO_BLANK, start + at, start + size, self.records))

    def _tell(self, told: int) -> int:
        """Tell the progress if there are enough records since ``told``; how many were told of then."""
        if self.records - told < _STRIDE:
            return told
        self._progress(self.position - self._begin)
        return self.records


def look(page: memoryview, start: int, at: int, size: int, form: SegmentForm = PLAIN_FORM) -> Record | Damage | None:
    """What stands ``at`` a position in the segment of ``size`` bytes that begins at log offset ``start``: a whole
    record, or what is wrong there; None for the blank that ends the segment. It takes 8 bytes to tell."""
    if form.is_blank(page, at):
        return None
    lead_at, at = at, at + form.lead
    if at + BLANK_BYTES > size:
        return Damage.NO_RECORD
    total, _ = peek_head(page, at)
    try:
        record = unpack_record(page, at, end=size)
    except CorruptRecord:
        return _kind(page, at, size)
    if record.log_offset != start + at:
        return Damage.MISPLACED
    if form.lead and not form.is_lead(page[lead_at:at], record.log_offset, total):
        return Damage.LEAD
    if "\0" in record.properties + record.topic and is_torn(bytes(page[at : at + total]), record, at):
        return Damage.TORN
    return record


def resume(
    page: memoryview,
    start: int,
    at: int,
    size: int,
    kind: Damage,
    next_data: Callable[[int], int] | None = None,
    *,
    form: SegmentForm = PLAIN_FORM,
) -> int:
    """The position in the segment to go on with behind the damage ``at`` one; the segment's size if there is none."""
    lead = form.lead
    if kind in (Damage.CRC, Damage.TORN, Damage.LEAD):
        end = at + lead + peek_head(page, at + lead)[0]
        if _is_sensible(page, start, end, size, form):
            return end
    found = _next_record(page, start, at + lead + 1, size, next_data or _same)
    return found - lead if found < size else size


def _next_record(page: memoryview, start: int, at: int, size: int, next_data: Callable[[int], int]) -> int:
    """The next whole record from ``at`` on; the segment's size if there is none."""
    last = size - RECORD_BYTES_MIN
    magic_at = at + MAGIC_AT
    while magic_at <= last + MAGIC_AT:
        # The magic number itself has no zeros, so it lies behind a hole altogether.
        magic_at = max(magic_at, next_data(start + magic_at) - start)
        piece = bytes(page[magic_at : magic_at + _SEARCH_BYTES + len(MAGIC_BEGIN) - 1])
        found = piece.find(MAGIC_BEGIN)
        while found >= 0:
            candidate = magic_at + found - MAGIC_AT
            if candidate <= last and _is_record(page, start, candidate, size):
                return candidate
            found = piece.find(MAGIC_BEGIN, found + 1)
        magic_at += _SEARCH_BYTES
    return size


def _kind(page: memoryview, at: int, size: int) -> Damage:
    """What is wrong with a record that does not check."""
    total, magic = peek_head(page, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Damage.HOLE if total == magic == 0 else Damage.NO_RECORD
    try:
        unpack_record(page, at, end=size, check_crc=False)
    except CorruptRecord:
        return Damage.LENGTH
    return Damage.CRC


def _is_sensible(page: memoryview, start: int, at: int, size: int, form: SegmentForm) -> bool:
    """Whether the log goes on here: with a record, a blank, or zeros where it ends."""
    if at + BLANK_BYTES > size:
        return False
    return form.is_blank(page, at) or peek_head(page, at) == (0, 0) or _is_record(page, start, at + form.lead, size)


def _is_record(page: memoryview, start: int, at: int, size: int) -> bool:
    try:
        return unpack_record(page, at, end=size).log_offset == start + at
    except CorruptRecord:
        return False


def _same(log_offset: int) -> int:
    """No holes are known."""
    return log_offset


def _report_nothing(_: int) -> None:
    """Progress is not shown."""
