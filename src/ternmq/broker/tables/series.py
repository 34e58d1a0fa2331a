"""Totals that grow, and what they were at moments of the last minute, hour and day (D5).

The moments are the same for all series: every 10 s for a minute back, every 10 minutes for an hour, every hour for a
day, as RocketMQ has them. ``Timeline`` keeps their times; each ``Count`` has its totals at these moments in a row of
numbers, 1 KiB for a series. A series that is new has zeros there, which is right: it had counted nothing then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple


class Period(Enum):
    """How far back: the step between two moments in seconds, and how many are kept."""

    MINUTE = (10, 7)
    HOUR = (600, 7)
    DAY = (3_600, 25)


_PERIODS: Final = tuple(Period)
_VALUES: Final = 3
_NO_MARKS: Final = array("q", bytes(8 * _VALUES * sum(period.value[1] for period in _PERIODS)))


class Growth(NamedTuple):
    """What was added to a total since a moment."""

    seconds: float
    messages: int
    size_bytes: int
    calls: int


class Count:
    """Messages, bytes and calls since the start, and their totals at the moments of a ``Timeline``."""

    __slots__ = ("calls", "marks", "messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0
        self.calls = 0
        self.marks = _NO_MARKS[:]


class _Moments:
    """The last moments of one period; ``place`` is where their totals begin in a row of marks."""

    __slots__ = ("_count", "_place", "_step_s", "_taken", "_times")

    def __init__(self, period: Period, place: int, now: float) -> None:
        self._step_s, self._count = period.value
        self._place = place
        self._times = [now] * self._count
        #: The start is the first moment: all totals were 0.
        self._taken = 1

    def due(self, now: float) -> int | None:
        """Where totals of this moment belong; None if the last moment is younger than a step."""
        if now - self._times[(self._taken - 1) % self._count] < self._step_s:
            return None
        at = self._taken % self._count
        self._times[at] = now
        self._taken += 1
        return (self._place + at) * _VALUES

    def oldest(self) -> tuple[float, int]:
        """The time of the oldest moment, and where its totals are."""
        at = self._taken % self._count if self._taken >= self._count else 0
        return self._times[at], (self._place + at) * _VALUES


class Timeline:
    """The moments of all periods. Times are those of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._moments: dict[Period, _Moments] = {}
        place = 0
        for period in _PERIODS:
            self._moments[period] = _Moments(period, place, now)
            place += period.value[1]

    def mark(self, now: float, counts: Iterable[Count]) -> None:
        """Note the totals of ``counts``, which are all there are, for each period whose last moment is a step ago."""
        places = [place for moments in self._moments.values() if (place := moments.due(now)) is not None]
        if not places:
            return
        for count in counts:
            marks, messages, size_bytes, calls = count.marks, count.messages, count.size_bytes, count.calls
            for place in places:
                marks[place] = messages
                marks[place + 1] = size_bytes
                marks[place + 2] = calls

    def growth(self, count: Count, period: Period, now: float) -> Growth:
        """What was added to ``count`` in a period, or since the start if that is later."""
        at, place = self._moments[period].oldest()
        messages, size_bytes, calls = count.marks[place : place + _VALUES]
        return Growth(now - at, count.messages - messages, count.size_bytes - size_bytes, count.calls - calls)
