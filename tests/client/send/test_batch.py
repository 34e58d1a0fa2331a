"""Cutting lists into batches, and gathering messages into them: plain calls, time passed in (E6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.client.send.batch import Accumulator, BatchKey, OpenBatch, packed_bytes, split_batch
from ternmq.client.send.outgoing import prepare_batch
from ternmq.message import Message, MessageQueue

KEY = BatchKey("orders", None, True)

messages_of = st.builds(
    Message,
    topic=st.just("orders"),
    body=st.binary(min_size=1, max_size=400),
    tags=st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20),
    keys=st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20),
    properties=st.dictionaries(
        st.text(st.characters(min_codepoint=97, max_codepoint=0x9000), min_size=1, max_size=5),
        st.text(st.characters(min_codepoint=97, max_codepoint=0x9000), max_size=30),
        max_size=4,
    ),
)


@given(st.lists(messages_of, max_size=30), st.integers(1_000, 5_000))
def test_every_part_fits_and_together_they_are_the_whole(messages: list[Message], bytes_max: int) -> None:
    """E6."""
    parts = list(split_batch(messages, bytes_max=bytes_max))
    assert messages == [message for part in parts for message in part]
    for part in parts:
        packed = prepare_batch(part, message_ids=["F" * 56] * len(part), namespace="space")
        assert len(packed.body) <= sum(map(packed_bytes, part)) <= bytes_max


def test_what_is_no_text_is_cut_like_any_other() -> None:
    """E2: sending it says what is wrong with it."""
    odd = Message("orders", b"x", tags="\ud800")
    assert [[odd]] == list(split_batch([odd]))


def test_parts_are_as_long_as_they_may_be() -> None:
    each = packed_bytes(Message("orders", b"x" * 100))
    parts = split_batch([Message("orders", b"x" * 100)] * 7, bytes_max=3 * each)
    assert [3, 3, 1] == [len(part) for part in parts]


def test_a_message_that_is_too_large_alone_stands_alone() -> None:
    """Sending it then says what is wrong with it."""
    small, large = Message("orders", b"x"), Message("orders", b"x" * 5_000)
    assert [[small], [large], [small]] == list(split_batch([small, large, small], bytes_max=1_000))


# --- Gathering -------------------------------------------------------------------------------------------------

EACH = packed_bytes(Message("orders", b"0" * 10))


def message(number: int) -> Message:
    return Message("orders", f"{number:010}".encode())


def accumulator(*, fits: float = 3.5, holds: float = 100) -> Accumulator[int]:
    """Gathers messages of ten bytes: so many to a batch, and so many in all."""
    return Accumulator(batch_bytes=int(fits * EACH), wait_ms=10, total_bytes=int(holds * EACH))


def add(held: Accumulator[int], number: int, *, now_ms: int = 0, key: BatchKey = KEY) -> list[list[int]]:
    return waiters(held.add(key, message(number), number, now_ms=now_ms))


def waiters(batches: list[OpenBatch[int]]) -> list[list[int]]:
    return [batch.waiters for batch in batches]


def test_messages_wait_for_company_until_their_time_is_over() -> None:
    """E6: 10 ms."""
    held = accumulator()
    assert [] == add(held, 1, now_ms=100)
    assert [] == add(held, 2, now_ms=105)
    assert 110 == held.next_due_ms
    assert [] == held.due(now_ms=109)
    (batch,) = held.due(now_ms=110)
    assert ([1, 2], [message(1), message(2)]) == (batch.waiters, batch.messages)
    assert held.next_due_ms is None


def test_a_full_batch_goes_at_once() -> None:
    """E6: 32 KiB."""
    held = accumulator(fits=2.5)
    assert [[], [], [[1, 2]]] == [add(held, number) for number in (1, 2, 3)]
    assert [[3]] == waiters(held.all())


def test_batches_are_kept_apart_by_topic_queue_and_wait() -> None:
    """E6."""
    held = accumulator()
    keys = [KEY, KEY._replace(topic="bills"), KEY._replace(queue=MessageQueue("orders", "a", 1)),
            KEY._replace(wait_store_ok=False)]  # fmt: skip
    for number, key in enumerate([*keys, *keys]):
        add(held, number, key=key)
    assert [[0, 4], [1, 5], [2, 6], [3, 7]] == waiters(held.all())


def test_what_cannot_be_held_goes_alone() -> None:
    """E6: bounded, 32 MiB in all."""
    held, other = accumulator(holds=2), KEY._replace(topic="bills")
    assert [[], []] == [add(held, 1), add(held, 2)]
    assert [[3]] == add(held, 3, key=other)
    # In its own batch it goes with those before it, or it would overtake them.
    assert [[1, 2, 4]] == add(held, 4)
    assert [] == add(held, 5)


def test_a_large_message_does_not_wait_and_does_not_overtake() -> None:
    held = accumulator(fits=2)
    add(held, 1)
    large = held.add(KEY, Message("orders", b"x" * 10_000), 2, now_ms=0)
    assert [[1], [2]] == waiters(large)
    assert [] == held.all()


def test_the_timer_is_for_the_oldest_batch() -> None:
    held = accumulator()
    add(held, 1, now_ms=100)
    add(held, 2, now_ms=104, key=KEY._replace(topic="bills"))
    assert [[1]] == waiters(held.due(now_ms=112))
    assert 114 == held.next_due_ms


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2_000), st.integers(0, 6)), max_size=60))
def test_each_message_leaves_once_and_in_order(steps: list[tuple[int, int, int]]) -> None:
    """E6."""
    held: Accumulator[tuple[int, int]] = Accumulator(batch_bytes=2_000, wait_ms=10, total_bytes=5_000)
    sent: list[OpenBatch[tuple[int, int]]] = []
    now_ms = 0
    for number, (topic, body_bytes, passed_ms) in enumerate(steps):
        now_ms += passed_ms
        sent += held.due(now_ms=now_ms)
        key = BatchKey(f"topic-{topic}", None, True)
        sent += held.add(key, Message(key.topic, b"x" * body_bytes), (topic, number), now_ms=now_ms)
    sent += held.all()
    for topic in range(3):
        expected = [(topic, number) for number, step in enumerate(steps) if step[0] == topic]
        assert expected == [waiter for batch in sent for waiter in batch.waiters if waiter[0] == topic]
    assert [] == held.all()
