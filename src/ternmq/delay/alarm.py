"""Tells the runner of a term that a message came which is due before the runner looks again (I3).

The schedule log is folded whether there is a runner or not, and recovery folds it on another thread; the runner of a
term comes and goes. So both know this object instead of each other.
"""

from __future__ import annotations

from collections.abc import Callable


class Alarm:
    """``ring`` may be called by any thread that folds; all else belongs to the loop."""

    __slots__ = ("_until_ms", "_wake")

    def __init__(self) -> None:
        self._wake: Callable[[], object] | None = None
        self._until_ms = 0

    def set(self, until_ms: int, wake: Callable[[], object]) -> None:
        """Call ``wake``, once, if a message comes that is due before ``until_ms``."""
        self._until_ms = until_ms
        self._wake = wake

    def clear(self) -> None:
        self._wake = None

    def ring(self, due_ms: int) -> None:
        """A message was folded."""
        if due_ms < self._until_ms and self._wake is not None:
            wake, self._wake = self._wake, None
            wake()
