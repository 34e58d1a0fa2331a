"""Blocking calls of a database, beside the event loop (J3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar
from weakref import finalize

P = ParamSpec("P")
T = TypeVar("T")

_Calls = SimpleQueue[tuple["Future[Any]", Callable[[], Any]] | None]


class SideThread:
    """Does calls one after the other, in a thread that begins with the first one.

    It does not keep the program from ending. A ``ThreadPoolExecutor`` does: the program waits for its thread, for ever
    if a database has stopped answering. Its methods belong to the loop's thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: _Calls = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        finalize(self, self._calls.put, None)

    async def run(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """What the function returns or raises. A cancelled call does not begin, or goes on unheard."""
        return await asyncio.wrap_future(self.start(function, *args, **options))

    def start(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """The same, without waiting."""
        if self._thread.ident is None:
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((future, lambda: function(*args, **options)))
        return future

    def end(self) -> None:
        """End the thread after the calls that were made, without waiting."""
        self._calls.put(None)


def _work(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        future, function = call
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                # The caller's, whatever it is.
                future.set_exception(error)
        # Nothing may live on until the next call comes.
        del call, future, function
