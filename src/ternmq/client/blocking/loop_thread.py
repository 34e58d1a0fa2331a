"""One event loop in a thread, for programs without one: what the blocking clients run on.

A process has one such thread. It starts with the first blocking client, is a daemon, and ends with the program. After a
fork the child gets one of its own; clients that were opened before belong to the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ternmq.errors import NotRunning

T = TypeVar("T")

_STOP_TIMEOUT_S = 5.0


class LoopThread:
    """A thread with a loop. Its methods may be called from any other thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
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
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, call: Callable[[], asyncio.Future[T]]) -> Future[T]:
        """Make a call on the loop that gives a future there, and return one for threads."""
        result: Future[T] = Future()

        def begin() -> None:
            try:
                inner = call()
            except Exception as error:
                result.set_exception(error)
            else:
                inner.add_done_callback(settle)

        def settle(inner: asyncio.Future[T]) -> None:
            if not result.set_running_or_notify_cancel():
                return
            if inner.cancelled():
                result.set_exception(
                    NotRunning("the client was closed during this call; close it after its calls have ended")
                )
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

    @property
    def is_usable(self) -> bool:
        return self.pid == os.getpid() and self._loop is not None

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None or self.pid != os.getpid():
            raise NotRunning("this client was opened in another process; open one in this process")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a synchronous call inside a callback would block for ever; make it in another thread")
        return loop

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._end.wait()


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
