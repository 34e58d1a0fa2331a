"""Tasks that call an ``async`` listener (F1)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from ternmq import MessageQueue, ReceivedMessage
from ternmq.client.consume import workers as workers_module
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import BoundListener, ConsumeContext, ConsumeHook, ConsumeResult
from ternmq.client.consume.workers import Tasked, Threaded
from ternmq.tasks import Tasks

QUEUE = MessageQueue("orders", "broker-a", 0)


class Calls:
    """A listener whose calls end when they are told to; how many began, run now, and have ended."""

    def __init__(self) -> None:
        self.began = self.running = self.ended = 0
        self.may_end = asyncio.Semaphore(0)
        self.changed = asyncio.Condition()

    async def listen(self, _: list[ReceivedMessage]) -> None:
        async with self.changed:
            self.began += 1
            self.running += 1
            self.changed.notify_all()
        await self.may_end.acquire()
        self.running -= 1

    async def until_running(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.running == count)

    def begun(self, messages: Sequence[Claimed]) -> ConsumeContext:
        return ConsumeContext("group", QUEUE, messages)

    def over(self, _: ConsumeContext | None) -> None:
        self.ended += 1


@asynccontextmanager
async def working(calls: Calls, *, count: int) -> AsyncIterator[Tasked]:
    async with Tasks() as tasks:
        listener = BoundListener(calls.listen, single=False)
        yield Tasked(listener, calls.begun, calls.over, tasks, name="consume", count=count)


def workers() -> int:
    return sum(task.get_name().startswith("consume-") for task in asyncio.all_tasks())


async def turns() -> None:
    """Let all that can run now do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_consumer_without_work_has_no_tasks_for_its_listener() -> None:
    """R1: 256 consumers of one process had 5,120."""
    calls = Calls()
    async with working(calls, count=20):
        await turns()

        assert 0 == workers()


async def test_tasks_start_when_calls_wait_and_no_more_than_are_allowed() -> None:
    """F1: a listener that waits is called by as many as are allowed."""
    calls = Calls()
    async with working(calls, count=3) as tasked:
        tasked.put([[]])
        await calls.until_running(1)
        assert 1 == workers()

        tasked.put([[]] * 9)
        await calls.until_running(3)
        await turns()
        assert (3, 3) == (calls.running, workers())

        for _ in range(10):
            calls.may_end.release()
        while calls.ended < 10:
            await asyncio.sleep(0)
        assert (10, 3) == (calls.began, workers())


async def test_idle_tasks_are_used_before_new_ones_start() -> None:
    """F1"""
    calls = Calls()
    async with working(calls, count=20) as tasked:
        for number in range(1, 6):
            tasked.put([[]])
            calls.may_end.release()
            while calls.ended < number:
                await asyncio.sleep(0)

        assert 1 == workers()


async def test_more_tasks_start_at_once_when_more_are_allowed_and_those_too_many_end() -> None:
    """F10: calls wait for the ones that run."""
    calls = Calls()
    async with working(calls, count=1) as tasked:
        tasked.put([[]] * 8)
        await calls.until_running(1)
        tasked.resize(4)
        await calls.until_running(4)

        tasked.resize(2)
        for _ in range(4):
            calls.may_end.release()
        while calls.ended < 4:
            await asyncio.sleep(0)
        await calls.until_running(2)
        await turns()
        assert (2, 2) == (calls.running, workers())

        tasked.close()
        for _ in range(4):
            calls.may_end.release()
        while calls.running:
            await asyncio.sleep(0)
        await turns()
        assert 0 == workers()


async def test_a_listener_that_cancels_its_task_ends_no_others() -> None:
    """F1: its call has failed, and the next ones are made."""
    contexts: list[ConsumeContext | None] = []
    over = asyncio.Event()

    async def listen(_: list[ReceivedMessage]) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not contexts:
            task.cancel()
        await asyncio.sleep(0)

    def ended(context: ConsumeContext | None) -> None:
        contexts.append(context)
        if len(contexts) == 3:
            over.set()

    class Hook(ConsumeHook):
        def after_consume(self, context: ConsumeContext) -> None:
            told.append(context.result)

    told: list[ConsumeResult | None] = []
    async with Tasks() as tasks:
        listener = BoundListener(listen, single=False, hooks=[Hook()])
        tasked = Tasked(listener, Calls().begun, ended, tasks, name="consume", count=1)
        tasked.put([[]] * 3)
        await over.wait()
        assert 1 == workers()
        results = [ConsumeResult.RETRY, ConsumeResult.SUCCESS, ConsumeResult.SUCCESS]
        assert results == [one.result for one in contexts if one] == told
        tasked.close()


async def test_calls_wait_while_the_machine_gives_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: they are held by their queues, and nobody else would make them."""
    failures = 3
    over = asyncio.Semaphore(0)

    class Scarce(threading.Thread):
        def start(self) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(workers_module, "Thread", Scarce)
    monkeypatch.setattr(workers_module, "THREAD_PAUSE_S", 0.01)
    listener = BoundListener(lambda _: None, single=False)
    threaded = Threaded(listener, Calls().begun, lambda _: over.release(), name="scarce", count=2)
    for _ in range(3):
        threaded.put([[], []])
    for _ in range(6):
        await over.acquire()
    assert 0 == failures
    threaded.close()
    threaded.put([[]])
    await turns()
    assert over.locked()
