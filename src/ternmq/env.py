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
from typing import Final, NamedTuple, Protocol, runtime_checkable

#: Shorter waits for a page are not looked for: a page of a fast disk takes as long, and asking costs 1 µs.
WAIT_S_LEAST: Final = 0.0001


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


class UsedTime:
    """The CPU time of this thread, and the time in which it waited for the disk because it touched mapped memory that
    was not there (R4). The loop stands still then, as it does with work; but CPU time alone would say that nothing
    was used. Time in which another program had the processor is not counted: the work had no part in that.

    When a thread was off the processor, the kernel tells only *how often* it waited for a page. So the time between
    two calls counts if it is long and there was such a page; other time off the processor within it counts, too.
    """

    __slots__ = ("_cpu", "_cpu_time", "_faults", "_major_faults", "_now", "_waited", "_wall")

    def __init__(self, now: Callable[[], float], cpu_time: Callable[[], float], faults: Callable[[], int]) -> None:
        """``faults``: pages that this thread waited for so far (major faults)."""
        self._now, self._cpu_time, self._major_faults = now, cpu_time, faults
        self._wall, self._cpu, self._faults = now(), cpu_time(), faults()
        self._waited = 0.0

    def __call__(self) -> float:
        wall, cpu = self._now(), self._cpu_time()
        off_s = wall - self._wall - (cpu - self._cpu)
        if off_s > WAIT_S_LEAST:
            faults = self._major_faults()
            if faults > self._faults:
                self._faults = faults
                self._waited += off_s
        self._wall, self._cpu = wall, cpu
        return cpu + self._waited


def thread_faults() -> Callable[[], int]:
    """Counts the pages that the calling thread waited for; none where the system does not tell it by thread."""
    try:
        from resource import RUSAGE_THREAD, getrusage  # Linux
    except ImportError:
        return int
    return lambda: getrusage(RUSAGE_THREAD).ru_majflt


class WorkClock(NamedTuple):
    """What measures work on a loop, in seconds: its own time, and what its thread has used (``UsedTime``)."""

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
    if isinstance(loop, HasWorkClock):
        return loop.work_clock
    return WorkClock(time.monotonic, UsedTime(time.monotonic, time.thread_time, thread_faults()))


def unpredictable(length_bytes: int) -> str:
    """Hexadecimal digits that others must not guess. They do not come from a seed, so nothing may depend on them."""
    return secrets.token_hex(length_bytes)


@dataclass(slots=True, frozen=True)
class Env:
    """What a component may use from its environment."""

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.Random)
