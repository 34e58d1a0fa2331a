"""The wheel (I2, I3): what comes out, in which order, and never before its time."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from ternmq.delay.due import HOUR_MS
from ternmq.delay.wheel import Due, HourWheel, Wheel

HOUR = 472_222
BEGIN = HOUR * HOUR_MS


def wheel_of(dues_ms: list[int], hour: int = HOUR) -> Wheel:
    wheel = Wheel()
    wheel.add(hour, dues_ms, array("q", range(100, 100 + len(dues_ms))))
    return wheel


@given(
    dues=st.lists(st.integers(1, HOUR_MS), max_size=50),
    closed=st.sets(st.integers(0, 49)),
    looks=st.lists(st.integers(-2_000, HOUR_MS + 2_000), max_size=30),
    count_max=st.integers(1, 60),
)
def test_each_message_comes_once_and_not_before_its_time(
    dues: list[int], closed: set[int], looks: list[int], count_max: int
) -> None:
    """I3: whatever the clock does; what is closed does not come."""
    wheel = wheel_of([BEGIN + due for due in dues])
    wheel.hours[HOUR].close([100 + number for number in closed])
    came: list[Due] = []
    for look in looks:
        taken = wheel.take(BEGIN + look, count_max)
        assert len(taken) <= count_max
        assert all(due.due_ms <= BEGIN + look for due in taken)
        came += taken
    while taken := wheel.take(BEGIN + 2 * HOUR_MS, count_max):
        assert taken == sorted(taken)
        came += taken
    expected = {number for number in range(len(dues)) if number not in closed}
    assert expected == {due.number for due in came}
    assert len(expected) == len(came)
    assert wheel.next_ms() is None


def test_a_message_that_comes_late_is_not_missed() -> None:
    """I2: its second has begun, or is over."""
    wheel = wheel_of([BEGIN + 5_000])
    assert [] == wheel.take(BEGIN + 4_999, 10)
    assert BEGIN + 5_000 == wheel.next_ms()
    assert [0] == [due.number for due in wheel.take(BEGIN + 5_000, 10)]
    wheel.add(HOUR, [BEGIN + 1_000, BEGIN + 5_900, BEGIN + 5_500], array("q", [200, 201, 202]))
    assert [1, 3] == [due.number for due in wheel.take(BEGIN + 5_500, 10)]
    assert BEGIN + 5_900 == wheel.next_ms()
    assert [2] == [due.number for due in wheel.take(BEGIN + 5_900, 10)]


def test_what_could_not_be_delivered_comes_again() -> None:
    """I2: after a full disk."""
    wheel = wheel_of([BEGIN + 1, BEGIN + 2])
    taken = wheel.take(BEGIN + 10, 10)
    wheel.put_back(taken[1:])
    assert taken[1:] == wheel.take(BEGIN + 10, 10)


def test_an_hour_that_is_over_does_not_fill_the_heap() -> None:
    """I2: after an hour of rest all is due, and comes in portions, the first hour first."""
    wheel = wheel_of([BEGIN + 1_000 * number + 1 for number in range(3_000)])
    wheel.add(HOUR - 1, [BEGIN - 5], array("q", [1]))
    first = wheel.take(BEGIN + HOUR_MS, 100)
    assert HOUR - 1 == first[0].hour
    assert 100 == len(first)
    assert len(wheel._heap) < 300


def test_a_message_takes_few_bytes() -> None:
    """Issue 15: at most 100 bytes for each message of this hour."""
    hour, count = HourWheel(HOUR), 200_000
    hour.add([BEGIN + number * 18 for number in range(count)], array("q", range(count)))
    assert hour.memory_bytes / count < 30
