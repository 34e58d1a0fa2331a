"""The thread that synchronous clients share: calls wait, fail and end as they should."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from ternmq.client.blocking.loop_thread import LoopThread, ThreadsResult
from ternmq.errors import NotRunning


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set by the first SIGINT, which raises ``KeyboardInterrupt``; others have no effect."""
    seen = threading.Event()

    def interrupt(*_: object) -> None:
        if not seen.is_set():
            seen.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield seen
    signal.signal(signal.SIGINT, before)


def test_a_call_returns_what_its_coroutine_returns_and_raises_what_it_raises(thread: LoopThread) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("why")

    assert 42 == thread.run(answer())
    with pytest.raises(ValueError, match="why"):
        thread.run(fail())


def test_an_interrupt_cancels_the_call(thread: LoopThread, interrupted: threading.Event) -> None:
    cancelled = threading.Event()

    async def interrupt() -> None:
        try:
            # A signal that comes just before a thread begins to wait does not wake it, so there may have to be several.
            while not interrupted.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await asyncio.sleep(0.05)
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        thread.run(interrupt())
    assert cancelled.wait(30)


def test_a_call_that_the_end_of_the_loop_cancels_says_so(thread: LoopThread) -> None:
    """An ``asyncio.CancelledError`` would end the caller's thread without a word."""
    begun = threading.Event()
    errors: list[BaseException] = []

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            thread.run(wait_for_ever())
        except BaseException as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert begun.wait(30)
    thread.stop()
    caller.join(30)
    assert [NotRunning] == list(map(type, errors))


def test_the_end_of_the_program_is_raised_where_the_call_was_made(thread: LoopThread) -> None:
    """A hook that calls ``sys.exit`` means the program, not the thread of all clients."""

    async def leave() -> None:
        sys.exit(3)

    async def answer() -> int:
        return 42

    with pytest.raises(SystemExit, match="3"):
        thread.run(leave())
    assert 42 == thread.run(answer())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_has_ended_is_not_used_again(thread: LoopThread) -> None:
    """Else all clients that are opened later would fail."""

    async def answer() -> int:
        return 42

    thread.call_soon(sys.exit, 3)
    thread._thread.join(30)
    assert not thread.is_usable
    with pytest.raises(NotRunning, match="has ended"):
        thread.run(answer())


class Begun:
    """What was begun for a thread, and whether that gave it up."""

    def __init__(self) -> None:
        self.abandoned = threading.Event()

    def abandon(self) -> None:
        self.abandoned.set()


def test_a_call_is_not_made_for_a_future_that_was_cancelled_before(thread: LoopThread) -> None:
    made: list[int] = []
    may_go_on = threading.Event()

    def call() -> asyncio.Future[int]:
        made.append(1)
        raise ValueError("why")

    def hold() -> None:
        assert may_go_on.wait(60)

    thread.call_soon(hold)
    cancelled, other = thread.start(call), thread.start(call)
    assert cancelled.cancel()
    may_go_on.set()
    with pytest.raises(ValueError, match="why"):
        other.result(60)
    assert [1] == made
    assert {cancelled, other} == concurrent.futures.wait([cancelled, other], 60).done


def test_a_wait_ends_with_what_the_loop_gives(thread: LoopThread) -> None:
    """Now or later, a result or an error; also the end of the program, which a hook may mean."""

    def give_later(result: ThreadsResult[int]) -> Begun:
        asyncio.get_running_loop().call_soon(result.set_result, 42)
        return Begun()

    def give_now(result: ThreadsResult[int]) -> Begun:
        result.set_result(43)
        return Begun()

    def fail(result: ThreadsResult[int]) -> Begun:
        result.set_exception(ValueError("why"))
        return Begun()

    def leave(_: ThreadsResult[int]) -> Begun:
        sys.exit(3)

    assert (42, 43) == (thread.wait_for(give_later), thread.wait_for(give_now))
    with pytest.raises(ValueError, match="why"):
        thread.wait_for(fail)
    with pytest.raises(SystemExit, match="3"):
        thread.wait_for(leave)
    assert 42 == thread.wait_for(give_later)


def test_an_error_after_the_result_does_not_count(thread: LoopThread) -> None:
    def begin(result: ThreadsResult[int]) -> Begun:
        result.set_result(42)
        raise ValueError

    assert 42 == thread.wait_for(begin)


def test_an_interrupt_abandons_what_is_waited_for(thread: LoopThread, interrupted: threading.Event) -> None:
    begun = Begun()

    async def interrupt() -> None:
        while not interrupted.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.sleep(0.05)

    tasks = set()

    def begin(_: ThreadsResult[int]) -> Begun:
        tasks.add(asyncio.get_running_loop().create_task(interrupt()))
        return begun

    with pytest.raises(KeyboardInterrupt):
        thread.wait_for(begin)
    assert begun.abandoned.wait(30)


def test_a_wait_that_the_end_of_the_loop_ends_says_so(thread: LoopThread) -> None:
    begun = threading.Event()
    errors: list[BaseException] = []

    def begin(_: ThreadsResult[int]) -> Begun:
        begun.set()
        return Begun()

    def call() -> None:
        try:
            thread.wait_for(begin)
        except BaseException as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert begun.wait(30)
    thread.stop()
    caller.join(30)
    assert [NotRunning] == list(map(type, errors))
    with pytest.raises(NotRunning):
        thread.wait_for(begin)
