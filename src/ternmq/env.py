"""The seams between TernMQ and its environment: time and randomness, passed to constructors so that a whole cluster
can run from one seed. The seam of the network is the event loop, that of the disk is
``store.disk.base``.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable


class Clock(Protocol):
    """Wall-clock time (``now_ms``, may jump) and time for durations (``monotonic``, never goes back)."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...


class SystemClock:
    """The machine's clock."""

    #: As it is: a consumer asks several times for each message.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class WorkClock(NamedTuple):
    """What measures work on a loop, in seconds: its own time, and the CPU time of its thread."""

    now: Callable[[], float]
    used: Callable[[], float]


@runtime_checkable
class HasWorkClock(Protocol):
    """A loop whose time is not this machine's (``testing.loop``)."""

    @property
    def work_clock(self) -> WorkClock: ...


def work_clock() -> WorkClock:
    """That of the running loop. Its time is exact: what uvloop tells are whole milliseconds."""
    loop = asyncio.get_running_loop()
    return loop.work_clock if isinstance(loop, HasWorkClock) else WorkClock(time.monotonic, time.thread_time)


def unpredictable(length_bytes: int) -> str:
    """Hexadecimal digits that others must not guess. They do not come from a seed, so nothing may depend on them."""
    return secrets.token_hex(length_bytes)


@dataclass(slots=True, frozen=True)
class Env:
    """What a component may use from its environment."""

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.Random)
