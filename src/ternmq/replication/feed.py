"""The log as one slave gets it: batches of one segment each, from memory or from the disk (O1).

A slave that keeps up is given views of the segment that is being written: no byte is copied. One that was away reads
what may not be in memory any more, and a page fault on the loop would stop everyone. So a thread reads a MiB for it at
a time, which is all that is kept. Segments that are complete are always read by the thread: behind the blank at their
end may be holes, and to look at a hole through a mapping takes a block of a tmpfs.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ternmq.errors import StoreError
from ternmq.store.disk.base import Disk
from ternmq.store.log.protocol import Log

#: What was written last is in memory.
NEAR_BYTES: Final = 32 << 20
CHUNK_BYTES: Final = 1 << 20


class LogGone(StoreError):
    """The log does not have these bytes any more."""

    def __init__(self, log_offset: int, begin: int) -> None:
        self.log_offset = log_offset
        self.begin = begin
        super().__init__(f"the log begins at {begin} and has no bytes at {log_offset} any more")


class Feed:
    """Reads a log from some offset on, batch by batch."""

    __slots__ = ("_batch_bytes", "_chunk", "_chunk_begin", "_disk", "_log")

    def __init__(self, log: Log, disk: Disk, *, batch_bytes: int) -> None:
        self._log = log
        self._disk = disk
        self._batch_bytes = batch_bytes
        self._chunk = memoryview(b"")
        self._chunk_begin = 0

    def at_hand(self, log_offset: int) -> memoryview | None:
        """The next batch, empty at the log's end; None if it must be read first.

        A view of the log is good for as long as what it shows stays in the log.
        """
        kept = log_offset - self._chunk_begin
        if 0 <= kept < len(self._chunk):
            return self._chunk[kept : kept + self._batch_bytes]
        end, segment_bytes = self._log.end, self._log.segment_bytes
        if log_offset >= end:
            return memoryview(b"")
        if end - log_offset > NEAR_BYTES or log_offset // segment_bytes != (end - 1) // segment_bytes:
            return None
        self._chunk = memoryview(b"")
        return self._log.view(log_offset, min(end - log_offset, self._batch_bytes))

    async def read(self, log_offset: int) -> None:
        """Let a thread bring what follows ``log_offset``, for ``at_hand``. Raises ``StoreError``, if it is not there
        any more ``LogGone``."""
        piece = self._log.piece(log_offset)
        if piece is None:
            raise LogGone(log_offset, self._log.begin)
        length_bytes = min(piece.length_bytes, CHUNK_BYTES)
        try:
            data = await asyncio.to_thread(self._disk.read_at, piece.path, piece.at, length_bytes)
        except StoreError:
            if log_offset < self._log.begin:
                raise LogGone(log_offset, self._log.begin) from None
            raise
        if len(data) < length_bytes:
            raise StoreError(f"{piece.path} has fewer bytes than the log; check the disk")
        self._chunk, self._chunk_begin = memoryview(data), log_offset
