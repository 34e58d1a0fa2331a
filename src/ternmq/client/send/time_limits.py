"""Time limits of many sends with few timers.

A timer of the event loop for each send costs more than the rest of its bookkeeping, and nearly all sends end long
before their time. Sends with the same time-out end in the order in which they began, so one timer for each length is
enough: it is set for the oldest send that was in progress when it was set, and looks at the others when it fires.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

#: Timers fire up to one tick of the loop's clock early.
_TICK_S: Final = 0.001


class Expiring(Protocol):
    """What has a time limit."""

    def expire(self) -> None:
        """The time is over; called once."""
        ...


class _SameTimeout:
    """What has one and the same time-out, oldest first, each with its deadline (the loop's time)."""

    __slots__ = ("timer", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Expiring, float] = {}
        self.timer: asyncio.TimerHandle | None = None


class TimeLimits:
    """Calls ``expire`` of what was added and not removed in time. All methods belong to the loop's thread."""

    def __init__(self) -> None:
        self._lines: dict[int, _SameTimeout] = {}
        # To ask for the running loop is a system call, up to Python 3.11.
        self._loop = asyncio.get_running_loop()

    def add(self, item: Expiring, timeout_ms: int) -> dict[Expiring, float]:
        """Have ``item`` expire. To end that, take it out of what this returns; it may be gone by then."""
        line = self._lines.get(timeout_ms)
        if line is None:
            line = self._lines[timeout_ms] = _SameTimeout()
        loop = self._loop
        deadline = line.waiting[item] = loop.time() + timeout_ms / 1000
        if line.timer is None:
            line.timer = loop.call_at(deadline, self._look, timeout_ms)
        return line.waiting

    def close(self) -> None:
        """Set no more timers; what is left ends in another way."""
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()
        self._lines.clear()

    def _look(self, timeout_ms: int) -> None:
        line = self._lines[timeout_ms]
        loop = self._loop
        now = loop.time() + _TICK_S
        due = []
        for item, deadline in line.waiting.items():
            if deadline > now:
                break
            due.append(item)
        for item in due:
            del line.waiting[item]
        oldest = next(iter(line.waiting.values()), None)
        if oldest is None:
            # A line without sends is dropped, or every time-out ever used would keep one.
            del self._lines[timeout_ms]
        else:
            line.timer = loop.call_at(oldest, self._look, timeout_ms)
        for item in due:
            item.expire()
