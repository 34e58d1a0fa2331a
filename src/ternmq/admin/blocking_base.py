"""The hand-written base of ``SyncAdmin``: a ``with`` block, and calls on the loop's thread.

All other parts are derived from ``Admin`` by ``script/generate_sync.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from ternmq.admin.admin import Admin
from ternmq.client.blocking.loop_thread import LoopThread, loop_thread
from ternmq.client.config import ClientConfig
from ternmq.errors import NotRunning

T = TypeVar("T")
N = TypeVar("N")


class RunOnLoop(Protocol):
    """Runs a coroutine on the loop's thread and waits for its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class SyncNoun(Generic[N]):
    """The base of ``admin.topics`` and the others. ``noun`` returns the asynchronous one, or raises ``NotRunning``."""

    def __init__(self, noun: Callable[[], N], run: RunOnLoop) -> None:
        self._noun = noun
        self._run = run


class SyncAdminBase:
    """Opens an ``Admin`` with each ``with`` block."""

    def __init__(self, name_servers: str | Sequence[str] = "", *, config: ClientConfig | None = None) -> None:
        self._config = config if config is not None else ClientConfig(name_servers)
        self._open: tuple[LoopThread, Admin] | None = None

    def __enter__(self) -> Self:
        thread = loop_thread()
        self._open = thread, thread.run(_opened(self._config))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        admin = self._admin()
        assert self._open is not None
        thread, self._open = self._open[0], None
        thread.run(admin.__aexit__(kind, error, trace))

    def _admin(self) -> Admin:
        if self._open is None:
            raise NotRunning("this admin client is not open; use it inside `with SyncAdmin(…)`")
        return self._open[1]

    def _run(self, work: Coroutine[Any, Any, T], /) -> T:
        assert self._open is not None, "the coroutine was made by an open admin"
        return self._open[0].run(work)


async def _opened(config: ClientConfig) -> Admin:
    # On the loop: an instance needs a running loop.
    return await Admin(config=config).__aenter__()
