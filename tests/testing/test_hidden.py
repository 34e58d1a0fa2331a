"""The checker of hidden messages (F9): it must see what it is for."""

from __future__ import annotations

import pytest

from ternmq.testing.checkers import Broken
from ternmq.testing.hidden import Hidden


def test_what_is_hidden_must_not_be_handed_out() -> None:
    """F9: at the end of its time it may; other messages always."""
    hidden = Hidden()
    hidden.take(b"a", 0, 10)
    hidden.take(b"b", 5, 15)
    hidden.take(b"a", 10, 20)

    with pytest.raises(Broken, match="b'a' is delivered twice within 9 ms"):
        hidden.take(b"a", 19, 29)


def test_answers_that_come_in_another_order_are_found_too() -> None:
    """F9"""
    hidden = Hidden()
    hidden.take(b"a", 5, 15)

    with pytest.raises(Broken, match="twice within 5 ms"):
        hidden.take(b"a", 0, 10)


def test_whoever_gives_a_message_back_hides_it_no_more() -> None:
    """F9: and nothing before that."""
    hidden = Hidden()
    span = hidden.take(b"a", 0, 10)
    span.release(4)

    with pytest.raises(Broken, match="twice"):
        hidden.take(b"a", 3, 13)
    hidden.take(b"a", 4, 14)


def test_a_queue_is_hidden_as_long_as_one_of_its_messages() -> None:
    """F9: in ordered pops."""
    hidden = Hidden()
    spans = [hidden.take("queue", 0, 10), hidden.hide("queue", 0, 10)]
    spans[0].release(1)

    with pytest.raises(Broken, match="'queue' is delivered twice"):
        hidden.take("queue", 5, 15)
    spans[1].release(5)
    hidden.hide("queue", 5, 8)
    hidden.take("queue", 8, 15)


def test_what_is_done_must_never_come_again() -> None:
    """F9: an answer of before may still arrive."""
    hidden = Hidden()
    hidden.take(b"a", 0, 10).release(3)
    hidden.done(b"a", 4)
    hidden.take(b"a", 3, 13).release(3)

    with pytest.raises(Broken, match="acknowledged 96 ms before"):
        hidden.take(b"a", 100, 110)
