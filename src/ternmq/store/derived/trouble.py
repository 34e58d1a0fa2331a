"""What happens when derived files cannot be written, because the disk is full (C5, C9).

A record is in the log already when queues, index and derived parts take it in. They cannot refuse it, so they keep it
in memory. To keep that memory bounded, the log takes no more records until all has been written out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from ternmq.errors import StoreError
from ternmq.store.log.window import Window

log = logging.getLogger(__name__)

#: Told that a derived part could not write.
OnTrouble: TypeAlias = Callable[[StoreError], object]


class Trouble:
    """Whether derived files lag behind the log."""

    __slots__ = ("_window", "is_there")

    def __init__(self, window: Window) -> None:
        self._window = window
        self.is_there = False

    def note(self, error: StoreError) -> None:
        """A derived part could not write: the next append has to ask for room, and hears of it."""
        if not self.is_there:
            log.error("no more messages are taken until the disk has space", extra={"error": str(error)})
        self.is_there = True
        self._window.shut()


def raise_it(error: StoreError) -> NoReturn:
    """For tools that only write: no later put could be refused, so a full disk ends the work at once."""
    raise error
