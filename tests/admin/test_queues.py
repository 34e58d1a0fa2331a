"""The search by time, with brokers that guess well and badly (L1, L2)."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from ternmq.admin.queues import Search


def run(times: list[int], wanted: int, *, first: int, guess: int) -> tuple[int, int]:
    """What is found in a queue whose first offset is ``first``, and with how many looks."""
    search = Search(first, first + len(times), guess=guess)
    looks = 0
    while not search.is_over:
        looks += 1
        search.tell(older=times[search.at - first] < wanted)
    return search.low, looks


@given(
    times=st.lists(st.integers(0, 50), max_size=200).map(sorted),
    wanted=st.integers(-1, 51),
    first=st.integers(0, 1 << 40),
    off=st.integers(-300, 300),
)
def test_any_guess_leads_to_the_first_message_of_the_millisecond(
    times: list[int], wanted: int, first: int, off: int
) -> None:
    """L1: many messages share a millisecond, and RocketMQ 4.9 names any of them."""
    found, looks = run(times, wanted, first=first, guess=first + off)

    assert first + bisect_left(times, wanted) == found
    assert looks <= 2 * len(times).bit_length() + 1


@given(times=st.lists(st.integers(0, 50), max_size=200).map(sorted), wanted=st.integers(-1, 51))
def test_a_right_answer_is_confirmed_with_two_looks(times: list[int], wanted: int) -> None:
    """L1: what TernMQ and RocketMQ 5 answer."""
    right = bisect_left(times, wanted)

    found, looks = run(times, wanted, first=0, guess=right)

    assert right == found
    assert looks <= 2


def test_a_bad_guess_in_a_long_queue_costs_a_bisection() -> None:
    """L1: a thousand million messages, and the broker is at the wrong end."""
    length, wanted = 10**9, 123_456_789
    search = Search(0, length, guess=length)
    looks = 0
    while not search.is_over:
        looks += 1
        search.tell(older=search.at < wanted)

    assert wanted == search.low
    assert looks <= 60
