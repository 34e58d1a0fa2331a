"""Reads one slice of a segment: complete records, many at a time, and the damaged places between them (U3, C8).

The fast path reads some megabytes, follows the sizes, and checks all records at once with NumPy: lengths, log offset,
CRC, a topic in UTF-8, and the sectors after the body that a power cut may have lost (``store.derived.follower``). Only
if a check fails are they checked one by one, by the rules of ``store.inspect.scan``, which reports the damage and where
the log continues.

An incomplete record after the last complete one of the log was being written during the read, or when the broker was
killed; it is reported without ``records_behind``. Zeros there are not reported.

Invariant: the slices of a segment, read in any order by any process, yield every complete record once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from ternmq.errors import CorruptRecord, StoreError
from ternmq.spark.files.borders import WINDOW_BYTES, border
from ternmq.spark.files.layout import LogSlice
from ternmq.spark.source.records import Int64s, Records
from ternmq.store.derived.follower import SECTOR_BYTES
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.scan import Damage, Damaged, look, resume
from ternmq.wire.layouts.segment_form import PLAIN_FORM, SegmentForm
from ternmq.wire.record import BLANK_BYTES, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, unpack_head

#: Bytes that are read together: enough to make the fixed cost small, few enough for a batch of Spark.
PIECE_BYTES: Final = 4 << 20
#: After a damaged place, because there may be more.
_SMALL_BYTES: Final = 64 << 10


class SliceReader:
    """Iterates over the records of a slice and its damaged places, in order. Raises ``StoreError``."""

    def __init__(self, part: LogSlice, *, piece_bytes: int = PIECE_BYTES, window_bytes: int = WINDOW_BYTES) -> None:
        self._part = part
        self._segment = part.segment
        self._size = part.segment.size_bytes
        self._form = part.segment.form
        self._lead = part.segment.form.lead
        self._disk = FileDisk(writable=False)
        self._piece_bytes = piece_bytes
        self._window_bytes = window_bytes
        self._mapped: memoryview | None = None
        #: Position in the segment of the next record.
        self._at = 0

    def __iter__(self) -> Iterator[Records | Damaged]:
        path = self._segment.path
        try:
            yield from self._read_slice()
        except StoreError as error:
            if isinstance(error.__cause__, PermissionError):
                raise StoreError(f"cannot read {path}; give the user of the Spark processes read permission") from error
            if isinstance(error.__cause__, FileNotFoundError):
                raise StoreError(
                    f"{path} was deleted since the read was planned, or is not available on every worker; "
                    "brokers delete old segments (fileReservedTime): read again, or read a copy"
                ) from error
            raise

    def _read_slice(self) -> Iterator[Records | Damaged]:
        waiting: list[Damaged] = []
        for found in self._scan(self._first(), self._part.end):
            if isinstance(found, Damaged):
                waiting.append(found)
                continue
            yield from waiting
            waiting.clear()
            yield found
        if waiting and (not self._segment.is_tail or self._goes_on()):
            yield from waiting
        elif waiting and waiting[0].kind not in (Damage.HOLE, Damage.NO_BLANK):
            yield replace(waiting[0], records_behind=0)

    def _first(self) -> int:
        """Start of the first record of the slice, or of the damage before it; the segment's size if there is none."""
        begin = self._part.begin
        if not begin:
            return 0
        if self._segment.is_tail and self._is_empty_from(begin):
            return self._size
        found = border(self._page, begin, start=self._segment.start, form=self._form, window_bytes=self._window_bytes)
        if found is not None:
            return found
        for _ in self._scan(0, begin):
            pass
        return self._at

    def _is_empty_from(self, at: int) -> bool:
        """Whether only zeros follow in the segment."""
        while at < self._size:
            data_at = self._disk.next_data(self._segment.path, at)
            if data_at is None:
                return True
            piece = self._read(data_at, _SMALL_BYTES)
            if piece.count(0) != len(piece):
                return False
            at = data_at + len(piece)
        return True

    def _goes_on(self) -> bool:
        """Whether a complete record follows after the slice."""
        at = self._at
        while at + BLANK_BYTES <= self._size:
            found = look(self._page, self._segment.start, at, self._size, self._form)
            if not isinstance(found, Damage):
                return found is not None
            at = self._resume(at, found)
        return False

    def _scan(self, at: int, limit: int) -> Iterator[Records | Damaged]:
        """Records and damage from ``at``, where a record should begin, up to ``limit``; sets ``_at`` to their end."""
        size, piece_bytes = self._size, self._piece_bytes
        self._at = at
        while (at := self._at) < limit:
            if at + BLANK_BYTES > size:
                yield self._damaged(Damage.NO_BLANK, at, size)
                self._at = size
                return
            data = self._read(at, min(piece_bytes, limit - at + _SMALL_BYTES))
            starts, end = _walk(data, limit - at, lead=self._lead)
            if starts and (records := _checked(data, starts, self._segment.start + at, at, self._form)) is not None:
                yield records
                self._at = at + end
                piece_bytes = min(piece_bytes * 4, self._piece_bytes)
                continue
            found = self._look_closely(at, starts)
            if found is None:
                # A blank, or all are valid and only looked damaged.
                if starts:
                    yield Records(data, starts=np.array(starts, np.int64))
                    self._at = at + end
                    continue
                self._at = size
                return
            if isinstance(found, int):
                # A record that is longer than a piece.
                yield Records(self._read(at + self._lead, found))
                self._at = at + self._lead + found
                continue
            number, kind = found
            if number:
                yield Records(data, starts=np.array(starts[:number], np.int64))
            at += starts[number] - self._lead if starts else 0
            self._at = self._resume(at, kind)
            yield self._damaged(kind, at, self._at)
            piece_bytes = _SMALL_BYTES

    def _look_closely(self, at: int, starts: list[int]) -> tuple[int, Damage] | int | None:
        """How many records are valid before the first damaged one, and its damage; without ``starts`` the size of the
        record there. None if there is no damage, or a blank."""
        page, start, size, lead = self._page, self._segment.start, self._size, self._lead
        for number, each in enumerate(starts):
            found = look(page, start, at + each - lead, size, self._form)
            if isinstance(found, Damage):
                return number, found
        if starts:
            return None
        found = look(page, start, at, size, self._form)
        return (0, found) if isinstance(found, Damage) else found.size if found is not None else None

    def _resume(self, at: int, kind: Damage) -> int:
        return resume(self._page, self._segment.start, at, self._size, kind, self._next_data, form=self._form)

    def _next_data(self, log_offset: int) -> int:
        start = self._segment.start
        found = self._disk.next_data(self._segment.path, log_offset - start)
        return start + (found if found is not None else self._size)

    def _damaged(self, kind: Damage, at: int, end: int) -> Damaged:
        start = self._segment.start
        # At least one: if there is none, the check of the records reports it.
        return Damaged(kind, start + at, start + end, records_behind=1)

    def _read(self, at: int, length_bytes: int) -> bytes:
        return self._disk.read_at(self._segment.path, at, min(length_bytes, self._size - at))

    @property
    def _page(self) -> memoryview:
        if self._mapped is None:
            self._mapped = self._disk.open_segment(self._segment.path, size=self._size, writable=False).page
        return self._mapped


