"""Cutting lists into batches, and gathering messages into them: plain calls, time passed in (E6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.client.send.batch import Accumulator, BatchKey, OpenBatch, packed_bytes, split_batch
from ternmq.client.send.outgoing import prepare_batch
from ternmq.message import Message, MessageQueue

KEY = BatchKey("orders", None, True, 3_000)
FIXED = KEY._replace(queue=MessageQueue("orders", "a", 1))

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


def accumulator(*, fits: float = 3.5, holds: float = 100, wait_ms: int = 0) -> Accumulator[int]:
    """Gathers messages of ten bytes: so many to a batch, and so many in all."""
    return Accumulator(batch_bytes=int(fits * EACH), wait_ms=wait_ms, total_bytes=int(holds * EACH))


def add(held: Accumulator[int], *numbers: int, now_ms: int = 0, key: BatchKey = KEY) -> list[list[int]]:
    """Add messages and send what is ready then."""
    for number in numbers:
        held.add(key, message(number), number, now_ms=now_ms)
    return ready(held, now_ms=now_ms)


def ready(held: Accumulator[int], *, now_ms: int = 0) -> list[list[int]]:
    return waiters(held.ready(now_ms=now_ms))


def waiters(batches: list[OpenBatch[int]]) -> list[list[int]]:
    return [batch.waiters for batch in batches]


def test_messages_gather_while_requests_are_on_their_way() -> None:
    """E6: without any waiting for time."""
    held = accumulator()
    assert [[[1, 2]], [[3]], [], []] == [add(held, 1, 2), add(held, 3), add(held, 4), add(held, 5)]
    assert held.next_due_ms is None
    held.ended(KEY)
    assert [[4, 5]] == ready(held)


def test_messages_wait_for_company_if_so_wished() -> None:
    """E6: ``auto_batch_wait_ms``."""
    held = accumulator(wait_ms=10)
    assert [[], []] == [add(held, 1, now_ms=100), add(held, 2, now_ms=105)]
    assert 110 == held.next_due_ms
    assert [] == ready(held, now_ms=109)
    (batch,) = held.ready(now_ms=110)
    assert ([1, 2], [message(1), message(2)]) == (batch.waiters, batch.messages)
    assert held.next_due_ms is None


def test_a_full_batch_waits_neither_for_time_nor_for_a_few_requests() -> None:
    """E6: 32 KiB."""
    held = accumulator(fits=2.5, wait_ms=10)
    assert [[number, number + 1] for number in range(0, 16, 2)] == add(held, *range(40))
    held.ended(KEY)
    assert [[16, 17]] == ready(held)


def test_a_fixed_queue_has_one_request_on_its_way() -> None:
    """E5: a batch that goes again because the broker is busy is not overtaken."""
    held = accumulator(fits=2.5)
    assert [[1, 2]] == add(held, 1, 2, 3, 4, 5, key=FIXED)
    assert [] == add(held, 6, key=FIXED)
    held.ended(FIXED)
    assert [[3, 4]] == ready(held)


def test_batches_are_kept_apart_by_topic_queue_wait_and_time_limit() -> None:
    """E6."""
    held = accumulator()
    keys = [KEY, KEY._replace(topic="bills"), FIXED, KEY._replace(wait_store_ok=False), KEY._replace(timeout_ms=1)]
    for number, key in enumerate([*keys, *keys]):
        held.add(key, message(number), number, now_ms=0)
    assert [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]] == waiters(held.all())


def test_messages_of_a_fixed_queue_keep_their_order_whatever_differs_between_them() -> None:
    """E5, E6: a batch has one time limit, and one ``wait_store_ok``."""
    held, late, loose = accumulator(), FIXED._replace(timeout_ms=1), FIXED._replace(wait_store_ok=False)
    assert [[1]] == add(held, 1, key=FIXED)
    assert [] == add(held, 2, key=late) == add(held, 3, 4, key=loose) == add(held, 5, key=late)
    for sent, batch in ((FIXED, [2]), (late, [3, 4]), (loose, [5])):
        held.ended(sent)
        assert [batch] == ready(held)


def test_messages_of_a_fixed_queue_go_one_after_the_other_when_the_producer_closes() -> None:
    """E5, E6."""
    held = accumulator(fits=1.5, wait_ms=10)
    assert [[1]] == add(held, 1, 2, 3, key=FIXED)
    add(held, 4, 5)
    assert [[5]] == waiters(held.all())
    for number in (2, 3):
        held.ended(FIXED)
        assert [[number]] == ready(held)
        assert [] == held.all()


def test_what_cannot_be_held_goes_out_and_overtakes_nothing() -> None:
    """E6: bounded, 32 MiB in all."""
    held, other = accumulator(holds=2), KEY._replace(topic="bills")
    add(held, 1, key=FIXED)
    assert [[], []] == [add(held, 2, key=FIXED), add(held, 3, key=FIXED)]
    assert [[2, 3, 4]] == add(held, 4, key=FIXED)
    assert [[5]] == add(held, 5, key=other)
    assert [] == add(held, 6, key=FIXED)


def test_a_large_message_goes_alone_and_does_not_overtake() -> None:
    """E1, E6: in a batch its body would not be compressed."""
    held = Accumulator[int](batch_bytes=32_768, wait_ms=10, total_bytes=1_000_000, alone_bytes=4_096)
    held.add(KEY, message(1), 1, now_ms=0)
    held.add(KEY, Message("orders", b"x" * 4_096), 2, now_ms=0)
    held.add(KEY, message(3), 3, now_ms=0)
    assert [[1], [2]] == ready(held)
    assert [[3]] == waiters(held.all())


def test_the_timer_is_for_the_oldest_batch() -> None:
    held = accumulator(wait_ms=10)
    add(held, 1, now_ms=100)
    add(held, 2, now_ms=104, key=KEY._replace(topic="bills"))
    assert [[1]] == ready(held, now_ms=112)
    assert 114 == held.next_due_ms


steps_of = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 2_000)),
        st.tuples(st.just("pass"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    ),
    max_size=80,
)


@given(steps_of, st.sampled_from((0, 10)))
def test_each_message_leaves_once_and_in_order(steps: list[tuple[str, int, int]], wait_ms: int) -> None:
    """E6: whatever comes, passes and ends; and with the last answer all is gone."""
    held: Accumulator[tuple[BatchKey, int]] = Accumulator(batch_bytes=2_000, wait_ms=wait_ms, total_bytes=5_000)
    keys = [KEY, KEY._replace(topic="bills"), FIXED, FIXED._replace(timeout_ms=5)]
    added: list[tuple[BatchKey, int]] = []
    out: list[OpenBatch[tuple[BatchKey, int]]] = []
    sent: list[tuple[BatchKey, int]] = []
    now_ms = 0

    def send() -> None:
        for batch in held.ready(now_ms=now_ms):
            out.append(batch)
            sent.extend(batch.waiters)

    for number, (step, value, body_bytes) in enumerate(steps):
        if step == "add":
            key = keys[value]
            added.append((key, number))
            held.add(key, Message(key.topic, b"x" * body_bytes), (key, number), now_ms=now_ms)
        elif step == "pass":
            now_ms += value
        elif value < len(out):
            held.ended(out.pop(value).key)
        send()
    while out:
        held.ended(out.pop(0).key)
        send()
        if not out and held.next_due_ms is not None:
            now_ms = held.next_due_ms
            send()
    now_ms += 10
    send()
    for key in keys[:2]:
        assert [each for each in added if each[0] == key] == [each for each in sent if each[0] == key]
    assert [each for each in added if each[0].queue] == [each for each in sent if each[0].queue]
    assert [] == held.all()
