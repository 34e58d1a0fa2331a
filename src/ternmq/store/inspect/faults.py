"""What is found wrong, in words for people and fields for programs.

Every fault says three things: what it is and where, what it costs, and what to do. A *note* is something to know that
needs nothing: what a start mends by itself, or what is in a broker's memory while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The cure for everything that is derived from the log.
REBUILD: Final = "run `tern store rebuild`"


@dataclass(slots=True, frozen=True, kw_only=True)
class Fault:
    """One finding. Like ones of one file are one: ``count`` tells how many, ``at`` where the first is."""

    #: A word that stays the same: «torn-tail».
    kind: str
    path: str
    #: Log offset, queue offset or entry number, after the kind of file.
    at: int
    count: int = 1
    what: str
    cost: str
    cure: str
    is_note: bool = False


class Tally:
    """How many like things there are, and where the first is."""

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first = -1

    def add(self, where: int, count: int = 1) -> None:
        """One more there, or ``count`` from there on."""
        if not self.count and count:
            self.first = where
        self.count += count


def plural(count: int, thing: str, things: str = "") -> str:
    """``1 record``, ``1,200 records``."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"
