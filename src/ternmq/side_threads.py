"""Blocking calls of databases, beside the event loop (J3, S1)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, ParamSpec, TypeVar
from weakref import finalize

P = ParamSpec("P")
T = TypeVar("T")


class SideThreads:
    """Does calls in up to ``count_max`` threads, which begin when they are needed. May be used in any thread and loop,
    and after a fork. One thread does its calls one after the other.

    They do not keep the program from ending. Those of a ``ThreadPoolExecutor`` do, ``asyncio.to_thread`` included: the
    program waits for them, for ever if a database has stopped answering.
    """

    def __init__(self, name: str, count_max: int = 1) -> None:
        self._name = name
        self._count_max = count_max
        self._pid, self._calls = os.getpid(), self._begun()

    def _begun(self) -> _Calls:
        calls = _Calls()
        self._finalizer = finalize(self, _end, calls)
        # Threads that keep no program from ending need no end.
        self._finalizer.atexit = False
        return calls

    async def run(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """What the function returns or raises. A cancelled call does not begin, or goes on unheard. As with
        ``asyncio.to_thread``, it sees the caller's context: listeners of an engine may want its tenant or trace."""
        context = copy_context()
        return await asyncio.wrap_future(self.start(lambda: context.run(function, *args, **options)))

    def start(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """The same, without waiting, and without the context. Raises ``RuntimeError`` if the first thread cannot
        begin."""
        if self._pid != os.getpid():
            # The threads are the parent's, and one of them may hold the lock.
            self._finalizer.detach()
            self._pid, self._calls = os.getpid(), self._begun()
        calls = self._calls
        future: Future[T] = Future()
        with calls.lock:
            if calls.threads < min(calls.open + 1, self._count_max):
                try:
                    Thread(target=_work, args=(calls,), name=self._name, daemon=True).start()
                    calls.threads += 1
                except RuntimeError:
                    # The machine gives no more threads. Without one, the call would wait for ever.
                    if not calls.threads:
                        raise
            calls.open += 1
        calls.queue.put((future, lambda: function(*args, **options)))
        return future

    def end(self) -> None:
        """End the threads after the calls that were made, without waiting. Later calls have new threads: they need not
        wait for those that never return."""
        self._finalizer.detach()
        calls, self._calls = self._calls, self._begun()
        _end(calls)


class _Calls:
    """What the threads have; without them, they end."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        # The owner may be found to be garbage, and end these, at any moment, in this thread, too.
        self.lock = RLock()
        #: Calls that were made and did not return yet.
        self.open = 0
        self.threads = 0


def _end(calls: _Calls) -> None:
    if calls.pid != os.getpid():
        # As in ``start``: one of the parent's threads may hold the lock.
        return
    with calls.lock:
        threads, calls.threads = calls.threads, 0
    for _ in range(threads):
        calls.queue.put(None)


def _work(calls: _Calls) -> None:
    while (call := calls.queue.get()) is not None:
        future, function = call
        result: Any = None
        error: BaseException | None = None
        is_wanted = future.set_running_or_notify_cancel()
        if is_wanted:
            try:
                result = function()
            except BaseException as raised:
                # The caller's, whatever it is.
                error = raised
        with calls.lock:
            calls.open -= 1
        if error is not None:
            future.set_exception(error)
        elif is_wanted:
            future.set_result(result)
        # Nothing may live on until the next call comes.
        del call, future, function, result, error
