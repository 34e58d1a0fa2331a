"""Slices and rate limits (U1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.message import MessageQueue
from ternmq.spark.source.plan import Slice, cut, trim

A, B, C = (MessageQueue("orders", "broker-a", queue_id) for queue_id in range(3))
QUEUES = st.dictionaries(
    st.builds(MessageQueue, st.just("t"), st.sampled_from(["a", "b"]), st.integers(0, 9)),
    st.tuples(st.integers(0, 100), st.integers(-5, 200)),
    min_size=1,
)


def test_a_long_queue_feeds_many_tasks_and_queues_take_turns() -> None:
    """U1"""
    assert [Slice(A, 5, 15), Slice(B, 0, 3), Slice(A, 15, 25), Slice(A, 25, 27)] == cut(
        {A: 5, B: 0, C: 9}, {A: 27, B: 3, C: 9}, slice_messages=10
    )


def test_min_partitions_makes_slices_smaller_never_larger() -> None:
    """U1"""
    assert [Slice(A, 0, 2), Slice(A, 2, 4)] == cut({A: 0}, {A: 4}, slice_messages=100, min_partitions=2)
    assert 4 == len(cut({A: 0}, {A: 4}, slice_messages=1, min_partitions=2))
    assert 2 == len(cut({A: 0}, {A: 2}, slice_messages=100, min_partitions=9))


@given(QUEUES, st.integers(1, 50), st.none() | st.integers(1, 9))
def test_slices_cover_each_offset_once(
    queues: dict[MessageQueue, tuple[int, int]], slice_messages: int, min_partitions: int | None
) -> None:
    """U1"""
    starts = {queue: start for queue, (start, _) in queues.items()}
    ends = {queue: start + count for queue, (start, count) in queues.items()}

    slices = cut(starts, ends, slice_messages=slice_messages, min_partitions=min_partitions)

    expected = sorted((queue, at) for queue in queues for at in range(starts[queue], ends[queue]))
    assert expected == sorted((one.queue, at) for one in slices for at in range(one.start, one.end))
    assert all(one.end - one.start <= slice_messages for one in slices)


def test_a_limit_is_shared_and_what_a_short_queue_leaves_goes_to_the_others() -> None:
    """U1: fair over queues."""
    assert {A: 1, B: 145, C: 45} == trim({A: 0, B: 100, C: 0}, {A: 1, B: 1_000, C: 500}, 91)


def test_bytes_are_shared_by_the_size_of_each_queues_messages() -> None:
    """U1: maxBytesPerTrigger"""
    assert {A: 5, B: 50} == trim({A: 0, B: 0}, {A: 100, B: 100}, 1_000, cost={A: 100.0, B: 10.0})


def test_a_limit_below_one_message_still_moves() -> None:
    """U1: else a stream would stand for ever."""
    assert {A: 0, B: 1} == trim({A: 0, B: 0}, {A: 9, B: 10}, 1)
    assert {A: 0, B: 1} == trim({A: 0, B: 0}, {A: 90, B: 10}, 5, cost={A: 100.0, B: 100.0})


@given(QUEUES, st.integers(1, 500))
def test_a_trimmed_step_stays_inside_and_uses_the_limit(
    queues: dict[MessageQueue, tuple[int, int]], limit: int
) -> None:
    """U1"""
    starts = {queue: start for queue, (start, _) in queues.items()}
    ends = {queue: start + count for queue, (start, count) in queues.items()}

    step = trim(starts, ends, limit)

    waiting = sum(max(0, ends[queue] - starts[queue]) for queue in queues)
    taken = sum(max(0, step[queue] - starts[queue]) for queue in queues)
    assert min(limit, waiting) == taken
    assert all(min(starts[queue], ends[queue]) <= step[queue] <= ends[queue] for queue in queues)
