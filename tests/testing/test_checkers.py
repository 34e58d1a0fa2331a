"""The checkers see what is wrong: a simulation that can find nothing proves nothing (F1, F7, G1)."""

from __future__ import annotations

import pytest

from ternmq.message import MessageQueue
from ternmq.testing.checkers import Broken, Calls, Journal, check_owned_once

ONE, TWO = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


def test_a_message_that_nobody_consumed_is_found() -> None:
    journal = Journal(acknowledged={b"1": (ONE, 0), b"2": (ONE, 1)})
    journal.consumed[b"1"] += 1

    assert [b"2"] == journal.missing
    with pytest.raises(Broken, match="1 of 2 messages"):
        journal.check_consumed()

    journal.consumed[b"2"] += 1
    journal.check_consumed()


def test_progress_that_passes_undone_work_is_found() -> None:
    journal = Journal(acknowledged={b"1": (ONE, 0), b"2": (ONE, 1), b"3": (TWO, 0)})
    journal.consumed[b"1"] += 1

    journal.check_progress(ONE, 1)
    with pytest.raises(Broken, match="b'2' at 1 was never delivered"):
        journal.check_progress(ONE, 2)
    journal.failed[b"2"] += 1
    journal.check_progress(ONE, 2)


def test_a_message_begun_before_its_predecessor_is_done_is_found() -> None:
    journal = Journal(acknowledged={b"1": (ONE, 0), b"2": (ONE, 1), b"3": (TWO, 0)})

    journal.check_order(ONE, 0)
    with pytest.raises(Broken, match="b'1' at 0 was never done"):
        journal.check_order(ONE, 1)
    journal.consumed[b"1"] += 1
    journal.check_order(ONE, 1)


def test_two_members_inside_one_queue_are_found() -> None:
    calls = Calls(trusted_s=30)

    calls.begin("x", ONE, 100)
    calls.begin("y", TWO, 100)
    with pytest.raises(Broken, match="y begins to work on t@a:0"):
        calls.begin("y", ONE, 101)
    calls.begin("y", ONE, 130)
    calls.end("x", ONE)
    calls.died("y")
    calls.begin("x", ONE, 131)


@pytest.mark.parametrize(
    ("owned", "wrong"),
    [
        ({"x": [ONE], "y": [TWO]}, False),
        ({"x": [ONE, TWO], "y": []}, False),
        ({"x": [ONE]}, True),
        ({"x": [ONE, TWO], "y": [TWO]}, True),
        ({"x": [ONE, TWO, MessageQueue("t", "b", 0)]}, True),
    ],
)
def test_queues_without_one_owner_are_found(owned: dict[str, list[MessageQueue]], wrong: bool) -> None:
    if wrong:
        with pytest.raises(Broken, match="not have exactly one owner"):
            check_owned_once(owned, [ONE, TWO])
    else:
        check_owned_once(owned, [ONE, TWO])
