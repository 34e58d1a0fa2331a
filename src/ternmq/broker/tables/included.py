"""Which changes of the log a table has, in a Raft group (P4). Pure.

Changes of topics, groups, their modes and their offsets by tools are records of one queue
(``services.table_journal``), so a number says it: those before that queue offset are in the table. Each table has its
own, as their files are written at different times. The number goes with the table, to its file and to followers that
copy it. It may be too small, never too large: what comes twice, in order, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Included:
    """The number of one table. Without a journal there is none."""

    __slots__ = ("_count", "_dispatched", "_is_live", "_limit")

    def __init__(self) -> None:
        #: None: not known.
        self._count: int | None = None
        self._limit: int | None = None
        #: How many changes can be read; None: there is no journal, or it is not known yet.
        self._dispatched: Callable[[], int] | None = None
        self._is_live = False

    @property
    def count(self) -> int | None:
        """How many changes the table has at least; None if there is no journal, or if it is not known."""
        return self._dispatched() if self._is_live and self._dispatched is not None else self._count

    def take(self, count: int | None) -> None:
        """The table was loaded or copied, and came with this number. A copy without one is of a leader that does not
        write changes to the log: it is taken as it is."""
        if count is None and self._dispatched is not None:
            count = self._dispatched()
        if count is not None:
            self._count = count if self._limit is None else min(count, self._limit)

    def limit(self, count: int | None) -> None:
        """What belongs to the table was copied before it, and has ``count`` changes: no copy counts for more."""
        self._limit = count

    def begin(self, dispatched: Callable[[], int] | None) -> None:
        """The broker starts. ``dispatched`` tells how many changes can be read; None: there is no journal.

        A number beyond that belongs to a log that has lost its end: other changes will stand there. A table without a
        number is of a broker that did not write changes to its log: it is taken as it is. Save the table then, before
        the log can grow.
        """
        self._dispatched = dispatched
        there = dispatched() if dispatched is not None else None
        self._count = there if there is None or self._count is None else min(self._count, there)

    def lead(self) -> None:
        """From now on this is the table: it has each change before it can be read."""
        self._is_live = True

    def follow(self) -> None:
        """The term is over. What can be read now is in the table; what others write from now on is not."""
        self._count, self._is_live = self.count, False

    def fold(self, queue_offset: int) -> bool:
        """Whether the table lacks the change at ``queue_offset``, which the caller makes then. Call it in order."""
        assert self._count is not None, "there is a journal"
        if queue_offset < self._count:
            return False
        self._count = queue_offset + 1
        return True


class TableNumbers(NamedTuple):
    """The numbers of all tables whose changes are in the log."""

    topics: Included
    groups: Included
    modes: Included
    offsets: Included


class Lacking(NamedTuple):
    """Which tables lack a change."""

    topics: bool
    groups: bool
    modes: bool
    offsets: bool
