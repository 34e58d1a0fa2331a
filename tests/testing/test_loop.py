"""The loop in virtual time: order, jumps, and processes that pause and die (C8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from ternmq.testing.clock import EPOCH_MS, SimulatedClock
from ternmq.testing.loop import BEGIN_S, Circle, Process, SimulatedLoop, Standstill, simulated_loop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    with simulated_loop() as loop:
        yield loop


def test_an_hour_passes_in_a_moment(loop: SimulatedLoop) -> None:
    begin = time.monotonic()

    loop.run_until_complete(asyncio.sleep(3600))

    assert BEGIN_S + 3600 == loop.time()
    assert time.monotonic() - begin < 60


def test_timers_run_in_the_order_of_their_times_and_then_of_their_making(loop: SimulatedLoop) -> None:
    seen: list[str] = []

    async def story() -> None:
        loop.call_later(2, seen.append, "late")
        loop.call_later(1, seen.append, "first")
        loop.call_later(1, seen.append, "second")
        loop.call_later(1.5, seen.append, "never").cancel()
        await asyncio.sleep(3)

    loop.run_until_complete(story())

    assert ["first", "second", "late"] == seen


def test_sets_of_tasks_have_one_order(loop: SimulatedLoop) -> None:
    """Hashes of objects are their addresses; those of tasks are their numbers."""

    async def story() -> list[str]:
        tasks = {asyncio.create_task(asyncio.sleep(0), name=f"t{number}") for number in range(50)}
        await asyncio.wait(tasks)
        return [task.get_name() for task in tasks]

    names = loop.run_until_complete(story())

    # A set of consecutive numbers is in their order, but for where it wraps around.
    turn = names.index("t0")
    assert [f"t{number}" for number in range(50)] == names[turn:] + names[:turn]


def test_work_for_a_thread_is_done_by_the_loop(loop: SimulatedLoop) -> None:
    async def story() -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 6 * 7)

    assert 42 == loop.run_until_complete(story())


def test_waiting_for_what_never_comes_is_an_error(loop: SimulatedLoop) -> None:
    async def story() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Standstill):
        loop.run_until_complete(story())


def test_going_round_in_circles_is_an_error(loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ternmq.testing.loop.STEPS_MAX", 100)

    async def story() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Circle):
        loop.run_until_complete(story())


def test_an_error_that_nobody_caught_is_found(loop: SimulatedLoop) -> None:
    def fail() -> None:
        raise ValueError("a callback's own mistake")

    async def story() -> None:
        loop.call_soon(fail)
        await asyncio.sleep(1)

    loop.run_until_complete(story())

    with pytest.raises(ValueError, match="own mistake"):
        loop.check()


def test_a_killed_process_does_nothing_any_more(loop: SimulatedLoop) -> None:
    """C8: no finally, no farewell."""
    seen: list[str] = []

    async def program() -> None:
        try:
            loop.call_later(5, seen.append, "a timer")
            while True:
                seen.append("alive")
                await asyncio.sleep(1)
        finally:
            seen.append("farewell")

    async def story() -> None:
        process = Process("p", "10.0.0.1")
        process.start(program())
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(10)
        assert ["alive", "alive"] == seen

    loop.run_until_complete(story())


def test_a_paused_process_does_later_what_it_missed(loop: SimulatedLoop) -> None:
    seen: list[float] = []

    async def program() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(loop.time() - BEGIN_S)

    async def story() -> None:
        process = Process("p", "10.0.0.1")
        process.start(program())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(5)
        process.resume()
        await asyncio.sleep(1.2)

    loop.run_until_complete(story())

    assert [1.0, 6.5, 7.5] == seen


def test_what_a_process_starts_belongs_to_it(loop: SimulatedLoop) -> None:
    owners: list[Process | None] = []

    async def program() -> None:
        loop.call_soon(lambda: owners.append(Process.current()))
        await asyncio.gather(child())

    async def child() -> None:
        owners.append(Process.current())

    async def story() -> Process:
        process = Process("p", "10.0.0.1")
        await process.start(program())
        assert Process.current() is None
        return process

    process = loop.run_until_complete(story())

    assert [process, process] == owners


def test_a_clock_follows_the_loop_and_may_be_wrong(loop: SimulatedLoop) -> None:
    right, wrong = SimulatedClock(loop), SimulatedClock(loop, skew_ms=-500)

    loop.run_until_complete(asyncio.sleep(2))
    wrong.jump(60_000)

    assert EPOCH_MS + 2000 == right.now_ms()
    assert EPOCH_MS + 61_500 == wrong.now_ms()
    assert right.monotonic() == wrong.monotonic()
