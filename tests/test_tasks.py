"""Tasks have one owner, which ends them."""

from __future__ import annotations

import asyncio
import logging
from threading import Event

import pytest

from ternmq.tasks import Tasks, contained, to_its_end


async def test_leaving_the_block_ends_every_task() -> None:
    ended: list[str] = []

    async def run_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async with Tasks() as tasks:
        tasks.create_task(run_for_ever())
        tasks.create_task(run_for_ever())
        await asyncio.sleep(0)

    assert ["ended", "ended"] == ended


async def test_an_error_of_the_block_comes_out_as_it_is() -> None:
    """A user's ``except KeyError`` works around any ``async with`` of ours."""
    with pytest.raises(KeyError):
        async with Tasks() as tasks:
            tasks.create_task(asyncio.Event().wait())
            raise KeyError("x")


async def test_a_failed_task_is_logged_at_once_and_raised_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="broken"):
        async with Tasks() as tasks:
            await asyncio.wait([tasks.create_task(fail(), name="the failing one")])
            await asyncio.sleep(0)
            assert ["a task failed"] == [record.message for record in caplog.records]


async def test_no_task_starts_after_the_end() -> None:
    async with Tasks() as tasks:
        pass
    with pytest.raises(RuntimeError, match="has ended"):
        tasks.create_task(asyncio.sleep(0))


@pytest.mark.parametrize("fails", ["", "in its thread", "when it is undone"])
async def test_a_caller_that_is_cancelled_waits_for_its_thread(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    """What it gives back then is not in use any more, and what the thread has opened is closed."""
    begins, may_end = Event(), Event()
    events: list[str] = []

    def work() -> str:
        begins.set()
        assert may_end.wait(60)
        events.append("the thread has ended")
        if fails == "in its thread":
            raise ValueError(fails)
        return "result"

    def undo(result: str) -> None:
        if fails:
            raise ValueError(fails)
        events.append(f"undone: {result}")

    async def call() -> None:
        try:
            await to_its_end(work, undo=undo)
        finally:
            events.append("given back")

    task = asyncio.create_task(call())
    assert await asyncio.to_thread(begins.wait, 60)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert [] == events
    may_end.set()
    await asyncio.wait([task])
    assert task.cancelled()
    undone = [] if fails else ["undone: result"]
    assert ["the thread has ended", *undone, "given back"] == events
    assert not fails or fails in caplog.text


async def test_what_a_thread_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await to_its_end(lambda: 1 // 0)
    assert 1 == await to_its_end(lambda: 1)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_what_would_end_a_loop_is_an_error_of_the_function_in_its_thread(error: type[BaseException]) -> None:
    def end(_: str) -> int:
        raise error

    with pytest.raises(RuntimeError, match=rf"end at .* raised {error.__name__}\(\)"):
        await asyncio.to_thread(contained(end), "x")
    with pytest.raises(ValueError, match="x"):
        await asyncio.to_thread(contained(int), "x")
    assert 1 == await asyncio.to_thread(contained(int), "1")
