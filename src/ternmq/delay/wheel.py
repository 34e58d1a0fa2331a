"""The wheel: which messages of this hour and the next are due, as small numbers (I2, I3).

A message is one number, that of its entry in the index of its hour (``hour_files``). Per message the wheel holds its
log offset (8 bytes), where its record stands (8) and how long that is (4), its due time (4), its number in the list of
its tick (4), and whether it is done (1)::

    HourWheel   ticks[0 … 36,000]   numbers due in that tenth of a second
                dues, log offsets   by number; log offsets ascend, so a closed record is found by bisection
                places, sizes       by number
                closed              by number
                open                the messages of the ticks that have begun, sorted by their time
                late                a heap of those that came, or came back, when their tick had begun already

A core: «now» goes in, and numbers come out. Nothing comes out before its time. The clock may jump: forward, and all
that is due by it comes out, tick by tick; back, and the ticks that were opened wait for their own time. A tick is so
short because it is sorted at once: 3 ms for 10,000 messages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush
from sys import getsizeof
from typing import Final, NamedTuple

from ternmq.delay.due import HOUR_MS, SLOT_MS
from ternmq.delay.hour_files import Numbers

_TICK_MS: Final = 100
#: A due time can be a second behind the last slot of its hour.
_LATEST_MS: Final = HOUR_MS + SLOT_MS
_TICKS: Final = _LATEST_MS // _TICK_MS + 1
#: Time within the hour in ms, and number: one integer, so that messages sort by time, and those of one ms as they came.
_NUMBER_BITS: Final = 32
_NUMBER: Final = (1 << _NUMBER_BITS) - 1


class Due(NamedTuple):
    """Messages of one hour to deliver, by number, the first one first."""

    hour: int
    numbers: list[int]


class HourWheel:
    """The messages of one hour."""

    __slots__ = (
        "_at",
        "_begin_ms",
        "_closed",
        "_dues",
        "_late",
        "_next",
        "_open",
        "_opened",
        "_ticks",
        "closed_count",
        "hour",
        "is_sound",
        "log_offsets",
        "places",
        "sizes",
        "special",
    )

    def __init__(self, hour: int) -> None:
        self.hour = hour
        self._begin_ms = hour * HOUR_MS
        self._dues = array("I")
        #: By number: the log offset of a record, and where it stands in the file of records; its size.
        self.log_offsets = array("q")
        self.places = array("q")
        self.sizes = array("i")
        self._closed = bytearray()
        self._ticks: list[array[int] | None] = [None] * _TICKS
        #: Ticks before this one are open.
        self._opened = 0
        #: Their messages, and how many of them were taken.
        self._open: list[int] = []
        self._at = 0
        self._late: list[int] = []
        #: No tick from ``_opened`` up to this one has messages.
        self._next = _TICKS
        #: Entries that are closed.
        self.closed_count = 0
        #: Whether the checksums of all entries were right, as far as they are known.
        self.is_sound = True
        #: Numbers of entries that are to be settled: what they take back or replace is to be closed.
        self.special: dict[int, None] = {}

    @property
    def entry_count(self) -> int:
        return len(self._dues)

    @property
    def memory_bytes(self) -> int:
        parts = (self._dues, self.log_offsets, self.places, self.sizes, self._closed, *self._ticks)
        return sum(getsizeof(part) for part in parts if part is not None)

    @property
    def is_done(self) -> bool:
        return self.closed_count >= len(self._dues)

    def due_ms(self, number: int) -> int:
        return self._begin_ms + self._dues[number]

    def add(self, numbers: Numbers) -> None:
        """Take in the next entries."""
        begin_ms, ticks, opened, late = self._begin_ms, self._ticks, self._opened, self._late
        number, add_due, first = len(self._dues), self._dues.append, self._next
        self.log_offsets += numbers.log_offsets
        self.places += numbers.places
        self.sizes += numbers.sizes
        self._closed += bytes(len(numbers.log_offsets))
        self.special.update(dict.fromkeys(numbers.special))
        self.is_sound = self.is_sound and numbers.is_sound
        for due_ms in numbers.dues_ms:
            after_ms = due_ms - begin_ms
            if not 0 <= after_ms <= _LATEST_MS:
                # What the disk has damaged is found out when it is delivered; until then it has a place.
                after_ms = min(max(after_ms, 0), _LATEST_MS)
            add_due(after_ms)
            tick = after_ms // _TICK_MS
            if tick < first:
                first = tick
            if tick < opened:
                heappush(late, after_ms << _NUMBER_BITS | number)
            else:
                of_tick = ticks[tick]
                if of_tick is None:
                    of_tick = ticks[tick] = array("I")
                of_tick.append(number)
            number += 1
        self._next = first

    def close(self, log_offsets: Iterable[int]) -> None:
        """Note that the messages at these log offsets are done."""
        offsets = self.log_offsets
        for log_offset in log_offsets:
            number = bisect_left(offsets, log_offset)
            if number < len(offsets) and offsets[number] == log_offset:
                self.give_up(number)

    def give_up(self, number: int) -> None:
        """Note that an entry is done."""
        if not self._closed[number]:
            self._closed[number] = 1
            self.closed_count += 1

    def give_up_all(self, numbers: Iterable[int]) -> None:
        """Note that entries are done."""
        closed, count = self._closed, self.closed_count
        for number in numbers:
            if not closed[number]:
                closed[number] = 1
                count += 1
        self.closed_count = count

    def is_closed(self, number: int) -> bool:
        return bool(self._closed[number])

    def in_slot(self, slot_ms: int) -> list[int]:
        """Messages that may be of a slot and are not closed, as far as their tick has not begun."""
        first = (slot_ms - self._begin_ms) // _TICK_MS
        return [
            number
            for numbers in self._ticks[max(first, 0) : first + SLOT_MS // _TICK_MS + 1]
            if numbers is not None
            for number in numbers
            if not self._closed[number]
        ]

    def take(self, now_ms: int, count_max: int) -> list[int]:
        """Take out ``count_max`` messages that are due, the first one first; fewer if no others are."""
        now = now_ms - self._begin_ms + 1
        end, late, closed = max(now, 0) << _NUMBER_BITS, self._late, self._closed
        while True:
            keys: list[int] = []
            while (room := count_max - len(keys)) > 0:
                at = self._at
                until = bisect_left(self._open, end, at, min(at + room, len(self._open)))
                if until > at:
                    keys += self._open[at:until]
                    self._at = until
                elif not self._open_next(now):
                    break
            if late and late[0] < end:
                before = keys[-1] if room <= 0 else end
                while late and late[0] < before and len(keys) < 2 * count_max:
                    keys.append(heappop(late))
                keys.sort()
                for key in keys[count_max:]:
                    heappush(late, key)
                del keys[count_max:]
            found = [number for key in keys if not closed[number := key & _NUMBER]]
            if found or not keys:
                return found

    def _open_next(self, now: int) -> bool:
        """Open the next tick that has messages, if it has begun and all before it are taken."""
        if self._at < len(self._open):
            return False
        end, tick = min((now - 1) // _TICK_MS + 1, _TICKS), max(self._opened, self._next)
        while tick < end and self._ticks[tick] is None:
            tick += 1
        if tick >= end:
            self._opened = max(self._opened, end)
            self._open, self._at = [], 0
            return False
        numbers, self._ticks[tick] = self._ticks[tick], None
        self._opened = self._next = tick + 1
        assert numbers is not None
        dues, closed = self._dues, self._closed
        self._open = [dues[number] << _NUMBER_BITS | number for number in numbers if not closed[number]]
        self._open.sort()
        self._at = 0
        return True

    def put_back(self, numbers: Iterable[int]) -> None:
        """Take in again what could not be delivered."""
        for number in numbers:
            heappush(self._late, self._dues[number] << _NUMBER_BITS | number)

    def next_ms(self) -> int | None:
        """When there may be something to take: a message's time, or the begin of its tick; None: nothing waits."""
        if self._at < len(self._open):
            after_ms = self._open[self._at] >> _NUMBER_BITS
        else:
            tick = max(self._next, self._opened)
            while tick < _TICKS and self._ticks[tick] is None:
                tick += 1
            self._next = tick
            after_ms = tick * _TICK_MS
            if tick >= _TICKS and not self._late:
                return None
        if self._late:
            after_ms = min(after_ms, self._late[0] >> _NUMBER_BITS)
        return self._begin_ms + after_ms


class Wheel:
    """The hours that are loaded, and what is due of them."""

    __slots__ = ("hours",)

    def __init__(self) -> None:
        self.hours: dict[int, HourWheel] = {}

    def remove(self, hour: int) -> None:
        """Forget an hour that is done."""
        del self.hours[hour]

    def take(self, now_ms: int, count_max: int) -> list[Due]:
        """Take out up to ``count_max`` messages that are due, the first hour first."""
        found: list[Due] = []
        for hour in sorted(self.hours):
            if count_max > 0 and (numbers := self.hours[hour].take(now_ms, count_max)):
                found.append(Due(hour, numbers))
                count_max -= len(numbers)
        return found

    def next_ms(self) -> int | None:
        """When there may be something to take; None: nothing waits."""
        return min((time for hour in self.hours.values() if (time := hour.next_ms()) is not None), default=None)
