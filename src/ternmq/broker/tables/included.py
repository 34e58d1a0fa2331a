"""Which changes of the log a table has, in a Raft group (P4). Pure.

Changes of topics and groups are records of one queue (``services.table_journal``), so a number says it: those before
that queue offset are in the table. The number goes with the table, to its file and to followers that copy it. It may be
too small, never too large: what comes twice, in order, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable


class Included:
    """The number of one table. Without a journal there is none."""

    __slots__ = ("_count", "_limit", "_live")

    def __init__(self) -> None:
        #: None: not known.
        self._count: int | None = None
        self._limit: int | None = None
        self._live: Callable[[], int] | None = None

    @property
    def count(self) -> int | None:
        """How many changes the table has at least; None if there is no journal, or if it is not known."""
        return self._live() if self._live is not None else self._count

    def take(self, count: int | None) -> None:
        """The table was loaded or copied, and came with this number."""
        if count is not None:
            self._count = count if self._limit is None else min(count, self._limit)

    def limit(self, count: int | None) -> None:
        """What belongs to the table was copied before it, and has ``count`` changes: no copy counts for more."""
        self._limit = count

    def begin(self, dispatched: int | None) -> None:
        """The broker starts. ``dispatched`` changes can be read; None: there is no journal.

        A number beyond that belongs to a log that has lost its end: other changes will stand there. A table without a
        number is of a broker that did not write changes to its log: it is taken as it is. Save the table then, before
        the log can grow.
        """
        if dispatched is None or self._count is None:
            self._count = dispatched
        else:
            self._count = min(self._count, dispatched)

    def lead(self, dispatched: Callable[[], int]) -> None:
        """From now on this is the table: it has each change before it can be read."""
        self._live = dispatched

    def follow(self) -> None:
        """The term is over. What can be read now is in the table; what others write from now on is not."""
        self._count, self._live = self.count, None

    def fold(self, queue_offset: int) -> bool:
        """Whether the table lacks the change at ``queue_offset``, which the caller makes then. Call it in order."""
        assert self._count is not None, "there is a journal"
        if queue_offset < self._count:
            return False
        self._count = queue_offset + 1
        return True
