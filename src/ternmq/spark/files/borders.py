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
from ternmq.wire.layouts.segment_form import PLAIN_FORM, SegmentForm
from ternmq.wire.record import BLANK_BYTES, MAGIC_AT, MAGIC_BEGIN, RECORD_BYTES_MIN, peek_head, record_size

#: Brokers accept bodies of 4 MiB by default.
WINDOW_BYTES: Final = 8 << 20


def border(
    page: memoryview, begin: int, *, start: int, form: SegmentForm = PLAIN_FORM, window_bytes: int = WINDOW_BYTES
) -> int | None:
    """The first position from ``begin`` on in a segment; its size if there is none; None in doubt.

    ``start`` is the log offset of the segment's first byte.
    """
    size = len(page)
    window_at = begin - window_bytes
    if window_at <= 0:
        return None
    seen = list(_candidates(page, window_at, begin, start=start, form=form))
    reaching = [(at, end) for at, end in seen if end >= begin and _is_whole(page, at, start=start, form=form)]
    if len(reaching) != 1:
        return None
    ((at, end),) = reaching
    seen += _candidates(page, begin, end, start=start, form=form)
    # Another one that overlaps it means that one of them is forged.
    across = [begins for begins, ends in seen if begins != at and begins < end and ends > at]
    if any(_is_whole(page, begins, start=start, form=form) for begins in across):
        return None
    if end == size:
        return size
    return end if end + BLANK_BYTES <= size and _is_whole(page, end, start=start, form=form) else None


def _candidates(page: memoryview, begin: int, end: int, *, start: int, form: SegmentForm) -> Iterator[tuple[int, int]]:
    """The positions before and after everything between ``begin`` and ``end`` that looks like a record with the right
    log offset, or like the blank at the segment's end."""
    size, lead = len(page), form.lead
    # All bytes of a magic number whose record begins before ``end``.
    data = bytes(page[begin : min(size, end + lead + MAGIC_AT + 4)])
    for at in _found(data, MAGIC_BEGIN, lead + MAGIC_AT, begin=begin, end=end):
        record_at = at + lead
        total, _ = peek_head(page, record_at)
        if (
            total >= RECORD_BYTES_MIN
            and record_at + total <= size
            and record_size(page[record_at:], start + record_at) == total
        ):
            yield at, record_at + total
    mark, mark_at = form.blank_mark
    for at in _found(data, mark, mark_at, begin=begin, end=end):
        if at + BLANK_BYTES <= size and at + form.blank_bytes(page, at) == size:
            yield at, size


def _found(data: bytes, magic: bytes, ahead: int, *, begin: int, end: int) -> Iterator[int]:
    """The positions before ``end`` with the magic number ``ahead`` bytes behind them; ``data`` is from ``begin``."""
    found = data.find(magic, ahead)
    while 0 <= found < end - begin + ahead:
        yield begin + found - ahead
        found = data.find(magic, found + 1)


def _is_whole(page: memoryview, at: int, *, start: int, form: SegmentForm) -> bool:
    return not isinstance(look(page, start, at, len(page), form), Damage)
