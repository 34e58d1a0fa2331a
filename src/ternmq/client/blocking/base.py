"""The hand-written base of the synchronous clients: a ``with`` block, and calls on the loop's thread.

Everything else of ``SyncProducer`` and the synchronous consumers is derived from the asynchronous classes by
``script/generate_sync.py``. What cannot be derived is written in ``blocking_sends`` and ``blocking_loops``. All
synchronous clients of a process share one loop in one thread (``loop_thread``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

from ternmq.client.blocking.loop_thread import LoopThread, loop_thread
from ternmq.errors import NotRunning
from ternmq.tasks import contained

T = TypeVar("T")
P = ParamSpec("P")


class AsyncClient(Protocol):
    """What a synchronous client needs of each producer or consumer."""

    @property
    def group(self) -> str: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


A = TypeVar("A", bound=AsyncClient)


class SyncClient(Generic[A]):
    """The base of synchronous clients. Their methods call those of ``_async``, by ``_run`` and ``_do``."""

    def __init__(self, client: A) -> None:
        self._async = client
        self._thread: LoopThread | None = None

    def __repr__(self) -> str:
        return f"<Sync{repr(self._async)[1:]}"

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._async.group

    def __enter__(self) -> Self:
        thread = loop_thread()
        thread.run(self._async.__aenter__())
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._open_thread(), None
        if not thread.is_of_this_process:
            # A forked one leaves the block with what it does itself, its exit code say: the client is its parent's.
            return
        thread.run(self._async.__aexit__(kind, error, trace))

    def _open_thread(self) -> LoopThread:
        """The thread of a running client; raises ``NotRunning``."""
        if self._thread is None:
            raise NotRunning(self._not_running())
        return self._thread

    def _not_running(self) -> str:
        """The error message for use outside the block."""
        return f"the consumer of group {self.group!r} is not running; use it inside its `with` block"

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the client and wait for its result; raises ``NotRunning``."""
        try:
            thread = self._open_thread()
        except NotRunning:
            call.close()
            raise
        return thread.run(call)

    def _do(self, call: Callable[[], T]) -> T:
        """Make a plain call of the client: on its loop while it runs, before that in this thread."""
        return call() if self._thread is None else self._thread.run(_called(call))


def in_thread(listener: Callable[P, Awaitable[None] | None]) -> Callable[P, Awaitable[None]]:
    """Have a plain listener called in a thread, where it may block; what an ``async`` one gives runs on the loop."""

    async def listen(*args: P.args, **kwargs: P.kwargs) -> None:
        result = await asyncio.to_thread(contained(listener), *args, **kwargs)
        if result is not None:
            await result

    return listen


async def _called(call: Callable[[], T]) -> T:
    """A plain call as a coroutine, for ``LoopThread.run``."""
    return call()
