"""The half queue against the op queue (J1, J2): which transactions are open. Pure.

Both queues are read once, in order, halves before ops; an op always lies behind its half in the log, so by then the
half is known. What remains in memory is two numbers for each open transaction, and one for each op record since the
oldest of them.

There may be a million open halves, so nothing sorts or copies them: they are counted by *page*, a range of queue
offsets, and who walks over all of them in order takes a page at a time (``pages``, ``on_page``).

A half may be *copied*: written again at the end of its queue, so that the queue before it can be forgotten. The copy
takes the place of its original, which is closed by an op of its own; who still ends the original means the copy
(``current``). A crash between the two leaves both open, until the copy is examined.

Progress is what a reader who starts anew needs: all halves before the first number are closed, and no op before the
second names a half at or behind the first. RocketMQ reads both queues from there.

Invariants (``tests/transaction/test_ledger.py`` compares it with a model):

- a half is open from ``half`` on until an op that names it, or a copy;
- a half is closed once: what was closed stays so;
- ``progress`` never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

#: A page has 1,024 queue offsets.
_PAGE_BITS: Final = 10


def page_of(queue_offset: int) -> int:
    return queue_offset >> _PAGE_BITS


class HalfLedger:
    """Starts where an older one's ``progress`` was."""

    def __init__(self, half_offset: int, op_offset: int) -> None:
        #: Queue offsets of the next half and op to be read.
        self.next_half = half_offset
        self.next_op = op_offset
        #: The log offset of each open half, by queue offset.
        self.open: dict[int, int] = {}
        #: How many are open on each page that has some.
        self._pages: dict[int, int] = {}
        #: The highest half that each op record names (-1: none), from ``_op_low`` on.
        self._ops: deque[int] = deque()
        self._op_low = op_offset
        self._half_low = half_offset
        #: Of open copies: from the first to the newest, and back.
        self._newest: dict[int, int] = {}
        self._first: dict[int, int] = {}
        #: Copies that are known before the queue was read up to them.
        self._ahead: set[int] = set()

    def half(self, queue_offset: int, log_offset: int) -> None:
        """The next entry of the half queue."""
        self.next_half = queue_offset + 1
        if queue_offset in self._ahead:
            self._ahead.remove(queue_offset)
        else:
            self._add(queue_offset, log_offset)

    def _add(self, queue_offset: int, log_offset: int) -> None:
        if queue_offset not in self.open:
            page = page_of(queue_offset)
            self._pages[page] = self._pages.get(page, 0) + 1
        self.open[queue_offset] = log_offset

    def skip_to(self, half_offset: int, op_offset: int) -> None:
        """Entries before these queue offsets have been deleted with their log."""
        self.next_half = max(self.next_half, half_offset)
        while self.next_op < op_offset:
            self.op(())

    def op(self, closed: Iterable[int]) -> list[int]:
        """The next record of the op queue, which names these halves; returns those that were open."""
        highest = -1
        were_open = []
        for queue_offset in closed:
            highest = max(highest, queue_offset)
            if self.close(queue_offset):
                were_open.append(queue_offset)
        self.next_op += 1
        self._ops.append(highest)
        return were_open

    def ops_written(self, queue_offsets: Sequence[int]) -> None:
        """The next records of the op queue name one half each, all of which are closed already."""
        self.next_op += len(queue_offsets)
        self._ops.extend(queue_offsets)

    def close(self, queue_offset: int) -> bool:
        """A half is done with; whether it was open."""
        if self.open.pop(queue_offset, None) is None:
            return False
        page = page_of(queue_offset)
        left = self._pages[page] - 1
        if left:
            self._pages[page] = left
        else:
            del self._pages[page]
        first = self._first.pop(queue_offset, None)
        if first is not None and self._newest.get(first) == queue_offset:
            del self._newest[first]
        return True

    def close_all(self, queue_offsets: Iterable[int]) -> None:
        """Halves that are open are done with."""
        if self._first:
            for queue_offset in queue_offsets:
                self.close(queue_offset)
            return
        open_halves, pages = self.open, self._pages
        for queue_offset in queue_offsets:
            del open_halves[queue_offset]
            page = queue_offset >> _PAGE_BITS
            if pages[page] == 1:
                del pages[page]
            else:
                pages[page] -= 1

    def copied(self, first: int, queue_offset: int, log_offset: int) -> int | None:
        """The transaction that began at ``first`` has a (new) copy; returns the older one that this closes."""
        older = self._newest.get(first, first)
        if older > queue_offset:
            # Read in another order than written: the newer one stands.
            self.close(queue_offset)
            return queue_offset
        was_open = older != queue_offset and self.close(older)
        self._add(queue_offset, log_offset)
        self._newest[first] = queue_offset
        self._first[queue_offset] = first
        if queue_offset >= self.next_half:
            self._ahead.add(queue_offset)
        return older if was_open else None

    def current(self, queue_offset: int, first: int) -> int | None:
        """The open half of a transaction that is named by one of its copies; None if it is closed."""
        if queue_offset in self.open:
            return queue_offset
        newest = self._newest.get(first)
        return newest if newest is not None and newest in self.open else None

    def pages(self, queue_offset: int = 0) -> list[int]:
        """The pages that have open halves, in order, from that of ``queue_offset`` on."""
        first = page_of(queue_offset)
        return sorted(page for page in self._pages if page >= first)

    def on_page(self, page: int) -> list[int]:
        """The queue offsets of the open halves of a page, in order."""
        return [at for at in range(page << _PAGE_BITS, (page + 1) << _PAGE_BITS) if at in self.open]

    def oldest(self, count: int) -> list[int]:
        """The queue offsets of the oldest open halves."""
        found: list[int] = []
        for page in self.pages():
            found += self.on_page(page)
            if len(found) >= count:
                break
        return found[:count]

    @property
    def _low(self) -> int:
        """The oldest open half; without one, the next to be read."""
        return self.on_page(min(self._pages))[0] if self._pages else self.next_half

    @property
    def lag(self) -> int:
        """How many entries of the half queue a reader who starts anew would have to read."""
        return self.next_half - self._low

    def progress(self, *, keep: Iterable[int] = ()) -> tuple[int, int]:
        """How far both queues are done with: queue offsets of halves and of ops. Halves of ``keep`` are not done."""
        self._half_low = max(self._half_low, min((self._low, self.next_half, *keep)))
        while self._ops and self._ops[0] < self._half_low:
            self._ops.popleft()
            self._op_low += 1
        return self._half_low, self._op_low
