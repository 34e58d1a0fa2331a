"""Searches in a queue: the first entry that passes, where all behind it do, too (C2, C9, L2).

What one searches for never falls along a queue: log offsets, store times. But *fillers* stand between the entries,
where the log is damaged, and tell nothing. A search that halves and meets one goes on to the next entry that is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ternmq.wire.layouts.queue_entry import ENTRY

#: Entries that are looked at or written out together: one page.
PAGE_ENTRIES: Final = 200

#: Reads entries from a queue offset on, at most so many; at least one, if it is there.
Read = Callable[[int, int], bytes | bytearray]
#: Whether an entry passes, by log offset and size; None if it does not tell.
Passes = Callable[[int, int], bool | None]

#: How much further a stride goes each time.
_GROWTH: Final = 8


def first_passing(read: Read, low: int, high: int, passes: Passes, *, near: int = PAGE_ENTRIES) -> int:
    """The first queue offset from ``low`` on whose entry passes; ``high`` if none before it does.

    Most queues are short and all files are long, so the search strides from ``low`` and ends within ``near`` entries:
    two or three reads, where halving a file of 300,000 takes eighteen. (10,000 queues load in half the time.) Where to
    ask an entry costs more than to read it, ``near=1`` halves from the beginning to the end.
    """
    found, stride = high, near if near > 1 else high
    while high - low > near:
        middle = min(low + stride, (low + high) // 2)
        known, does_pass = _next_known(read, middle, high, passes)
        if does_pass is False:
            low, stride = known + 1, stride * _GROWTH
            continue
        if does_pass:
            found = known
        # From now on it halves.
        high, stride = middle, high
    # One read, unless a file ends in between.
    while low < high and (data := read(low, high - low)):
        for log_offset, size, _ in ENTRY.iter_unpack(data):
            if passes(log_offset, size):
                return low
            low += 1
    return found


def _next_known(read: Read, queue_offset: int, end: int, passes: Passes) -> tuple[int, bool | None]:
    """The first entry from ``queue_offset`` on that tells whether it passes; None if none up to ``end`` does."""
    count = 1
    while queue_offset < end and (data := read(queue_offset, min(count, end - queue_offset))):
        for log_offset, size, _ in ENTRY.iter_unpack(data):
            does_pass = passes(log_offset, size)
            if does_pass is not None:
                return queue_offset, does_pass
            queue_offset += 1
        count = PAGE_ENTRIES
    return end, None
