"""Cold reads: parts of the log that are probably not in memory are read on threads of their own (C1, F3).

Who touches a mapped page that is not in memory waits for the disk, and holds the interpreter's lock meanwhile: one
consumer that reads last week's messages would stop all others with every page, for 0.1 ms or for 10. So what lies
further back than 40 % of the machine's memory (``accessMessageInMemoryMaxRatio``) is not touched on the store's thread.
It is named by file and position instead, and ``pread`` on a thread, which lets go of the lock, brings it.

Nobody locks the files. One that retention deletes in between is simply not there: the reader gets a ``StoreError``, and
whoever asked looks again, where he now learns that the message is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from ternmq.store.commitlog import Piece, record_size
from ternmq.store.segment import PAGE_BYTES, Disk

#: Threads that wait for the disk. More would only make its queue longer.
THREADS: Final = 4

T = TypeVar("T")


class ColdReader:
    """Reads pieces of files; the store's thread asks, and gets a future."""

    __slots__ = ("_disk", "_pool")

    def __init__(self, disk: Disk, *, threads: bool) -> None:
        self._disk = disk
        # The pool starts its threads when there is something to read.
        self._pool = ThreadPoolExecutor(THREADS, "ternmq-cold") if threads else None

    def read(self, pieces: list[Piece]) -> Future[bytes]:
        """The bytes of all pieces, in order, joined. The future raises ``StoreError``."""
        return self._submit(lambda: b"".join([self._disk.read_at(*piece) for piece in pieces]))

    def record(self, log_offset: int, piece: Piece) -> Future[bytes | None]:
        """The record that begins the piece and should be that of ``log_offset``; None if none does."""
        return self._submit(lambda: self._record(log_offset, piece))

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
