"""Waiting for an offset (C6)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import NotRunning
from ternmq.store.durable.watermark import Watermark


def test_who_waits_is_called_when_it_is_reached_in_order_of_offsets() -> None:
    """C6."""
    called: list[int] = []
    mark = Watermark(10)
    for offset in (30, 10, 20, 25):
        mark.call_when(offset, lambda offset=offset: called.append(offset))  # type: ignore[misc]
    assert ([10], 3) == (called, mark.waiting)

    mark.advance(24)
    mark.advance(5)
    assert ([10, 20], 24, 2) == (called, mark.value, mark.waiting)

    mark.advance(30)
    assert [10, 20, 25, 30] == called


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())), st.lists(st.integers(0, 60)))
def test_all_are_called_once_and_none_too_early(waiters: list[tuple[int, bool]], steps: list[int]) -> None:
    """C6: and callers that gave up are not called."""
    mark = Watermark()
    called: list[tuple[int, int]] = []
    for offset, gives_up in waiters:
        ticket = mark.call_when(offset, lambda offset=offset: called.append((offset, mark.value)))  # type: ignore[misc]
        if gives_up and offset:
            mark.forget(ticket)
    for step in steps:
        mark.advance(step)

    reached = max([0, *steps])
    assert sorted(offset for offset, up in waiters if offset <= reached and not (up and offset)) == sorted(
        offset for offset, _ in called
    )
    assert all(offset <= value for offset, value in called)


def test_those_who_gave_up_take_no_space() -> None:
    """A disk that hangs makes everyone give up; the heap must not keep them."""
    mark = Watermark()
    for _ in range(10_000):
        mark.forget(mark.call_when(1, lambda: None))

    assert mark.waiting == 0
    assert len(mark._heap) <= 64


async def test_waiting_ends_when_it_is_reached_or_the_time_is_over() -> None:
    """C6: FLUSH_DISK_TIMEOUT is the False."""
    mark = Watermark()
    assert await mark.reached(0, 0)
    assert not await mark.reached(5, 1)
    assert mark.waiting == 0

    asyncio.get_running_loop().call_soon(mark.advance, 5)
    assert await mark.reached(5, 60_000)


async def test_a_cancelled_waiter_is_forgotten() -> None:
    """C6: a connection that closes while it waits."""
    mark = Watermark()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(mark.reached(5, 60_000))
        await asyncio.sleep(0)
        assert mark.waiting == 1
        waiting.cancel()
    assert mark.waiting == 0
    mark.advance(5)


def test_callers_above_a_retreat_fail_and_the_others_wait_on() -> None:
    """C6: what is gone is not answered by what comes in its place."""
    heard: list[object] = []
    error = NotRunning("another leader has other records here")
    mark = Watermark(50)
    for offset in (60, 70, 80):
        mark.call_when(offset, lambda offset=offset: heard.append(offset), heard.append)  # type: ignore[misc]
    mark.call_when(90, lambda: heard.append("never"))

    mark.retreat(60, error)
    assert ([error, error], 50, 1) == (heard, mark.value, mark.waiting)

    mark.advance(100)
    assert [error, error, 60] == heard

    mark.retreat(55, error)
    assert (55, 0) == (mark.value, mark.waiting)


async def test_an_awaited_offset_that_is_taken_back_raises() -> None:
    """C6."""
    mark = Watermark()
    waiting = asyncio.create_task(mark.reached(10, 60_000))
    await asyncio.sleep(0)
    mark.retreat(0, NotRunning("gone"))
    with pytest.raises(NotRunning, match="gone"):
        await waiting
    assert 0 == mark.waiting
