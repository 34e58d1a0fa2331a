"""One file of the index, built from all its entries (U4, C4).

``store.derived.index.IndexFile`` adds entries one by one. Here tens of thousands are added at once: the entries of a
batch are sorted by slot, so the previous entry of each is its neighbour, and a slot gets its last. The bytes are the
same, which tests compare. Mapped pages are reserved first, so that a full disk is an error and does not kill the
process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ternmq.spark.files.index import INDEX_ENTRIES
from ternmq.store.disk.file_disk import FileDisk
from ternmq.wire.layouts.index_file import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SECONDS_MAX,
    index_entries_at,
    index_file_bytes,
)

_SLOT: Final = np.dtype(">i4")


class IndexWriter:
    """Writes a file. ``count`` entries will be added; ``before_ms`` is the store time of the last entry of the previous
    file, 0 for the first file. Raises ``StoreError``."""

    def __init__(self, path: Path, *, slots: int, entries: int, count: int, before_ms: int) -> None:
        assert 0 < count < entries, "number 0 of a file is unused"
        size = index_file_bytes(slots, entries)
        entries_at = index_entries_at(slots)
        self._segment = FileDisk().open_segment(path, size=size, create=True)
        self._segment.reserve(0, entries_at + (count + 1) * INDEX_ENTRY_BYTES)
        page = self._segment.page
        self._slots = np.frombuffer(page, _SLOT, slots, INDEX_HEADER_BYTES)
        self._entries = np.frombuffer(page, INDEX_ENTRIES, count + 1, entries_at)
        self._next = 1
        self._used_slots = 0
        self._begin_ms = before_ms
        self._begin_offset = self._end_ms = self._end_offset = 0

    def add(self, keyed: npt.NDArray[Any]) -> None:
        """Add the next entries, as ``derive.KEYED``."""
        if not len(keyed):
            return
        if self._next == 1:
            self._put(keyed[:1])
            # Only the first entry of a file counts its seconds from the end of the previous file.
            self._begin_ms, self._begin_offset = int(keyed["store_time_ms"][0]), int(keyed["log_offset"][0])
            keyed = keyed[1:]
        if len(keyed):
            self._put(keyed)

    def _put(self, keyed: npt.NDArray[Any]) -> None:
        times_ms = keyed["store_time_ms"].astype(np.int64)
        numbers = np.arange(self._next, self._next + len(keyed), dtype=np.int32)
        slots = keyed["hash"].astype(np.int64) % len(self._slots)
        order = np.argsort(slots, kind="stable")
        slots, sorted_numbers = slots[order], numbers[order]
        is_first = np.concatenate(([True], slots[1:] != slots[:-1]))
        previous = np.concatenate(([0], sorted_numbers[:-1])).astype(np.int32)
        previous[is_first] = self._slots[slots[is_first]]
        self._used_slots += int(np.count_nonzero(previous == 0))
        is_last = np.concatenate((is_first[1:], [True]))
        self._slots[slots[is_last]] = sorted_numbers[is_last]
        made = self._entries[self._next : self._next + len(keyed)]
        made["hash"] = keyed["hash"]
        made["log_offset"] = keyed["log_offset"]
        seconds = (times_ms - self._begin_ms) // 1000 if self._begin_ms > 0 else np.zeros(len(keyed), np.int64)
        made["seconds"] = np.clip(seconds, 0, INDEX_SECONDS_MAX)
        made["previous"][order] = previous
        self._next += len(keyed)
        self._end_ms, self._end_offset = int(times_ms[-1]), int(keyed["log_offset"][-1])

    def close(self) -> None:
        """Write the header and sync the file."""
        assert self._next == len(self._entries), "as many as announced"
        INDEX_HEADER.pack_into(
            self._segment.page,
            0,
            self._begin_ms,
            self._end_ms,
            self._begin_offset,
            self._end_offset,
            self._used_slots,
            self._next,
        )
        self._segment.sync()
