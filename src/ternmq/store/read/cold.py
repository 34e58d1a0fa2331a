"""Cold reads: parts of the log that are probably not in memory are read on threads of their own (C1, F3, L1, L2).

A thread that touches a mapped page which is not in memory waits for the disk, and holds the interpreter's lock. So one
consumer that reads last week's messages would stop all others with every page, for 0.1 ms or for 10. So what lies
further back than 40 % of the machine's memory (``accessMessageInMemoryMaxRatio``) is not touched on the store's thread.
It is named by file and position instead, and ``pread`` on a thread, which lets go of the lock, brings it.

The files are not locked. One that retention deletes in between is simply not there: the future raises ``StoreError``.
Then the caller looks again in the ordinary way, and learns there that the message is gone, or what else is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from ternmq.store.disk.base import PAGE_BYTES, Disk
from ternmq.store.log.protocol import Piece
from ternmq.store.read.query import Query
from ternmq.wire.record import record_size

#: Threads that wait for the disk. More would only make its queue longer.
THREADS: Final = 4

T = TypeVar("T")


class ColdReads:
    """Reads for callers that must not wait. Methods belong to the store's thread; futures may raise ``StoreError``.

    Where None is returned in place of a future, the records are in memory and can be had in the ordinary way.
    """

    __slots__ = ("_disk", "_pool", "_query")

    def __init__(self, disk: Disk, query: Query, *, threads: bool) -> None:
        self._disk = disk
        self._query = query
        # The pool starts its threads when there is something to read.
        self._pool = ThreadPoolExecutor(THREADS, "ternmq-cold") if threads else None

    def read(self, pieces: list[Piece]) -> Future[bytes]:
        """The bytes of all pieces, in order, joined: what ``get`` has left out."""
        return self._submit(lambda: b"".join([self._disk.read_at(*piece) for piece in pieces]))

    def is_cold(self, log_offset: int) -> bool:
        """Whether the record at ``log_offset`` is probably not in memory."""
        return self._query.cold_piece(log_offset) is not None

    def record(self, log_offset: int) -> Future[bytes | None] | None:
        """The record at ``log_offset``; the future's None means that none begins there."""
        piece = self._query.cold_piece(log_offset)
        return self._submit(lambda: self._record(log_offset, piece)) if piece is not None else None

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> Future[int] | None:
        """See ``MessageStore.offset_by_time``."""
        search = self._query.time_search(topic, queue_id, time_ms, upper=upper)
        return self._submit(search) if search is not None else None

    def place(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """The log offset of a message that is probably not in memory; None if it is, or not there at all."""
        return self._query.cold_place(topic, queue_id, queue_offset)

    def store_times(self, log_offsets: list[int]) -> Future[dict[int, int]]:
        """When the records at these log offsets were stored; -1 for one that is gone."""
        return self._submit(lambda: {log_offset: self._query.read_time(log_offset) for log_offset in log_offsets})

    def close(self) -> None:
        """Finish what is under way, and drop the rest."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _record(self, log_offset: int, piece: Piece) -> bytes | None:
        path, at, length_bytes = piece
        data = self._disk.read_at(path, at, min(PAGE_BYTES, length_bytes))
        size = record_size(data, log_offset)
        if not 0 < size <= length_bytes:
            return None
        return data[:size] if size <= len(data) else self._disk.read_at(path, at, size)

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        if self._pool is not None:
            return self._pool.submit(work)
        done: Future[T] = Future()
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)
        return done
