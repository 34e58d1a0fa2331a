"""Searches by halving in a queue whose fillers tell nothing (C2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.store.derived.queue_search import PAGE_ENTRIES, first_passing
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES, FILLER, FILLER_SIZE

#: Runs of real entries and of fillers, by turns.
runs = st.lists(st.integers(0, 700), max_size=8)


def rows(lengths: list[int]) -> bytes:
    """Entry *n* has log offset 10 · n, unless it is a filler."""
    parts = []
    number = 0
    for turn, length in enumerate(lengths):
        parts += [FILLER if turn % 2 else ENTRY.pack(10 * each, 10, 0) for each in range(number, number + length)]
        number += length
    return b"".join(parts)


@pytest.mark.parametrize("near", [1, 7, PAGE_ENTRIES])
@given(lengths=runs, low=st.integers(0, 5), limit=st.integers(0, 6000))
def test_the_first_that_passes_is_found_past_fillers(near: int, lengths: list[int], low: int, limit: int) -> None:
    """C2: what a look at every entry finds."""
    data = rows(lengths)
    count = len(data) // ENTRY_BYTES

    def read(queue_offset: int, wanted: int) -> bytes:
        # As at the end of a file: fewer than asked for.
        return data[queue_offset * ENTRY_BYTES : (queue_offset + min(wanted, 150)) * ENTRY_BYTES]

    def passes(log_offset: int, size: int) -> bool | None:
        return None if size == FILLER_SIZE else log_offset >= limit

    expected = next((at for at in range(low, count) if passes(*ENTRY.unpack_from(data, at * ENTRY_BYTES)[:2])), count)
    assert max(expected, low) == first_passing(read, low, max(count, low), passes, near=near)


def test_a_long_queue_is_searched_with_few_reads() -> None:
    """C2: 300,000 entries, of which the first hundred are there."""
    data = rows([100]).ljust(300_000 * ENTRY_BYTES, b"\0")
    asked: list[int] = []

    def read(queue_offset: int, wanted: int) -> bytes:
        asked.append(wanted)
        return data[queue_offset * ENTRY_BYTES : (queue_offset + wanted) * ENTRY_BYTES]

    assert 100 == first_passing(read, 0, 300_000, lambda _, size: size <= 0)
    assert [1, PAGE_ENTRIES] == asked
