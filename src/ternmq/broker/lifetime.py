"""The time in which a broker is open: once, or again after its log was cut (O1).

All that a broker opens is on one stack. A slave whose master has other records closes it all, cuts its log where the
two differ, and opens again; so does a member of a Raft group that got the files of another. ``mount`` puts all on the
stack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType

from ternmq.tasks import Tasks

log = logging.getLogger(__name__)


class Lifetime:
    """Use ``open`` and ``close`` once each, on one loop."""

    def __init__(self, mount: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
        self._mount = mount
        self._exit = AsyncExitStack()
        self._tasks = Tasks()
        self._wanted = asyncio.Event()

    async def open(self) -> None:
        """Mount all; what fails half-way is undone."""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._open()
        self._tasks.create_task(self._reopen_when_asked(), name="broker: cut the log")

    def reopen(self) -> None:
        """Close all, and open again, soon."""
        self._wanted.set()

    async def failed(self) -> None:
        """Wait until it ends by itself; raises why. It does so only if it cannot be opened again."""
        await asyncio.shield(self._failure)

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        if self._failure.done():
            # Its text is in the log.
            self._failure.exception()
        await self._exit.__aexit__(kind, error, trace)

    async def _open(self) -> None:
        async with AsyncExitStack() as stack:
            await self._mount(stack)
            self._exit = stack.pop_all()

    async def _reopen_when_asked(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._exit.aclose()
                await self._open()
            except Exception as error:
                # All errors: a broker that is closed and says nothing would look alive.
                log.exception("the broker has ended: it could not be opened again: %s", error)
                self._failure.set_exception(error)
                return
