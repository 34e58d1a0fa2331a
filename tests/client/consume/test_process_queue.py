"""What a consumer holds of one queue (F7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.message import ReceivedMessage
from tests.client.samples import QUEUE, messages, received


def test_progress_stays_at_the_smallest_undone_message() -> None:
    """F7."""
    held = ProcessQueue[Claimed](QUEUE, 10)
    first, second, third = held.put(messages(10, 11, 12), 13)

    held.done([second, third])
    assert 10 == held.progress

    held.done([first])
    assert 13 == held.progress


def test_progress_of_an_empty_queue_is_where_it_will_fetch() -> None:
    """F7: the part that the broker skipped need not be read again."""
    held = ProcessQueue[Claimed](QUEUE, 5)
    assert 5 == held.progress
    held.put([], 40)
    assert 40 == held.progress
    held.done(held.put(messages(41), 60))
    assert 60 == held.progress


def test_skipped_messages_behind_undone_ones_do_not_move_progress() -> None:
    """F7."""
    held = ProcessQueue[Claimed](QUEUE, 0)
    held.put(messages(3), 4)
    held.put([], 100)
    assert (3, 100) == (held.progress, held.next_offset)


def test_count_bytes_and_span_follow_what_is_in_flight() -> None:
    """M2: what flow control looks at."""
    held = ProcessQueue[Claimed](QUEUE, 0)
    fetched = held.put([received(0, b"abc"), received(7, b"de")], 8)
    assert (2, 5, 7) == (len(held), held.body_bytes, held.span)
    held.done(fetched[:1])
    assert (1, 2, 0) == (len(held), held.body_bytes, held.span)
    held.done(fetched)
    assert (0, 0, 0) == (len(held), held.body_bytes, held.span)


def test_a_message_is_done_only_once() -> None:
    """F1: a listener that ends after its time-out finds its message sent back already."""
    held = ProcessQueue[Claimed](QUEUE, 0)
    (message,) = held.put([received(0, b"abc")], 1)
    assert [message] == held.in_flight()
    held.done([message])
    held.done([message])
    assert (0, 0) == (len(held), held.body_bytes)
    assert [] == held.in_flight()


def test_what_was_fetched_before_is_not_taken_again() -> None:
    """F7: a broker that answers with too much, or in another order, does no harm."""
    held = ProcessQueue[Claimed](QUEUE, 0)
    held.done(held.put(messages(0, 1, 2), 3))
    new = held.put(messages(4, 1, 3, 4), 2)
    assert [3, 4] == [message.queue_offset for message in new]
    assert (3, 5) == (held.progress, held.next_offset)


@given(st.permutations(range(40)))
def test_progress_never_passes_undone_work_in_any_order(order: list[int]) -> None:
    """F7."""
    held = ProcessQueue[Claimed](QUEUE, 0)
    fetched = held.put(messages(*range(40)), 40)
    undone = set(range(40))
    for offset in order:
        held.done([fetched[offset]])
        undone.discard(offset)
        assert min(undone, default=40) == held.progress


class AgainstAModel(RuleBasedStateMachine):
    """The queue does the same as a plain dict that is searched for its minimum each time (F7)."""

    in_flight = Bundle("in_flight")

    def __init__(self) -> None:
        super().__init__()
        self.held = ProcessQueue[Claimed](QUEUE, 100)
        self.model: dict[int, ReceivedMessage] = {}
        self.next_offset = 100

    @rule(target=in_flight, gaps=st.lists(st.integers(0, 3), max_size=8), skipped=st.integers(0, 3))
    def fetch(self, gaps: list[int], skipped: int) -> object:
        fetched = []
        offset = self.next_offset
        for gap in gaps:
            offset += gap
            fetched.append(received(offset, b"x" * gap))
            offset += 1
        self.next_offset = offset + skipped
        self.held.put(fetched, self.next_offset)
        self.model |= {message.queue_offset: message for message in fetched}
        return multiple(*fetched)

    @rule(batch=st.lists(consumes(in_flight), max_size=4))
    def finish(self, batch: list[Claimed]) -> None:
        self.held.done(batch)
        for message in batch:
            del self.model[message.queue_offset]

    @invariant()
    def all_numbers_agree(self) -> None:
        held, model = self.held, self.model
        assert min(model, default=self.next_offset) == held.progress
        assert len(model) == len(held)
        assert sum(len(message.body) for message in model.values()) == held.body_bytes
        assert max(model, default=0) - min(model, default=0) <= held.span
        assert sorted(model) == [message.queue_offset for message in held.in_flight()]


TestAgainstAModel = AgainstAModel.TestCase
