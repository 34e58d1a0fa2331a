"""Many deadlines, one timer (F9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ternmq.env import SystemClock
from ternmq.pop.deadlines import LOOK_S, TURN_MAX, Deadlines
from tests.manual_clock import ManualClock


class Timers:
    """Takes down what a loop would be asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.active = 0

    def call_later(self, seconds: float, _callback: Callable[[], None]) -> Timers:
        self.asked.append(seconds)
        self.active += 1
        return self

    def cancel(self) -> None:
        self.active -= 1


def made(clock: ManualClock, timers: Timers, over: set[int]) -> tuple[Deadlines[int], list[int]]:
    done: list[int] = []
    deadlines: Deadlines[int] = Deadlines(
        now_ms=clock.now_ms, call_later=timers.call_later, on_due=done.append, is_over=over.__contains__
    )
    return deadlines, done


def test_things_are_done_in_the_order_of_their_times_and_not_before() -> None:
    """F9"""
    clock, timers = ManualClock(), Timers()
    deadlines, done = made(clock, timers, {3})
    now = clock.now_ms()
    for thing, after in ((1, 300), (2, 100), (3, 150), (4, 200)):
        deadlines.add(now + after, thing)

    assert not deadlines.run()
    clock.advance(0.2)
    assert deadlines.run()

    assert ([2, 4], 1) == (done, len(deadlines))


def test_there_is_one_timer_for_the_earliest_and_it_looks_every_second() -> None:
    """F9: the clock may jump."""
    clock, timers = ManualClock(), Timers()
    deadlines, _ = made(clock, timers, set())

    deadlines.add(clock.now_ms() + 60_000, 1)
    deadlines.add(clock.now_ms() + 70_000, 2)
    deadlines.add(clock.now_ms() + 500, 3)

    assert ([LOOK_S, 0.501], 1) == (timers.asked, timers.active)


def test_a_turn_has_a_bound() -> None:
    """F9: sends in between do not wait for all."""
    clock, timers = ManualClock(), Timers()
    deadlines, done = made(clock, timers, set())
    for number in range(TURN_MAX + 1):
        deadlines.add(clock.now_ms(), number)

    deadlines.run()
    assert TURN_MAX == len(done)
    deadlines.run()
    assert list(range(TURN_MAX + 1)) == done


def test_what_is_over_does_not_fill_the_heap() -> None:
    """F9: most pops are acked long before their time."""
    clock, timers = ManualClock(), Timers()
    over: set[int] = set()
    deadlines, done = made(clock, timers, over)
    for number in range(100_000):
        deadlines.add(clock.now_ms() + 10_000, number)
        if number >= 10:
            over.add(number)

    assert len(deadlines) < 3_000
    clock.advance(10)
    while deadlines.run():
        pass
    assert list(range(10)) == done


async def test_the_loops_timer_does_what_is_due() -> None:
    """F9"""
    clock, due = SystemClock(), asyncio.Event()
    deadlines: Deadlines[asyncio.Event] = Deadlines(
        now_ms=clock.now_ms,
        call_later=asyncio.get_running_loop().call_later,
        on_due=asyncio.Event.set,
        is_over=asyncio.Event.is_set,
    )

    deadlines.add(clock.now_ms() + 5, due)
    await asyncio.wait_for(due.wait(), 10)
    deadlines.close()
