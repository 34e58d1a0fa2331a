"""What the blocking twins of producers and consumers have in common: a ``with`` block and calls on the loop's thread.

All blocking clients of a process share one loop in one thread (``loop_thread``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from ternmq.client.loop_thread import LoopThread, loop_thread
from ternmq.errors import NotRunning

T = TypeVar("T")


class AsyncTwin(Protocol):
    """A producer or consumer for asyncio, as far as its twin must know it."""

    @property
    def group(self) -> str: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class BlockingTwin:
    """The base of blocking clients; what they can do they ask of the twin, by ``_run`` and ``_do``."""

    def __init__(self, twin: AsyncTwin) -> None:
        self._twin = twin
        self._thread: LoopThread | None = None

    def __repr__(self) -> str:
        return f"<Sync{repr(self._twin)[1:]}"

    @property
    def group(self) -> str:
        return self._twin.group

    def __enter__(self) -> Self:
        thread = loop_thread()
        thread.run(self._twin.__aenter__())
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._open_thread(), None
        thread.run(self._twin.__aexit__(kind, error, trace))

    def _open_thread(self) -> LoopThread:
        """The thread of a running client; raises ``NotRunning``."""
        if self._thread is None:
            raise NotRunning(self._not_running())
        return self._thread

    def _not_running(self) -> str:
        """What to tell who uses it outside its block."""
        return f"the consumer of group {self.group!r} does not run; use it inside its `with` block"

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of the twin; raises ``NotRunning``."""
        try:
            thread = self._open_thread()
        except NotRunning:
            call.close()
            raise
        return thread.run(call)

    def _do(self, call: Callable[[], T]) -> T:
        """Make a plain call of the twin: on its loop once it runs, before that right here."""
        return call() if self._thread is None else self._thread.run(_called(call))


async def _called(call: Callable[[], T]) -> T:
    """A plain call as a coroutine, for ``LoopThread.run``."""
    return call()
