"""Totals that grow, and what they were at moments of the last minute, hour and day (D5).

The moments are the same for all series: every 10 s for a minute back, every 10 minutes for an hour, every hour for a
day, as RocketMQ has them. ``Timeline`` keeps their times; each ``Count`` has its totals at these moments in a row of
numbers, 1 KiB for a series. A series that is new has zeros there, which is right: it had counted nothing then.

100,000 series take 55 ms to note. That is done in slices (``Timeline.mark``): a moment that is being noted is the
newest one, and nothing reads it before it is the oldest.

``SeriesTable`` bounds series by their bytes: names come from requests. What has no room is counted together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar


class Period(Enum):
    """How far back: the step between two moments in seconds, and how many are kept."""

    MINUTE = (10, 7)
    HOUR = (600, 7)
    DAY = (3_600, 25)


_PERIODS: Final = tuple(Period)
_VALUES: Final = 3
#: Series that are noted in one slice: some 2 ms.
SLICE: Final = 4_000
#: What a series takes besides its name: the row, the object, its places in tables.
COUNT_BYTES: Final = 1_300
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


K = TypeVar("K", str, tuple[str, str])


class SeriesTable(Generic[K]):
    """Series by name: a topic, or a topic and a group. So many as ``room`` allows, which several tables share."""

    __slots__ = ("_room", "all", "others")

    def __init__(self, room: SeriesRoom) -> None:
        self._room = room
        #: To look at, and to look up; ``of`` adds.
        self.all: dict[K, Count] = {}
        #: What had no room.
        self.others = Count()

    def of(self, key: K) -> Count:
        """The series of a name, which is new."""
        if not self._room.take(_name_bytes(key)):
            return self.others
        count = self.all[key] = Count()
        return count

    def forget(self, key: K) -> None:
        if self.all.pop(key, None) is not None:
            self._room.give_back(_name_bytes(key))


class SeriesRoom:
    """Bytes for series, as estimated."""

    __slots__ = ("_left", "refused")

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        #: How often a name had no room.
        self.refused = 0

    def take(self, name_bytes: int) -> bool:
        if self._left < COUNT_BYTES + name_bytes:
            self.refused += 1
            return False
        self._left -= COUNT_BYTES + name_bytes
        return True

    def give_back(self, name_bytes: int) -> None:
        self._left += COUNT_BYTES + name_bytes


def _name_bytes(key: str | tuple[str, str]) -> int:
    # Names are of ASCII but for those of older stores; four bytes a character is the most.
    return 4 * (len(key) if isinstance(key, str) else len(key[0]) + len(key[1]))


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

    def due(self, now: float) -> list[int]:
        """The places to note for the periods whose last moment is a step ago; they begin their next moment with it."""
        return [place for moments in self._moments.values() if (place := moments.due(now)) is not None]

    @staticmethod
    def mark(places: Sequence[int], counts: Sequence[Count]) -> Iterator[None]:
        """Note the totals of ``counts``, which are all there are, at ``places``, a slice with each step."""
        for begin in range(0, len(counts), SLICE):
            for count in counts[begin : begin + SLICE]:
                marks, messages, size_bytes, calls = count.marks, count.messages, count.size_bytes, count.calls
                for place in places:
                    marks[place] = messages
                    marks[place + 1] = size_bytes
                    marks[place + 2] = calls
            yield

    def growth(self, count: Count, period: Period, now: float) -> Growth:
        """What was added to ``count`` in a period, or since the start if that is later."""
        at, place = self._moments[period].oldest()
        messages, size_bytes, calls = count.marks[place : place + _VALUES]
        return Growth(now - at, count.messages - messages, count.size_bytes - size_bytes, count.calls - calls)
