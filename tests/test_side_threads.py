"""Blocking calls beside the event loop (J3, S1). ``tests/outbox/test_silent_database.py`` is why."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from contextvars import ContextVar

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


async def test_a_call_sees_the_context_of_its_caller() -> None:
    """J3, S1: as with ``asyncio.to_thread``; listeners of an engine may want it."""
    tenant = ContextVar("tenant", default="none")
    tenant.set("shop")
    threads = SideThreads("side")
    assert "shop" == await threads.run(tenant.get)
    threads.end()


def test_calls_go_on_after_the_machine_had_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """J3: the call that got none fails, and does not count as one that has a thread."""
    lone, threads, start = SideThreads("lone"), SideThreads("side", 2), threading.Thread.start

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError):
        lone.start(int)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert 0 == lone.start(int).result(60)
    is_free = threading.Event()
    busy = threads.start(is_free.wait, 60)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    waiting = threads.start(int)
    is_free.set()
    assert busy.result(60)
    assert 0 == waiting.result(60)
    lone.end()
    threads.end()


async def test_calls_after_the_end_do_not_wait_for_those_before() -> None:
    """J3: a relay that begins again on another connection, after the machine of its database has died."""
    thread, goes_on = SideThreads("side"), threading.Event()
    stuck = thread.start(goes_on.wait, 60)
    thread.end()
    assert 0 == await asyncio.wait_for(thread.run(int), 30)
    assert not stuck.done()
    goes_on.set()
    thread.end()


_FORKS = """
import os, sys
from ternmq.side_threads import SideThreads

used, forgotten = SideThreads("used"), SideThreads("forgotten")
for each in (used, forgotten):
    each.start(int).result(60)
    each._calls.lock.acquire()
if os.fork() == 0:
    assert used.start(int).result(60) == 0
    del forgotten
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


def test_a_child_ends_though_a_thread_of_the_parent_had_the_lock() -> None:
    """J3: neither at its exit nor when it forgets a parent's thread is that lock waited for."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", _FORKS], check=True, timeout=60)


def test_a_thread_may_be_forgotten_at_any_moment() -> None:
    """J3: the garbage collector runs between any two steps, with the lock, too."""
    threads = SideThreads("side")
    calls = threads._calls
    threads.itself = threads  # type: ignore[attr-defined]  # only the collector finds it
    with calls.lock:
        del threads
        gc.collect()
