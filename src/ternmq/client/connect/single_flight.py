"""One question at a time: callers that want the same thing while it is being fetched share one fetch (A4, B2).

The fetch runs as a task of its owner, not of the first caller: a caller that gives up does not take it away from the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ternmq.errors import NotRunning
from ternmq.net.peer import TaskOwner

K = TypeVar("K")
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """``await flights.run(key, fetch)``: one ``fetch`` per key at any time."""

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._flying: dict[K, asyncio.Future[T]] = {}

    async def run(self, key: K, fetch: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of ``fetch`` or its error, which every waiting caller gets."""
        future = self._flying.get(key)
        # A caller that was just answered may ask again before the fetch is forgotten: its answer is old for that one.
        if future is None or future.done():
            future = self._start(key, fetch)
        return await asyncio.shield(future)

    def _start(self, key: K, fetch: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # Read even when all callers have given up, or asyncio complains about an error that was not looked at.
        future.add_done_callback(asyncio.Future.exception)
        self._flying[key] = future

        def landed(_: object) -> None:
            if self._flying.get(key) is future:
                del self._flying[key]
            if not future.done():
                # Its owner has ended. The callers were not cancelled, so they must not see a CancelledError.
                future.set_exception(
                    NotRunning("the client was closed during this call; close it after its calls have ended")
                )

        self._tasks.create_task(_fly(fetch, future)).add_done_callback(landed)
        return future


async def _fly(fetch: Callable[[], Coroutine[Any, Any, T]], future: asyncio.Future[T]) -> None:
    try:
        future.set_result(await fetch())
    except Exception as error:
        # Any error belongs to the callers; it must not count as a failure of the owner.
        future.set_exception(error)
