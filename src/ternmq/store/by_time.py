"""The first message since a time: a binary search over the store times of a queue's messages (L2, F6).

In a queue store times never fall, so the message of a millisecond is found in some twenty steps. Each looks at a queue
entry and at the head of its record. ``EntryTimes`` does so without touching a mapping, for searches on other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ternmq.store.commitlog import HEAD_BYTES, CommitLog, head_store_time
from ternmq.store.config import ENTRY_BYTES
from ternmq.store.queue import ENTRY, FILLER_SIZE
from ternmq.store.segment import Disk


def search_time(low: int, high: int, time_ms: int, time_of: Callable[[int], int], *, upper: bool) -> int:
    """The first of the queue offsets up to ``high`` stored at ``time_ms`` or later; ``upper``: the last until then."""
    first = low
    limit_ms = time_ms + 1 if upper else time_ms
    while low < high:
        middle = (low + high) // 2
        if time_of(middle) >= limit_ms:
            high = middle
        else:
            low = middle + 1
    return max(low - 1, first) if upper else low


class EntryTimes:
    """When the messages of a queue were stored, read from files only; for one search, on any thread.

    It knows the queue as it was when the search began. A file that is deleted meanwhile raises ``StoreError``.
    """

    __slots__ = ("_disk", "_file_bytes", "_log", "_paths", "_tail", "_tail_offset")

    def __init__(
        self,
        disk: Disk,
        commit_log: CommitLog,
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

    def of(self, queue_offset: int) -> int:
        """When a message was stored; -1 if it is not there."""
        if queue_offset >= self._tail_offset:
            at = (queue_offset - self._tail_offset) * ENTRY_BYTES
            entry = self._tail[at : at + ENTRY_BYTES]
        else:
            at = queue_offset * ENTRY_BYTES
            start = at - at % self._file_bytes
            entry = self._disk.read_at(self._paths[start], at - start, ENTRY_BYTES)
        log_offset, size, _ = ENTRY.unpack(entry)
        piece = self._log.piece(log_offset, HEAD_BYTES) if size != FILLER_SIZE else None
        return head_store_time(self._disk.read_at(*piece)) if piece is not None else -1
