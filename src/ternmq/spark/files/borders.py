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

from ternmq.store.commitlog import BLANK_BYTES, record_size
from ternmq.store.inspect.scan import MAGIC_AT, MAGIC_BEGIN, Damage, look
from ternmq.wire.record import MAGIC_BLANK, RECORD_BYTES_MIN, peek_head

#: Brokers take bodies of 4 MiB, unless their settings say more.
WINDOW_BYTES: Final = 8 << 20

_BLANK: Final = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")


def border(page: memoryview, begin: int, *, start: int, window_bytes: int = WINDOW_BYTES) -> int | None:
    """Where in a segment the first record from ``begin`` on begins; its size if there is none; None in doubt.

    ``start`` is the log offset of the segment's first byte.
    """
    size = len(page)
    window_at = begin - window_bytes
    if window_at <= 0:
        return None
    seen = list(_candidates(page, window_at, begin, start=start))
    reaching = [(at, end) for at, end in seen if end >= begin and _is_whole(page, at, start=start)]
    if len(reaching) != 1:
        return None
    ((at, end),) = reaching
    seen += _candidates(page, begin, end, start=start)
    # Another one across it means that one of both is forged.
    across = [begins for begins, ends in seen if begins != at and begins < end and ends > at]
    if any(_is_whole(page, begins, start=start) for begins in across):
        return None
    if end == size:
        return size
    return end if end + BLANK_BYTES <= size and _is_whole(page, end, start=start) else None


def _candidates(page: memoryview, begin: int, end: int, *, start: int) -> Iterator[tuple[int, int]]:
    """Begin and end of what, from ``begin`` up to ``end``, looks like a record that knows its place, or like the blank
    at the segment's end."""
    size = len(page)
    # All bytes of a magic number whose record begins before ``end``.
    data = bytes(page[begin : min(size, end + MAGIC_AT + 4)])
    for magic in (MAGIC_BEGIN, _BLANK):
        found = data.find(magic, MAGIC_AT)
        while found >= 0:
            at = begin + found - MAGIC_AT
            if at >= end:
                break
            total, _ = peek_head(page, at)
            if magic is _BLANK:
                if at + total == size:
                    yield at, size
            elif total >= RECORD_BYTES_MIN and at + total <= size and record_size(page[at:], start + at) == total:
                yield at, at + total
            found = data.find(magic, found + 1)


def _is_whole(page: memoryview, at: int, *, start: int) -> bool:
    return not isinstance(look(page, start, at, len(page)), Damage)
