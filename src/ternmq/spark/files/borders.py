"""Finds the first record of a slice without a walk from the segment's start; a core (U3).

Records are contiguous and only contain their length, so a reader that starts in the middle must find one. Searching for
the next bytes that look like a record is not enough: a body may contain whole records, and a sender may know the
position of its message in the log. Forged records would become rows.

So the search also looks back, as far as a record can be long. Then it has seen every record that may extend over the
position, including the real one, if it is valid. If there is exactly one, it is the real one, and the next record
begins at its end. If there are more, or none, or another one overlaps it, the result is *doubt*, and the caller walks
from the segment's start: a forgery only makes the read slower.

Invariant: ``border`` returns a position that a walk from the segment's start also reaches, if no record
before it is longer than ``window_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ternmq.store.inspect.scan import Damage, look
from ternmq.wire.record import BLANK_BYTES, MAGIC_AT, MAGIC_BEGIN, MAGIC_BLANK, RECORD_BYTES_MIN, peek_head, record_size

#: Brokers accept bodies of 4 MiB by default.
WINDOW_BYTES: Final = 8 << 20

_BLANK: Final = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")


def border(page: memoryview, begin: int, *, start: int, lead: int = 0, window_bytes: int = WINDOW_BYTES) -> int | None:
    """The first position from ``begin`` on in a segment; its size if there is none; None in doubt.

    ``start`` is the log offset of the segment's first byte; ``lead`` bytes precede each record.
    """
    size = len(page)
    window_at = begin - window_bytes
    if window_at <= 0:
        return None
    seen = list(_candidates(page, window_at, begin, start=start, lead=lead))
    reaching = [(at, end) for at, end in seen if end >= begin and _is_whole(page, at, start=start, lead=lead)]
    if len(reaching) != 1:
        return None
    ((at, end),) = reaching
    seen += _candidates(page, begin, end, start=start, lead=lead)
    # Another one that overlaps it means that one of them is forged.
    across = [begins for begins, ends in seen if begins != at and begins < end and ends > at]
    if any(_is_whole(page, begins, start=start, lead=lead) for begins in across):
        return None
    if end == size:
        return size
    return end if end + BLANK_BYTES <= size and _is_whole(page, end, start=start, lead=lead) else None


def _candidates(page: memoryview, begin: int, end: int, *, start: int, lead: int) -> Iterator[tuple[int, int]]:
    """The positions before and after everything between ``begin`` and ``end`` that looks like a record with the right
    log offset, or like the blank at the segment's end."""
    size = len(page)
    # All bytes of a magic number whose record begins before ``end``.
    data = bytes(page[begin : min(size, end + lead + MAGIC_AT + 4)])
    for magic, ahead in ((MAGIC_BEGIN, lead), (_BLANK, 0)):
        found = data.find(magic, ahead + MAGIC_AT)
        while found >= 0:
            at = begin + found - MAGIC_AT - ahead
            if at >= end:
                break
            record_at = at + ahead
            total, _ = peek_head(page, record_at)
            record_end = record_at + total
            if magic is _BLANK:
                if record_end == size:
                    yield at, size
            elif (
                total >= RECORD_BYTES_MIN
                and record_end <= size
                and record_size(page[record_at:], start + record_at) == total
            ):
                yield at, record_end
            found = data.find(magic, found + 1)


def _is_whole(page: memoryview, at: int, *, start: int, lead: int) -> bool:
    return not isinstance(look(page, start, at, len(page), lead=lead), Damage)
