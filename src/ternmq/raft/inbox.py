"""Messages of other members that wait for their turn, bounded in bytes (P3).

While a term or a vote is being written, messages wait here. Beyond ``INBOX_BYTES_MAX`` nothing is read from the other
members until half of it is handled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ternmq.raft.messages import RaftMessage

INBOX_BYTES_MAX: Final = 32 << 20
#: What a message takes in memory besides its body; most bodies are smaller than that.
_MESSAGE_BYTES: Final = 512


class Inbox:
    def __init__(self, hold: Callable[[], None], go_on: Callable[[], None]) -> None:
        """``hold`` stops the reading of connections, ``go_on`` resumes it."""
        self._hold = hold
        self._go_on = go_on
        self._messages: deque[tuple[RaftMessage, int]] = deque()
        self._bytes = 0
        self._is_held = False

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: RaftMessage, body_bytes: int) -> None:
        size = body_bytes + _MESSAGE_BYTES
        self._messages.append((message, size))
        self._bytes += size
        if self._bytes > INBOX_BYTES_MAX and not self._is_held:
            self._is_held = True
            self._hold()

    def take(self) -> tuple[RaftMessage, int]:
        """The oldest message, and its size in bytes."""
        message, size = self._messages.popleft()
        self._bytes -= size
        return message, size

    def ease(self) -> None:
        """After messages were taken: read on if there is room again."""
        if self._is_held and self._bytes < INBOX_BYTES_MAX // 2:
            self._is_held = False
            self._go_on()

    def clear(self) -> None:
        self._messages.clear()
        self._bytes = 0
