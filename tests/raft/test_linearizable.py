"""The search for linearizations itself: what it accepts, what it refuses, and that a plain search agrees (P3)."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raft.linearizable import Appended, Operation, QueueAct, Read, queue_copy, violation

_BODIES = (b"a", b"b", b"c")


def fits(*operations: tuple[QueueAct, float, float | None], contents: tuple[bytes, ...] = _BODIES) -> bool:
    history = [Operation(act, called, done) for act, called, done in operations]
    return violation(history, 0, queue_copy(contents)) is None


def test_a_history_without_overlaps_is_its_own_order() -> None:
    assert fits((Appended(0), 0, 1), (Read(1), 2, 3), (Appended(1), 4, 5), (Read(2, 1, b"b"), 6, 7))


def test_a_read_that_overlaps_an_append_may_see_it_or_not() -> None:
    assert fits((Appended(0), 0, 10), (Read(0), 1, 2))
    assert fits((Appended(0), 0, 10), (Read(1), 1, 2))


def test_once_seen_it_stays() -> None:
    """The append has one moment, though it is not answered: a later read sees it, too."""
    assert fits((Appended(0), 0, 10), (Read(0), 1, 2), (Read(1), 3, 4))
    assert not fits((Appended(0), 0, 10), (Read(1), 1, 2), (Read(0), 3, 4))


def test_an_append_without_an_answer_may_happen_late_or_never() -> None:
    assert fits((Appended(0), 0, None), (Read(0), 50, 51), (Read(1), 60, 61))
    assert fits((Appended(0), 0, None), (Read(0), 50, 51))


@pytest.mark.parametrize(
    "operations",
    [
        # A leader without a lease: the message was acknowledged before the read began.
        [(Appended(0), 0, 1), (Read(0), 2, 3)],
        # An acknowledged message that is lost.
        [(Appended(0), 0, 1), (Read(1), 2, 3), (Read(0), 4, 5)],
        # Two messages at one offset.
        [(Appended(0), 0, 1), (Appended(0), 2, 3)],
        # A message before one that was acknowledged before it was sent.
        [(Appended(1), 0, 1), (Appended(0), 2, 3)],
        # A hole.
        [(Appended(0), 0, 1), (Appended(2), 2, 3)],
        # Read before it was committed, and read again when it was gone.
        [(Appended(0), 0, None), (Read(1, 0, b"a"), 1, 2), (Read(0, 0, None), 3, 4)],
        # What is there is another message.
        [(Appended(0), 0, 1), (Read(1, 0, b"b"), 2, 3)],
        # Seen before it was sent.
        [(Read(1), 0, 1), (Appended(0), 2, 3)],
        # Two readers see two appends in different orders.
        [(Appended(0), 0, 9), (Appended(1), 0, 9), (Read(2), 1, 2), (Read(1), 3, 4)],
    ],
)
def test_what_a_single_queue_would_not_have_done_is_found(
    operations: list[tuple[QueueAct, float, float | None]],
) -> None:
    assert not fits(*operations)


def test_what_cannot_be_next_is_told() -> None:
    history = [Operation[QueueAct](Appended(0), 0, 1), Operation[QueueAct](Read(0), 2, 3)]

    assert [history[1]] == violation(history, 0, queue_copy(_BODIES))


def test_long_histories_with_few_overlaps_take_no_time() -> None:
    contents = [b"%d" % number for number in range(2_000)]
    history: list[Operation[QueueAct]] = []
    for number in range(2_000):
        history.append(Operation(Appended(number), number, number + 3.5 if number % 5 else None))
        history.append(Operation(Read(number), number - 0.5, number + 0.2))

    assert violation(history, 0, queue_copy(contents)) is None


_ACTS = st.one_of(
    st.builds(Appended, st.integers(0, 2)),
    st.builds(Read, st.integers(0, 3)),
    st.builds(Read, st.integers(0, 3), st.integers(0, 2), st.sampled_from((None, *_BODIES))),
)


@st.composite
def _histories(draw: st.DrawFn) -> list[Operation[QueueAct]]:
    found: list[Operation[QueueAct]] = []
    for act in draw(st.lists(_ACTS, max_size=5)):
        called = draw(st.integers(0, 6))
        done = draw(st.none() | st.integers(called, 8)) if isinstance(act, Appended) else draw(st.integers(called, 8))
        found.append(Operation(act, called, done))
    return found


@given(_histories())
def test_a_search_of_all_orders_finds_the_same(history: list[Operation[QueueAct]]) -> None:
    assert _any_order(history) == (violation(history, 0, queue_copy(_BODIES)) is None)


def _any_order(history: list[Operation[QueueAct]]) -> bool:
    """By definition: some order of all that was answered, and any of the rest, respects time and the copy."""
    step = queue_copy(_BODIES)
    for order in permutations(history):
        for count in range(len(order) + 1):
            chosen, left = order[:count], order[count:]
            if any(each.done is not None for each in left):
                continue
            if any(
                later.done is not None and later.done < earlier.called
                for at, earlier in enumerate(chosen)
                for later in chosen[at + 1 :]
            ):
                continue
            state: int | None = 0
            for each in chosen:
                state = step(state, each.act) if state is not None else None
            if state is not None:
                return True
    return False
