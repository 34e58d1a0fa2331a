"""The first message since a time: a binary search over the store times of a queue's messages (L2, F6).

In a queue store times never fall, so the message of a millisecond is found in some twenty steps. Each looks at a queue
entry and at the head of its record. ``EntryTimes`` does so without touching a mapping, for searches on other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ternmq.store.derived.queue_search import Read, first_passing
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES, FILLER_SIZE
from ternmq.wire.record import HEAD_BYTES, head_store_time


def search_time(read: Read, low: int, high: int, time_ms: int, store_time: Callable[[int], int], *, upper: bool) -> int:
    """The first of the queue offsets up to ``high`` stored at ``time_ms`` or later; ``upper``: the last until then.

    ``store_time`` tells when the record at a log offset was stored; -1 if it is gone, which is before all others.
    """
    limit_ms = time_ms + 1 if upper else time_ms

    def is_since(log_offset: int, size: int) -> bool | None:
        return None if size == FILLER_SIZE else store_time(log_offset) >= limit_ms

    found = first_passing(read, low, high, is_since, near=1)
    return max(found - 1, low) if upper else found


class EntryTimes:
    """When the messages of a queue were stored, read from files only; for one search, on any thread.

    It knows the queue as it was when the search began. A file that is deleted meanwhile raises ``StoreError``.
    """

    __slots__ = ("_disk", "_file_bytes", "_log", "_paths", "_tail", "_tail_offset")

    def __init__(
        self,
        disk: Disk,
        commit_log: Log,
        paths: dict[int, Path],
        tail_offset: int,
        tail: bytes,
        *,
        file_bytes: int,
    ) -> None:
        self._disk = disk
        self._log = commit_log
        self._paths = paths
        self._tail_offset = tail_offset
        self._tail = tail
        self._file_bytes = file_bytes

    def read(self, queue_offset: int, count: int) -> bytes:
        """Entries from ``queue_offset`` on: at most ``count``, fewer at the end of a file."""
        if queue_offset >= self._tail_offset:
            at = (queue_offset - self._tail_offset) * ENTRY_BYTES
            return self._tail[at : at + count * ENTRY_BYTES]
        at = queue_offset * ENTRY_BYTES
        start = at - at % self._file_bytes
        count = min(count, self._tail_offset - queue_offset, (start + self._file_bytes - at) // ENTRY_BYTES)
        return self._disk.read_at(self._paths[start], at - start, count * ENTRY_BYTES)

    def store_time(self, log_offset: int) -> int:
        """When the record at ``log_offset`` was stored; -1 if it is gone."""
        piece = self._log.piece(log_offset, HEAD_BYTES)
        return head_store_time(self._disk.read_at(*piece)) if piece is not None else -1
