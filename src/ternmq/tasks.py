"""Tasks with one owner.

``Tasks`` is what long-lived objects (servers, clients, consumers) use instead of an ``asyncio.TaskGroup``. Leaving its
block cancels the tasks that still run, since their loops would never end by themselves. An error raised *in* the block
is raised as it is, not inside an ``ExceptionGroup``: an application's ``except TopicMissing`` around
``async with Producer`` must work. A failed task is logged at once, and its error is raised when the block ends without
one of its own.

A thread cannot be cancelled. ``to_its_end`` is for one that uses what its caller gives back when it is cancelled.
``contained`` is for functions of applications that are awaited from a loop and called in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Tasks:
    """``async with Tasks() as tasks: tasks.create_task(…)``; after the block, none of them runs."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if error is None and self._failure is not None:
            raise self._failure

    def create_task(self, coro: Coroutine[Any, Any, T], /, *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this owner; after the end the task is refused, and the coroutine closed."""
        if self._closed:
            coro.close()
            raise RuntimeError("the owner of this task has ended")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self._closed = True
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("a task failed", exc_info=error, extra={"task": task.get_name()})
            if self._failure is None:
                self._failure = error


async def to_its_end(function: Callable[[], T], *, undo: Callable[[T], object] = lambda _result: None) -> T:
    """Call ``function`` in a thread. A caller that is cancelled waits until it has ended, and has ``undo`` take back
    what it returned: with ``asyncio.to_thread`` the thread would go on with files whose lock the caller has released.
    """
    work = asyncio.get_running_loop().run_in_executor(None, function)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            # However often it is cancelled: what follows counts on the end.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            try:
                undo(work.result())
            except Exception as error:
                # The caller is cancelled, whatever else happens.
                log.warning("a call that was not waited for any more has failed: %s", error)
        raise


def contained(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` for a thread of ours. A SystemExit would pass to the task that awaits it, and end the loop; a
    cancellation would end the task. Both become a ``RuntimeError``."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"{function!r} raised {error!r}") from error

    return call
