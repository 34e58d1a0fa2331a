"""What a broker gave to a share consumer, by number (R1, R2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.client.consume.given import Given, Range


def test_a_range_is_confirmed_when_all_before_it_is_done() -> None:
    """R1."""
    table = Given()
    assert [True] * 4 == table.add(7, 0, 4)
    table.done(7, [1, 2])
    assert None is table.take()
    table.done(7, [0])
    assert Range(7, 0, 2) == table.take()
    assert None is table.take()
    assert (3, 7) == (table.held, table.life)


def test_what_is_dropped_is_never_confirmed() -> None:
    """R2: the next range begins behind it, which tells the broker that it is lost."""
    table = Given()
    table.add(7, 0, 3)
    table.drop(7, [1])
    table.done(7, [1, 0, 2])
    assert [Range(7, 0, 0), Range(7, 2, 2), None] == [table.take(), table.take(), table.take()]


def test_lives_are_confirmed_apart_and_what_comes_twice_is_known() -> None:
    """R1."""
    table = Given()
    table.add(7, 0, 2)
    assert [False, True] == table.add(7, 1, 2)
    table.add(8, 3, 1)
    table.done(7, [0, 1, 2, 3])
    table.done(8, [2, 3])
    assert [Range(7, 0, 2), Range(8, 3, 3), None] == [table.take(), table.take(), table.take()]


class Slow:
    """What ``Given`` should do, number by number."""

    def __init__(self) -> None:
        #: Life, number, state.
        self.entries: list[tuple[int, int, str]] = []

    def add(self, life: int, first: int, count: int) -> list[bool]:
        known = {entry[:2] for entry in self.entries}
        new = [(life, number) not in known for number in range(first, first + count)]
        self.entries += [(life, number, "open") for number, is_new in enumerate(new, first) if is_new]
        return new

    def mark(self, life: int, numbers: list[int], state: str) -> None:
        self.entries = [
            (*entry[:2], state) if entry[0] == life and entry[1] in numbers and entry[2] == "open" else entry
            for entry in self.entries
        ]

    def take(self) -> Range | None:
        while self.entries and self.entries[0][2] == "dropped":
            self.entries.pop(0)
        found = None
        while self.entries and self.entries[0][2] == "done":
            life, number, _ = self.entries[0]
            if found is not None and (found.life, found.last + 1) != (life, number):
                break
            found = Range(life, found.first if found is not None else number, number)
            self.entries.pop(0)
        return found


STEPS = st.tuples(
    st.sampled_from(["add", "again", "done", "drop", "take"]),
    st.integers(1, 2),
    st.lists(st.integers(0, 12), min_size=1),
)


@given(st.lists(STEPS, max_size=60))
def test_exactly_what_is_done_is_confirmed(steps: list[tuple[str, int, list[int]]]) -> None:
    """R1, R2: whatever the order, and whatever comes again."""
    table, slow, end = Given(), Slow(), 0
    for step, life, numbers in steps:
        if step in ("add", "again"):
            first, count = (end if step == "add" else numbers[0]), len(numbers)
            assert slow.add(life, first, count) == table.add(life, first, count)
            end = max(end, first + count)
        elif step == "take":
            assert slow.take() == table.take()
        else:
            slow.mark(life, numbers, {"done": "done", "drop": "dropped"}[step])
            (table.done if step == "done" else table.drop)(life, numbers)
        assert len(slow.entries) == len(table)
