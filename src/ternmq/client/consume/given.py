"""What a broker gave to a share consumer, by number: what is done, and what can be confirmed (R1, R2). Pure.

A range is confirmed as soon as all before it is: the broker takes a gap for messages that were lost, and has them
delivered again. That is what is wanted for messages that are not ours any more, because they took too long: they are
*dropped*, and the next range begins behind them. Nothing is ever confirmed that was not done.

The numbers of an answer are kept as a block, with a byte for each: a consumer does this for every message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

_OPEN: Final = 0
_DONE: Final = 1
_DROPPED: Final = 2


class Range(NamedTuple):
    """Numbers of one life."""

    life: int
    first: int
    last: int


class _Block:
    """Neighbours that came in one answer. Those before ``taken`` are confirmed or dropped, and forgotten."""

    __slots__ = ("first", "life", "states", "taken")

    def __init__(self, life: int, first: int, count: int) -> None:
        self.life = life
        self.first = first
        #: By number, from ``first`` on.
        self.states = bytearray(count)
        self.taken = 0

    def has(self, life: int, number: int) -> bool:
        return self.life == life and self.taken <= number - self.first < len(self.states)

    def skip(self, state: int) -> int:
        """Take what has this state, up to the first that has another; returns how many."""
        rest = self.states[self.taken :]
        count = len(rest) - len(rest.lstrip(bytes((state,))))
        self.taken += count
        return count


_NO_BLOCK: Final = _Block(0, 0, 0)


class Given:
    """Of one source."""

    def __init__(self) -> None:
        self._blocks: deque[_Block] = deque()
        #: The block of the number that was last asked for: those of one answer are settled together.
        self._near = _NO_BLOCK
        #: The last number that came, and its life.
        self.held = -1
        self.life = 0

    def __len__(self) -> int:
        """Numbers that are not confirmed."""
        return sum([len(block.states) - block.taken for block in self._blocks])

    def add(self, life: int, first: int, count: int) -> list[bool]:
        """Numbers came; for each, whether it is new here."""
        if not count:
            return []
        self.held, self.life = first + count - 1, life
        if not any(self._overlaps(block, life, first, count) for block in self._blocks):
            self._blocks.append(_Block(life, first, count))
            return [True] * count
        new = [self._find(life, number) is None for number in range(first, first + count)]
        for number, is_new in enumerate(new, first):
            if is_new:
                self._blocks.append(_Block(life, number, 1))
        return new

    def done(self, life: int, numbers: Iterable[int]) -> None:
        """They need no more work here."""
        self._set(life, numbers, _DONE)

    def drop(self, life: int, numbers: Iterable[int]) -> None:
        """They are not ours any more, unless they were done before."""
        self._set(life, numbers, _DROPPED)

    def take(self) -> Range | None:
        """The next range that can be confirmed; it is taken out."""
        blocks, found = self._blocks, None
        while blocks:
            block = blocks[0]
            if found is None:
                block.skip(_DROPPED)
            first = block.first + block.taken
            if found is not None and (found.life, found.last + 1) != (block.life, first):
                break
            count = block.skip(_DONE)
            if count:
                found = Range(block.life, found.first if found is not None else first, first + count - 1)
            if block.taken < len(block.states):
                break
            blocks.popleft()
        return found

    def _set(self, life: int, numbers: Iterable[int], state: int) -> None:
        block = self._near
        for number in numbers:
            if not block.has(life, number):
                block = self._find(life, number) or _NO_BLOCK
            at = number - block.first
            if block is not _NO_BLOCK and block.states[at] == _OPEN:
                block.states[at] = state
        self._near = block

    def _find(self, life: int, number: int) -> _Block | None:
        for block in self._blocks:
            if block.has(life, number):
                return block
        return None

    @staticmethod
    def _overlaps(block: _Block, life: int, first: int, count: int) -> bool:
        return (
            block.life == life and first < block.first + len(block.states) and block.first + block.taken < first + count
        )
