"""A log offset that only grows, and those who wait for it to pass theirs (C6).

Group commit, a synchronous slave and a Raft majority are one thing: a position in the log up to which something
holds (*flushed*, *replicated*, *committed*). Who waits, waits for an offset; nobody polls.

A watermark belongs to one thread. Another thread that moves it hands the step over (``store.flush``).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable


class Watermark:
    """``value`` is reached; who waits for more is called when it comes, in the order of offsets."""

    __slots__ = ("_callbacks", "_heap", "_ticket", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self._heap: list[tuple[int, int]] = []
        # Apart from the heap, so that one who gives up is forgotten at once and costs the heap a pair of ints.
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._ticket = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._callbacks)

    def advance(self, to: int) -> None:
        """Move to ``to`` and call whom that serves; a smaller value changes nothing."""
        if to <= self.value:
            return
        self.value = to
        heap = self._heap
        while heap and heap[0][0] <= to:
            callback = self._callbacks.pop(heapq.heappop(heap)[1], None)
            if callback is not None:
                callback()

    def call_when(self, offset: int, callback: Callable[[], object]) -> int:
        """Call ``callback`` once ``value >= offset``, now if it is. Returns a ticket for ``forget``."""
        self._ticket += 1
        if self.value >= offset:
            callback()
            return self._ticket
        self._callbacks[self._ticket] = callback
        heapq.heappush(self._heap, (offset, self._ticket))
        return self._ticket

    def forget(self, ticket: int) -> None:
        """Give up waiting; a ticket that was served already is no error."""
        self._callbacks.pop(ticket, None)
        # A disk that hangs makes every waiter give up: without this the heap would keep them all.
        if len(self._heap) > 2 * len(self._callbacks) + 64:
            self._heap = [pair for pair in self._heap if pair[1] in self._callbacks]
            heapq.heapify(self._heap)

    async def reached(self, offset: int, timeout_ms: float) -> bool:
        """Wait until ``value >= offset``; False if ``timeout_ms`` pass first."""
        if self.value >= offset:
            return True
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def finish(outcome: bool) -> None:
            if not done.done():
                done.set_result(outcome)

        ticket = self.call_when(offset, lambda: finish(True))
        timer = loop.call_later(timeout_ms / 1000, finish, False)
        try:
            return bool(await done)
        finally:
            timer.cancel()
            self.forget(ticket)
