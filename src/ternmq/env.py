"""The seams between TernMQ and the world: time and chance, passed to constructors so that a whole cluster can
run from one seed (architecture.md, «Seams and the simulation»). The network's seam is the event loop, the disk's
is ``store.disk.base``.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Time for people (``now_ms``, may jump) and time for durations (``monotonic``, never goes back)."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(slots=True, frozen=True)
class Env:
    """What a component may know of the world outside its own state."""

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.Random)
