"""Where the first record of a slice begins, without a walk from the segment's start; a core (U3).

Records stand back to back and only tell how long they are, so whoever starts in the middle must find one. To search for
the next bytes that look like a record is not enough: a body may hold whole records, and whoever sends knows where in
the log his message will stand. What he forged would become rows.

So the search looks back as well, as far as a record can be long. Then it has seen every record that might reach over
the place, the real one among them, if it is whole. If there is just one such, it is the real one, and the next record
begins where it ends. If there are more, or none, or another lies across it, the answer is *doubt*, and the caller walks
from the segment's start: a forger gains nothing but a slower read.

Invariant: what ``border`` returns is a place that a walk from the segment's start comes by too, as long as no record
before it is longer than ``window_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ternmq.store.inspect.scan import Damage, look
from ternmq.wire.record import BLANK_BYTES, MAGIC_AT, MAGIC_BEGIN, MAGIC_BLANK, RECORD_BYTES_MIN, peek_head, record_size

#: Brokers take bodies of 4 MiB, unless their settings say more.
WINDOW_BYTES: Final = 8 << 20

_BLANK: Final = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")


def border(page: memoryview, begin: int, *, start: int, lead: int = 0, window_bytes: int = WINDOW_BYTES) -> int | None:
    """The first position from ``begin`` on in a segment; its size if there is none; None in doubt.

    ``start`` is the log offset of the segment's first byte; ``lead`` bytes stand in front of each record.
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
    # Another one across it means that one of both is forged.
    across = [begins for begins, ends in seen if begins != at and begins < end and ends > at]
    if any(_is_whole(page, begins, start=start, lead=lead) for begins in across):
        return None
    if end == size:
        return size
    return end if end + BLANK_BYTES <= size and _is_whole(page, end, start=start, lead=lead) else None


def _candidates(page: memoryview, begin: int, end: int, *, start: int, lead: int) -> Iterator[tuple[int, int]]:
    """The positions before and behind what, from ``begin`` up to ``end``, looks like a record that knows its place, or
    like the blank at the segment's end."""
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
