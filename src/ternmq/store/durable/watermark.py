"""A log offset that grows, and callers that wait for it to pass theirs (C6).

Group commit, a synchronous slave and a Raft majority are one thing: a position in the log up to which something
holds (*flushed*, *replicated*, *committed*). A caller waits for an offset; nothing is polled.

A log that takes records back (``Log.truncate``) moves the watermark back, too, and then the callers that wait for what
is gone are told so: else the record of another leader at the same offset would answer them.

A watermark belongs to one thread. Another thread that moves it hands the step over (``store.durable.flush``).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

from ternmq.errors import TernError


class Watermark:
    """``value`` is reached; callers that wait for more are called when it comes, in the order of offsets."""

    __slots__ = ("_callbacks", "_failures", "_heap", "_ticket", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self._heap: list[tuple[int, int]] = []
        # Apart from the heap, so that a caller that gives up is forgotten at once and costs the heap a pair of ints.
        self._callbacks: dict[int, Callable[[], object]] = {}
        #: The same for those that want to be told when their record is taken back.
        self._failures: dict[int, Callable[[TernError], object]] = {}
        self._ticket = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._callbacks)

    def advance(self, to: int) -> None:
        """Move to ``to`` and call the callers that wait for less; a smaller value changes nothing."""
        if to <= self.value:
            return
        self.value = to
        heap = self._heap
        while heap and heap[0][0] <= to:
            ticket = heapq.heappop(heap)[1]
            callback = self._callbacks.pop(ticket, None)
            if callback is not None:
                if self._failures:
                    self._failures.pop(ticket, None)
                callback()

    def retreat(self, to: int, error: TernError) -> None:
        """Move back to ``to``, if it is smaller: what was there is gone.

        Callers that wait for more than ``to`` are told ``error`` if they have asked for it, and are forgotten.
        """
        self.value = min(self.value, to)
        gone = sorted(pair for pair in self._heap if pair[0] > to)
        self._heap = [pair for pair in self._heap if pair[0] <= to]
        heapq.heapify(self._heap)
        failures = []
        for _, ticket in gone:
            self._callbacks.pop(ticket, None)
            failures.append(self._failures.pop(ticket, None))
        for failed in failures:
            if failed is not None:
                failed(error)

    def call_when(
        self, offset: int, callback: Callable[[], object], failed: Callable[[TernError], object] | None = None
    ) -> int:
        """Call ``callback`` once ``value >= offset``, now if it is; or ``failed`` if that record is taken back.

        Returns a ticket for ``forget``.
        """
        self._ticket += 1
        if self.value >= offset:
            callback()
            return self._ticket
        self._callbacks[self._ticket] = callback
        if failed is not None:
            self._failures[self._ticket] = failed
        heapq.heappush(self._heap, (offset, self._ticket))
        return self._ticket

    def forget(self, ticket: int) -> None:
        """Give up waiting; a ticket that was served already is no error."""
        self._callbacks.pop(ticket, None)
        self._failures.pop(ticket, None)
        # A disk that hangs makes every caller give up: without this the heap would keep them all.
        if len(self._heap) > 2 * len(self._callbacks) + 64:
            self._heap = [pair for pair in self._heap if pair[1] in self._callbacks]
            heapq.heapify(self._heap)

    @property
    def first(self) -> int | None:
        """The smallest offset that a caller waits for; None if none waits."""
        heap = self._heap
        while heap and heap[0][1] not in self._callbacks:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    async def reached(self, offset: int, timeout_ms: float) -> bool:
        """Wait until ``value >= offset``; False if ``timeout_ms`` pass first. Raises the error of ``retreat``."""
        return await wait_until(self, offset, timeout_ms)


class Waitable(Protocol):
    """What can be waited for: a watermark, or the smallest of several (``store.durable.safety``)."""

    @property
    def value(self) -> int: ...

    def call_when(
        self, offset: int, callback: Callable[[], object], failed: Callable[[TernError], object] | None = None, /
    ) -> int: ...

    def forget(self, ticket: int, /) -> None: ...


async def wait_until(mark: Waitable, offset: int, timeout_ms: float) -> bool:
    """Wait until ``mark.value >= offset``; False if ``timeout_ms`` pass first. Raises if the record is taken back."""
    if mark.value >= offset:
        return True
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def finish(outcome: bool) -> None:
        if not done.done():
            done.set_result(outcome)

    def fail(error: TernError) -> None:
        if not done.done():
            done.set_exception(error)

    ticket = mark.call_when(offset, lambda: finish(True), fail)
    timer = loop.call_later(timeout_ms / 1000, finish, False)
    try:
        return bool(await done)
    finally:
        timer.cancel()
        mark.forget(ticket)
