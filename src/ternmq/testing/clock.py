"""A node's clock in a simulation: it follows the loop's virtual time, and can be wrong (C8, I3)."""

from __future__ import annotations

import asyncio
from typing import Final

from ternmq.testing.loop import BEGIN_S

#: Start of all simulations, in ms since 1970: 14 November 2023, 22:13 UTC.
EPOCH_MS: Final = 1_700_000_000_000


class SimulatedClock:
    """Implements ``ternmq.env.Clock``. Wall-clock time is ``skew_ms`` off and can jump, time for durations cannot."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0) -> None:
        self._time = loop.time
        self._now_ms = EPOCH_MS + skew_ms

    def now_ms(self) -> int:
        return self._now_ms + int((self._time() - BEGIN_S) * 1000)

    def monotonic(self) -> float:
        return self._time()

    def jump(self, ms: int) -> None:
        """Set the clock, forward or back."""
        self._now_ms += ms