def _walk(data: bytes, limit: int, *, lead: int) -> tuple[list[int], int]:
    """Starts of records, by their sizes, as far as they are in ``data`` and the position before them is below
    ``limit``; and their end. ``lead`` bytes precede each."""
    starts: list[int] = []
    at, end = lead, len(data)
    last = min(limit + lead, end - RECORD_BYTES_MIN + 1)
    while at < last:
        size, magic = unpack_head(data, at)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_BYTES_MIN or at + size > end:
            break
        starts.append(at)
        at += size + lead
    return starts, at - lead


def _checked(
    data: bytes, starts: list[int], log_offset: int, in_segment: int, form: SegmentForm = PLAIN_FORM
) -> Records | None:
    """The records if all of them are certainly valid. ``log_offset`` and ``in_segment`` are those of ``data``."""
    try:
        records = Records(data, starts=np.array(starts, np.int64))
        records.check_bodies()
        records.topics.dictionary_encode().dictionary.cast(pa.string())
    except (CorruptRecord, pa.ArrowInvalid):
        return None
    if (records.log_offsets != log_offset + records.starts).any() or _may_be_torn(records, in_segment):
        return None
    if form.is_raft and not _are_entries(records, log_offset, form):
        return None
    return records


def _are_entries(records: Records, log_offset: int, form: SegmentForm) -> bool:
    """Whether each record has its entry header in front of it; ``log_offset`` is that of the data."""
    data, lead = records.data, form.lead
    places = zip(records.starts.tolist(), records.sizes.tolist(), strict=True)
    return all(form.is_lead(data[at - lead : at], log_offset + at, size) for at, size in places)


def _may_be_torn(records: Records, in_segment: int) -> bool:
    """Whether a sector after a body is empty, up to its end or the record's, as if it had not reached the disk."""
    octets = np.frombuffer(records.data, np.uint8)
    ends: Int64s = records.starts + records.sizes
    behind_body = records.body_at + records.body_bytes
    sectors = behind_body + -(in_segment + behind_body) % SECTOR_BYTES
    while True:
        inside = sectors < ends
        if not inside.any():
            return False
        sectors, ends = sectors[inside], ends[inside]
        # Most begin with another byte; a length may begin with a zero.
        for number in np.flatnonzero(octets[sectors] == 0).tolist():
            begin = int(sectors[number])
            if not octets[begin : min(begin + SECTOR_BYTES, int(ends[number]))].any():
                return True
        sectors = sectors + SECTOR_BYTES
