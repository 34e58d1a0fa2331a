"""What a broker gave to a share consumer, by number: what is done, and what can be confirmed (R1, R2). Pure.

A range is confirmed as soon as all before it is: the broker takes a gap for messages that were lost, and has them
delivered again. That is what is wanted for messages that are not ours any more, because they took too long: they are
*dropped*, and the next range begins behind them. Nothing is ever confirmed that was not done.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Range(NamedTuple):
    """Numbers of one life."""

    life: int
    first: int
    last: int


class _Entry:
    __slots__ = ("is_done", "is_dropped", "life", "number")

    def __init__(self, life: int, number: int) -> None:
        self.life = life
        self.number = number
        self.is_done = False
        self.is_dropped = False


class Given:
    """Of one source."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._by_number: dict[tuple[int, int], _Entry] = {}
        #: The last number that came, and its life.
        self.held = -1
        self.life = 0

    def __len__(self) -> int:
        """Numbers that are not confirmed."""
        return len(self._entries)

    def add(self, life: int, first: int, count: int) -> list[bool]:
        """Numbers came; for each, whether it is new here."""
        new = []
        for number in range(first, first + count):
            is_new = (life, number) not in self._by_number
            new.append(is_new)
            if is_new:
                entry = _Entry(life, number)
                self._by_number[life, number] = entry
                self._entries.append(entry)
        if count:
            self.held, self.life = first + count - 1, life
        return new

    def done(self, life: int, number: int) -> None:
        """It needs no more work here."""
        entry = self._by_number.get((life, number))
        if entry is not None and not entry.is_dropped:
            entry.is_done = True

    def drop(self, life: int, number: int) -> None:
        """It is not ours any more, unless it was done before."""
        entry = self._by_number.get((life, number))
        if entry is not None and not entry.is_done:
            entry.is_dropped = True

    def take(self) -> Range | None:
        """The next range that can be confirmed; it is taken out."""
        entries = self._entries
        while entries and entries[0].is_dropped:
            self._pop()
        if not entries or not entries[0].is_done:
            return None
        first = last = self._pop()
        while entries and entries[0].is_done and entries[0].life == first.life and entries[0].number == last.number + 1:
            last = self._pop()
        return Range(first.life, first.number, last.number)

    def _pop(self) -> _Entry:
        entry = self._entries.popleft()
        del self._by_number[entry.life, entry.number]
        return entry
