"""Blocking calls beside the event loop (J3, S1). ``tests/outbox/test_silent_database.py`` is why."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from ternmq.side_threads import SideThreads


async def test_calls_are_made_one_after_the_other_and_errors_are_the_callers() -> None:
    """J3"""
    thread = SideThreads("aside")
    names: list[str] = []

    def work(number: int) -> int:
        names.append(threading.current_thread().name)
        return 10 // number

    assert 5 == await thread.run(work, 2)
    with pytest.raises(ZeroDivisionError):
        await thread.run(work, 0)
    assert 10 == await thread.run(work, 1)
    assert ["aside"] * 3 == names
    thread.end()


async def test_the_thread_ends_with_what_it_belongs_to() -> None:
    """J3: programs may make an outbox for each test, and forget it."""
    thread = SideThreads("forgotten")
    mine = await thread.run(threading.current_thread)
    del thread
    mine.join(60)
    assert not mine.is_alive()


async def test_as_many_threads_begin_as_calls_are_made_at_once() -> None:
    """S1: and no more than allowed; each call is waiting for the others here."""
    threads, together = SideThreads("side", 3), threading.Barrier(3)
    calls = [threads.run(together.wait, 60) for _ in range(9)]
    assert sorted(await asyncio.gather(*calls)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert 3 == sum(thread.name == "side" for thread in threading.enumerate())
    threads.end()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12: it has threads
async def test_a_child_has_threads_of_its_own() -> None:
    """J3: those of the parent do not exist there, and its lock may be held."""
    threads = SideThreads("forked")
    assert await threads.run(os.getpid) == os.getpid()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if threads.start(os.getpid).result(60) == os.getpid() else 1)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert 0 == os.waitstatus_to_exitcode(status)
    threads.end()
