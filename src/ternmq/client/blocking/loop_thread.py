"""One event loop in a thread, for programs without one: what the blocking clients run on.

A process has one such thread. It starts with the first blocking client, is a daemon, and ends with the program. After a
fork the child gets one of its own; clients that were opened before belong to the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, Protocol, TypeVar

from ternmq.errors import NotRunning
from ternmq.tasks import Tasks

T = TypeVar("T")

_STOP_TIMEOUT_S = 5.0
_CLOSED: Final = "the client was closed during this call; close it after its calls have ended"


class LoopThread:
    """A thread with a loop. Its methods may be called from any other thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._tasks = Tasks()
        #: Threads that wait for what no task will give.
        self._waiting: set[ThreadsResult[Any]] = set()
        self._is_over = False
        self._thread = threading.Thread(target=self._main, name="ternmq", daemon=True)
        self._thread.start()
        self._ready.wait()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt of the waiting thread cancels it."""
        try:
            loop = self._usable_loop()
        except RuntimeError:
            coroutine.close()
            raise
        call = _ThreadsCall(coroutine)
        try:
            loop.call_soon_threadsafe(call.begin, self._tasks)
            call.wait()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(call.cancel)
            raise
        return call.result()

    def wait_for(self, begin: Callable[[ThreadsResult[T]], Abandoned]) -> T:
        """Have ``begin`` called on the loop, and wait until what it was given has a result or an error; an interrupt of
        the waiting thread abandons what it has returned. No task and no future are made."""
        loop = self._usable_loop()
        result: ThreadsResult[T] = ThreadsResult()
        try:
            loop.call_soon_threadsafe(self._begin, result, begin)
            result.wait()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(result.abandon)
            raise
        return result.result()

    def _begin(self, result: ThreadsResult[T], begin: Callable[[ThreadsResult[T]], Abandoned]) -> None:
        if self._is_over:
            result.cancel()
        else:
            result.begin(begin, self._waiting)

    def start(self, call: Callable[[], asyncio.Future[T]]) -> Future[T]:
        """Make a call on the loop that gives a future there, and return one for threads. If that is cancelled before
        the loop has its turn, the call is not made."""
        result: Future[T] = Future()

        def begin() -> None:
            if result.cancelled():
                # Tells those who wait for it.
                result.set_running_or_notify_cancel()
                return
            try:
                inner = call()
            except Exception as error:
                if result.set_running_or_notify_cancel():
                    result.set_exception(error)
            else:
                inner.add_done_callback(settle)

        def settle(inner: asyncio.Future[T]) -> None:
            if not result.set_running_or_notify_cancel():
                return
            if inner.cancelled():
                result.set_exception(NotRunning(_CLOSED))
            elif (error := inner.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(inner.result())

        self._usable_loop().call_soon_threadsafe(begin)
        return result

    def call_soon(self, call: Callable[..., None], *args: object) -> None:
        """Make a call on the loop, and do not wait for it."""
        self._usable_loop().call_soon_threadsafe(call, *args)

    def stop(self) -> None:
        """End the loop and all of its tasks; nothing can be run afterwards."""
        loop, end = self._loop, self._end
        if self.pid != os.getpid() or loop is None or end is None:
            return
        self._loop = None
        loop.call_soon_threadsafe(end.set)
        self._thread.join(_STOP_TIMEOUT_S)

    def check_usable(self) -> None:
        """Raise ``NotRunning`` in another process or after the end, and ``RuntimeError`` in the loop's own thread."""
        self._usable_loop()

    @property
    def is_of_this_process(self) -> bool:
        return self.pid == os.getpid()

    @property
    def is_usable(self) -> bool:
        return self.is_of_this_process and self._loop is not None

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if self.pid != os.getpid():
            raise NotRunning("this client was opened in another process; open one in this process")
        if loop is None:
            raise NotRunning("the event loop of this client has ended; open another client")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a synchronous call inside a callback would block for ever; make it in another thread")
        return loop

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        finally:
            # Also by a SystemExit of a callback: then the next client has a new thread.
            self._loop = None

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        try:
            async with self._tasks:
                self._loop = asyncio.get_running_loop()
                self._ready.set()
                await self._end.wait()
        finally:
            self._is_over = True
            for result in list(self._waiting):
                result.cancel()


class Abandoned(Protocol):
    """What goes on until it has given a result, or is abandoned."""

    def abandon(self) -> None: ...


class ThreadsResult(Generic[T]):
    """One result that the loop gives and one thread waits for. On the loop it behaves as a future does."""

    __slots__ = ("_begun", "_ended", "_error", "_is_done", "_result", "_waiting")

    def __init__(self) -> None:
        self._begun: Abandoned | None = None
        self._waiting: set[ThreadsResult[Any]] | None = None
        self._is_done = False
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    # On the loop.

    def begin(self, begin: Callable[[ThreadsResult[T]], Abandoned], waiting: set[ThreadsResult[Any]]) -> None:
        """Have it among those that are ``waiting`` until it is done."""
        waiting.add(self)
        self._waiting = waiting
        try:
            self._begun = begin(self)
        except BaseException as error:
            # Also a SystemExit, of a hook say: it is for the program's thread, and here it would end all clients.
            if not self._is_done:
                self.set_exception(error)

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: T, /) -> None:
        self._result = result
        self._end()

    def set_exception(self, error: BaseException, /) -> None:
        self._error = error
        self._end()

    def cancel(self) -> bool:
        if self._is_done:
            return False
        self.set_exception(NotRunning(_CLOSED))
        return True

    def abandon(self) -> None:
        """The thread waits no longer."""
        if self._begun is not None and not self._is_done:
            self._begun.abandon()

    def _end(self) -> None:
        self._is_done = True
        self._begun = None
        if self._waiting is not None:
            self._waiting.discard(self)
        self._ended.release()

    # In the thread.

    def wait(self) -> None:
        self._ended.acquire()

    def result(self) -> T:
        """After ``wait``."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result


class _ThreadsCall(Generic[T]):
    """A coroutine that one thread waits for and the loop runs.

    A bare lock: ``asyncio.run_coroutine_threadsafe`` has a future for each side, and takes half as long again.
    """

    __slots__ = ("_coroutine", "_ended", "_error", "_is_ended", "_result", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[None] | None = None
        #: Until it has a result: why it may never have one.
        self._error: BaseException | None = NotRunning(_CLOSED)
        self._is_ended = False
        self._ended = threading.Lock()
        self._ended.acquire()

    # On the loop.

    def begin(self, tasks: Tasks) -> None:
        try:
            self._task = tasks.create_task(self._run())
        except RuntimeError:  # the loop is about to end
            self._end(None)
        else:
            self._task.add_done_callback(self._end)

    async def _run(self) -> None:
        try:
            self._result = await self._coroutine
            self._error = None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Also a SystemExit, of a hook say: it is for the program's thread, and here it would end all clients.
            self._error = error
        # Here and not with the task: its callbacks take another turn of the loop.
        self._is_ended = True
        self._ended.release()

    def _end(self, _: asyncio.Task[None] | None) -> None:
        if not self._is_ended:
            self._coroutine.close()
            self._ended.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # In the thread.

    def wait(self) -> None:
        self._ended.acquire()

    def result(self) -> T:
        """After ``wait``."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists: the client runs wherever Python does."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


_lock = threading.Lock()
_threads: list[LoopThread] = []


def loop_thread() -> LoopThread:
    """The loop thread of this process, started if there is none."""
    with _lock:
        if not _threads or not _threads[0].is_usable:
            thread = LoopThread()
            atexit.register(thread.stop)
            _threads[:] = [thread]
        return _threads[0]
