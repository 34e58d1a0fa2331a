"""The wheel (I2, I3): what comes out, in which order, and never before its time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ternmq.delay.due import HOUR_MS
from ternmq.delay.hour_files import Numbers
from ternmq.delay.wheel import HourWheel, Wheel

HOUR = 472_222
BEGIN = HOUR * HOUR_MS


def numbers(dues_ms: Sequence[int], first: int = 100) -> Numbers:
    count = len(dues_ms)
    log_offsets = array("q", range(first, first + count))
    return Numbers(
        array("q", dues_ms), log_offsets, array("q", bytes(8 * count)), array("i", bytes(4 * count)), [], True
    )


def wheel_of(dues_ms: Sequence[int], hour: int = HOUR) -> Wheel:
    wheel = Wheel()
    wheel.hours[hour] = HourWheel(hour)
    wheel.hours[hour].add(numbers(dues_ms))
    return wheel


def take(wheel: Wheel, now_ms: int, count_max: int = 10) -> list[int]:
    """Numbers that are due, of all hours."""
    return [number for due in wheel.take(now_ms, count_max) for number in due.numbers]


@given(
    dues=st.lists(st.integers(1, HOUR_MS), max_size=50),
    closed=st.sets(st.integers(0, 49)),
    looks=st.lists(st.tuples(st.integers(-2_000, HOUR_MS + 2_000), st.integers(0, 3)), max_size=30),
    count_max=st.integers(1, 60),
)
def test_each_message_comes_once_and_not_before_its_time(
    dues: list[int], closed: set[int], looks: list[tuple[int, int]], count_max: int
) -> None:
    """I3: whatever the clock does, and some could not be delivered; what is closed does not come."""
    wheel = wheel_of([BEGIN + due for due in dues])
    hour = wheel.hours[HOUR]
    hour.close([100 + number for number in closed])
    came: list[int] = []
    for look, back in looks:
        taken = take(wheel, BEGIN + look, count_max)
        assert len(taken) <= count_max
        assert all(dues[number] <= look for number in taken)
        assert taken == sorted(taken, key=lambda number: (dues[number], number))
        if len(taken) < count_max and not closed:
            waiting = [due for number, due in enumerate(dues) if number not in {*came, *taken}]
            assert all(due > look for due in waiting)
        hour.put_back(taken[len(taken) - back :] if back else [])
        came += taken[: len(taken) - back] if back else taken
    while taken := take(wheel, BEGIN + 2 * HOUR_MS, count_max):
        assert taken == sorted(taken, key=lambda number: (dues[number], number))
        came += taken
    expected = {number for number in range(len(dues)) if number not in closed}
    assert expected == set(came)
    assert len(expected) == len(came)
    assert wheel.next_ms() is None


@given(st.lists(st.integers(1, HOUR_MS), max_size=40), st.integers(0, HOUR_MS))
def test_it_is_told_in_time_when_to_look_again(dues: list[int], now: int) -> None:
    """I3: never later than the next message is due."""
    wheel = wheel_of([BEGIN + due for due in dues])
    while take(wheel, BEGIN + now):
        pass
    left = [due for due in dues if due > now]
    next_ms = wheel.next_ms()
    assert (next_ms is None) == (not left)
    assert next_ms is None or BEGIN + min(left) - 1_000 < next_ms <= BEGIN + min(left)


def test_a_message_that_comes_late_is_not_missed() -> None:
    """I2: its tick has begun, or is over."""
    wheel = wheel_of([BEGIN + 5_000])
    assert [] == take(wheel, BEGIN + 4_999)
    assert BEGIN + 5_000 == wheel.next_ms()
    assert [0] == take(wheel, BEGIN + 5_000)
    wheel.hours[HOUR].add(numbers([BEGIN + 1_000, BEGIN + 5_900, BEGIN + 5_500], first=200))
    assert [1, 3] == take(wheel, BEGIN + 5_500)
    assert BEGIN + 5_900 == wheel.next_ms()
    assert [2] == take(wheel, BEGIN + 5_900)


def test_what_could_not_be_delivered_comes_again() -> None:
    """I2: after a full disk."""
    wheel = wheel_of([BEGIN + 1, BEGIN + 2])
    taken = take(wheel, BEGIN + 10)
    wheel.hours[HOUR].put_back(taken[1:])
    assert BEGIN + 2 == wheel.next_ms()
    assert taken[1:] == take(wheel, BEGIN + 10)


def test_an_hour_that_is_over_comes_in_portions() -> None:
    """I2: after an hour of rest all is due; the first hour comes first, and not all is sorted at once."""
    wheel = wheel_of([BEGIN + 1_000 * number + 1 for number in range(3_000)])
    wheel.hours[HOUR - 1] = HourWheel(HOUR - 1)
    wheel.hours[HOUR - 1].add(numbers([BEGIN - 5]))
    first = wheel.take(BEGIN + HOUR_MS, 100)
    assert [HOUR - 1, HOUR] == [due.hour for due in first]
    assert 100 == sum(len(due.numbers) for due in first)
    assert len(wheel.hours[HOUR]._open) < 300


def test_a_message_takes_few_bytes() -> None:
    """Issue 15: at most 100 bytes for each message of this hour."""
    hour, count = HourWheel(HOUR), 200_000
    hour.add(numbers([BEGIN + number * 18 for number in range(count)]))
    assert hour.memory_bytes / count < 60
