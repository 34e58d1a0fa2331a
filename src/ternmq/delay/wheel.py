"""The wheel: which messages of this hour and the next are due, as small numbers (I2, I3).

A message is one number, that of its entry in the index of its hour (``hour_files``). Per message the wheel holds its
log offset (8 bytes), its due time (4), its number in the list of its second (4), and whether it is done (1)::

    HourWheel   seconds[0 … 3600]   numbers due in that second
                dues, log offsets   by number; log offsets ascend, so a closed record is found by bisection
                closed              by number
    Wheel       HourWheel of each hour up to the next, and a heap of the messages whose second has begun

A core: «now» goes in, and numbers come out. Nothing comes out before its time. The clock may jump: forward, and all
that is due by it comes out; back, and the seconds that were opened wait in the heap for their own time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from sys import getsizeof
from typing import Final, NamedTuple

from ternmq.delay.due import HOUR_MS

_SECOND_MS: Final = 1_000
#: A due time can be a second behind the last slot of its hour.
_SECONDS: Final = HOUR_MS // _SECOND_MS + 2


class Due(NamedTuple):
    """A message to deliver; sorts by time."""

    due_ms: int
    hour: int
    number: int


class HourWheel:
    """The messages of one hour."""

    __slots__ = (
        "_begin_ms",
        "_closed",
        "_dues",
        "_log_offsets",
        "_next",
        "_opened",
        "_seconds",
        "closed_count",
        "hour",
        "special",
    )

    def __init__(self, hour: int) -> None:
        self.hour = hour
        self._begin_ms = hour * HOUR_MS
        self._dues = array("I")
        self._log_offsets = array("q")
        self._closed = bytearray()
        self._seconds: list[array[int] | None] = [None] * _SECONDS
        #: Seconds before this one are open: their messages are in the heap.
        self._opened = 0
        #: No second from ``_opened`` up to this one has messages.
        self._next = _SECONDS
        #: Entries that are closed.
        self.closed_count = 0
        #: Numbers of entries that are to be settled before anything of this hour is delivered.
        self.special: list[int] = []

    @property
    def entry_count(self) -> int:
        return len(self._dues)

    @property
    def memory_bytes(self) -> int:
        parts = (self._dues, self._log_offsets, self._closed, *self._seconds)
        return sum(getsizeof(part) for part in parts if part is not None)

    @property
    def is_done(self) -> bool:
        return self.closed_count >= len(self._dues)

    def add(self, dues_ms: Sequence[int], log_offsets: array[int]) -> list[Due]:
        """Take in the next entries. Returns those whose second is open already."""
        begin_ms, seconds, opened, late = self._begin_ms, self._seconds, self._opened, []
        number = len(self._dues)
        self._log_offsets += log_offsets
        self._closed += bytes(len(log_offsets))
        last = _SECONDS - 1
        for due_ms in dues_ms:
            # What the disk has damaged is found out when it is delivered; until then it has a place.
            after_ms = min(max(due_ms - begin_ms, 0), HOUR_MS + _SECOND_MS)
            self._dues.append(after_ms)
            second = min(after_ms // _SECOND_MS, last)
            if second < self._next:
                self._next = second
            if second < opened:
                late.append(Due(begin_ms + after_ms, self.hour, number))
            else:
                numbers = seconds[second]
                if numbers is None:
                    numbers = seconds[second] = array("I")
                numbers.append(number)
            number += 1
        return late

    def close(self, log_offsets: Iterable[int]) -> None:
        """Note that the messages at these log offsets are done."""
        offsets, closed = self._log_offsets, self._closed
        for log_offset in log_offsets:
            number = bisect_left(offsets, log_offset)
            if number < len(offsets) and offsets[number] == log_offset and not closed[number]:
                closed[number] = 1
                self.closed_count += 1

    def give_up(self, number: int) -> None:
        """Note that an entry is done that no record can close, because it is damaged."""
        if not self._closed[number]:
            self._closed[number] = 1
            self.closed_count += 1

    def is_closed(self, number: int) -> bool:
        return bool(self._closed[number])

    def in_slot(self, slot_ms: int) -> list[int]:
        """Messages that may be of a slot and are not closed, as far as their second has not begun."""
        second = (slot_ms - self._begin_ms) // _SECOND_MS
        return [
            number
            for numbers in self._seconds[max(second, 0) : second + 2]
            if numbers is not None
            for number in numbers
            if not self._closed[number]
        ]

    def open_until(self, now_ms: int, count_max: int) -> list[Due]:
        """The messages of the next seconds that have begun, ``count_max`` or a second's more; none if all are open."""
        found: list[Due] = []
        end = min((now_ms - self._begin_ms) // _SECOND_MS + 1, _SECONDS)
        begin_ms, dues, closed, hour = self._begin_ms, self._dues, self._closed, self.hour
        while self._opened < end and len(found) < count_max:
            numbers = self._seconds[self._opened]
            self._seconds[self._opened] = None
            self._opened += 1
            if numbers is not None:
                found += [Due(begin_ms + dues[number], hour, number) for number in numbers if not closed[number]]
        return found

    def next_ms(self) -> int | None:
        """When the next second begins that has messages; None if there is none."""
        second = max(self._next, self._opened)
        while second < _SECONDS and self._seconds[second] is None:
            second += 1
        self._next = second
        return self._begin_ms + second * _SECOND_MS if second < _SECONDS else None


class Wheel:
    """The hours that are loaded, and what is due of them."""

    __slots__ = ("_heap", "hours")

    def __init__(self) -> None:
        self.hours: dict[int, HourWheel] = {}
        self._heap: list[Due] = []

    def hour(self, hour: int) -> HourWheel:
        """The wheel of an hour, new if there was none."""
        found = self.hours.get(hour)
        if found is None:
            found = self.hours[hour] = HourWheel(hour)
        return found

    def add(self, hour: int, dues_ms: Sequence[int], log_offsets: array[int]) -> None:
        """Take in the next entries of an hour."""
        for late in self.hour(hour).add(dues_ms, log_offsets):
            heappush(self._heap, late)

    def remove(self, hour: int) -> None:
        """Forget an hour that is done."""
        del self.hours[hour]
        self._heap = [due for due in self._heap if due.hour != hour]
        heapify(self._heap)

    def take(self, now_ms: int, count_max: int) -> list[Due]:
        """Take out up to ``count_max`` messages that are due, the first one first."""
        heap = self._heap
        for hour in sorted(self.hours):
            # Not all at once: after an hour of rest, everything of that hour is due.
            while not heap or heap[0].due_ms > now_ms or len(heap) < count_max:
                opened = self.hours[hour].open_until(now_ms, count_max)
                if not opened:
                    break
                for due in sorted(opened):
                    heappush(heap, due)
        found: list[Due] = []
        while heap and heap[0].due_ms <= now_ms and len(found) < count_max:
            due = heappop(heap)
            hour_wheel = self.hours.get(due.hour)
            if hour_wheel is not None and not hour_wheel.is_closed(due.number):
                found.append(due)
        return found

    def put_back(self, dues: Iterable[Due]) -> None:
        """Take in again what could not be delivered."""
        for due in dues:
            heappush(self._heap, due)

    def next_ms(self) -> int | None:
        """When there may be something to take: a message's time, or the begin of its second; None: nothing waits."""
        times = [time for hour in self.hours.values() if (time := hour.next_ms()) is not None]
        if self._heap:
            times.append(self._heap[0].due_ms)
        return min(times, default=None)
