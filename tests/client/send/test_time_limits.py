"""Many time limits with few timers, in virtual time (E1)."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Any

import pytest

from ternmq.client.send.time_limits import TimeLimits
from ternmq.testing.loop import BEGIN_S, SimulatedLoop, simulated_loop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    with simulated_loop() as loop:
        yield loop


class Item:
    """Notes when it expired, in milliseconds since the beginning."""

    def __init__(self) -> None:
        self.expired_ms: list[int] = []

    def expire(self) -> None:
        self.expired_ms.append(round((asyncio.get_running_loop().time() - BEGIN_S) * 1000))


def test_what_is_not_removed_expires_once_in_its_time(loop: SimulatedLoop) -> None:
    """E1."""
    first, second, removed = Item(), Item(), Item()

    async def story() -> None:
        limits = TimeLimits()
        limits.add(first, 3_000)
        waiting = limits.add(removed, 3_000)
        await asyncio.sleep(1)
        limits.add(second, 3_000)
        del waiting[removed]
        await asyncio.sleep(60)

    loop.run_until_complete(story())

    assert ([3_000], [4_000], []) == (first.expired_ms, second.expired_ms, removed.expired_ms)


def test_each_time_out_is_kept_whatever_the_others_are(loop: SimulatedLoop) -> None:
    """E1: a short one does not wait for a long one that began before."""
    long, short = Item(), Item()

    async def story() -> None:
        limits = TimeLimits()
        limits.add(long, 60_000)
        limits.add(short, 10)
        await asyncio.sleep(120)

    loop.run_until_complete(story())

    assert ([60_000], [10]) == (long.expired_ms, short.expired_ms)


def test_a_thousand_sends_need_a_few_timers(loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 14: a timer for each send costs more than the rest of its bookkeeping."""
    set_for: list[float] = []
    set_timer = loop.call_at

    def call_at(
        when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        set_for.append(when)
        return set_timer(when, callback, *args, context=context)

    monkeypatch.setattr(loop, "call_at", call_at)

    async def story() -> None:
        limits = TimeLimits()
        for _ in range(1_000):
            item = Item()
            del limits.add(item, 3_000)[item]

    loop.run_until_complete(story())

    assert [BEGIN_S + 3] == set_for


def test_nothing_expires_after_the_end(loop: SimulatedLoop) -> None:
    item = Item()

    async def story() -> None:
        limits = TimeLimits()
        limits.add(item, 10)
        limits.close()
        await asyncio.sleep(60)

    loop.run_until_complete(story())

    assert [] == item.expired_ms


def test_a_time_out_can_be_used_again_after_its_timer_has_fired(loop: SimulatedLoop) -> None:
    first, second = Item(), Item()

    async def story() -> None:
        limits = TimeLimits()
        limits.add(first, 10)
        await asyncio.sleep(60)
        limits.add(second, 10)
        await asyncio.sleep(60)

    loop.run_until_complete(story())

    assert ([10], [60_010]) == (first.expired_ms, second.expired_ms)
