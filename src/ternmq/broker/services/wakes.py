"""Held requests that were woken, carried out again in turns of the loop (F8, F9).

A record that wakes a thousand consumers must not stop the sends, nor must slow filters. So a turn carries out a limited
number of them, for a limited time, and the rest follows in the next turn. Each has its turn, in the order of waking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

#: Held requests carried out in one turn of the loop, and for how long.
WAKE_MAX: Final = 64
WAKE_S: Final = 0.005

Hold = TypeVar("Hold")


class Wakes(Generic[Hold]):
    """Belongs to the loop's thread. ``carry_out`` must not raise."""

    def __init__(self, carry_out: Callable[[Hold], None]) -> None:
        self._carry_out = carry_out
        self._loop = asyncio.get_running_loop()
        self._woken: list[Hold] = []

    def add(self, hold: Hold) -> None:
        """Carry a request out again in one of the next turns."""
        if not self._woken:
            self._loop.call_soon(self._turn)
        self._woken.append(hold)

    def clear(self) -> None:
        self._woken.clear()

    def _turn(self) -> None:
        now, self._woken = self._woken[:WAKE_MAX], self._woken[WAKE_MAX:]
        if self._woken:
            self._loop.call_soon(self._turn)
        turn_end = self._loop.time() + WAKE_S
        for number, hold in enumerate(now, 1):
            self._carry_out(hold)
            if number < len(now) and self._loop.time() > turn_end:
                if not self._woken:
                    self._loop.call_soon(self._turn)
                self._woken[:0] = now[number:]
                return
