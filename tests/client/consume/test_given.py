"""What a broker gave to a share consumer, by number (R1, R2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.client.consume.given import Given, Range


def test_a_range_is_confirmed_when_all_before_it_is_done() -> None:
    """R1."""
    table = Given()
    assert [True] * 4 == table.add(7, 0, 4)
    table.done(7, 1)
    table.done(7, 2)
    assert None is table.take()
    table.done(7, 0)
    assert Range(7, 0, 2) == table.take()
    assert None is table.take()
    assert (3, 7) == (table.held, table.life)


def test_what_is_dropped_is_never_confirmed() -> None:
    """R2: the next range begins behind it, which tells the broker that it is lost."""
    table = Given()
    table.add(7, 0, 3)
    table.drop(7, 1)
    table.done(7, 1)
    table.done(7, 0)
    table.done(7, 2)
    assert [Range(7, 0, 0), Range(7, 2, 2), None] == [table.take(), table.take(), table.take()]


def test_lives_are_confirmed_apart_and_what_comes_twice_is_known() -> None:
    """R1."""
    table = Given()
    table.add(7, 0, 2)
    assert [False, True] == table.add(7, 1, 2)
    table.add(8, 3, 1)
    for life, number in ((7, 0), (7, 1), (7, 2), (8, 3)):
        table.done(life, number)
    assert [Range(7, 0, 2), Range(8, 3, 3), None] == [table.take(), table.take(), table.take()]


@given(st.lists(st.tuples(st.sampled_from(["add", "done", "drop", "take"]), st.integers(0, 20)), max_size=60))
def test_exactly_what_is_done_is_confirmed(steps: list[tuple[str, int]]) -> None:
    """R1, R2: whatever the order."""
    table = Given()
    done: set[int] = set()
    dropped: set[int] = set()
    confirmed: list[int] = []
    end = 0
    for step, number in steps:
        if step == "add":
            table.add(1, end, number % 4 + 1)
            end += number % 4 + 1
        elif step == "take":
            while (ack := table.take()) is not None:
                confirmed += range(ack.first, ack.last + 1)
        elif number < end and number not in confirmed and number not in done | dropped:
            (done if step == "done" else dropped).add(number)
            (table.done if step == "done" else table.drop)(1, number)
    assert sorted(set(confirmed)) == confirmed
    assert set(confirmed) <= done
