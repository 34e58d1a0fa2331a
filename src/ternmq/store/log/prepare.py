"""Readies log space before it is written to: zeroed pages ahead of the log's end, and the next segment (C1).

An append to a page that is not in memory would fault, inside the loop that serves everyone (5–9 µs a page here), and
one that finds the disk full would end the process. So a thread writes zeros up to 4 MiB ahead of the log's end and
makes the next segment when the current one is half full; never the whole GiB at once, which would cost a second at
start and push other pages out of memory. Zeros also wipe what a cut left behind the log's end, where stale records
could look like new ones; and under SYNC_FLUSH they spare the file system the allocation inside each ``fdatasync``.

The thread may fall behind. Then the store's thread does the same itself (``ensure``, ``take``); one lock makes sure
that no thread zeroes what was written meanwhile: ``segment.ready`` moves only under it, and the log writes only below.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import Final

from ternmq.errors import StoreError
from ternmq.store.disk.base import Disk, Segment
from ternmq.store.log.paths import LogPaths

log = logging.getLogger(__name__)

AHEAD_BYTES: Final = 4 << 20
#: At a time: about 100 µs, for which an append that is out of room may have to wait.
STEP_BYTES: Final = 256 * 1024


class Preparer:
    """Makes and zeroes the segments of one log. Without ``start`` all is done when it is asked for."""

    __slots__ = ("_directories", "_disk", "_last", "_lock", "_next", "_orders", "_size", "_thread")

    def __init__(self, disk: Disk, directories: LogPaths, *, size: int) -> None:
        self._disk = disk
        self._directories = directories
        self._size = size
        self._lock = threading.Lock()
        #: Start of the newest segment that the log has: an order for another one than the next comes too late.
        self._last = -size
        self._next: Segment | None = None
        #: A segment to ready ahead of a position, the start of a segment to make, or None to end.
        self._orders: SimpleQueue[tuple[Segment, int] | int | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, *, last: int) -> None:
        """Begin to work ahead of the log, whose newest segment starts at ``last``."""
        self._last = last
        self._thread = threading.Thread(target=self._run, name="ternmq-prepare", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the segment that was not used, as RocketMQ does at a clean stop."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None
        if self._next is not None:
            self._disk.remove(self._next.path)
            self._next = None

    def ahead(self, segment: Segment, position: int) -> None:
        """Ask for ``AHEAD_BYTES`` of ready space behind ``position``, if less than half of it is left; returns at once.

        To wake the thread takes longer than to append: a follower that did it each time spent a quarter of its time on
        it.
        """
        if self._thread is not None and segment.ready <= min(position + AHEAD_BYTES // 2, segment.size - 1):
            self._orders.put((segment, position))

    def soon(self, start: int) -> None:
        """Ask for the segment that begins at ``start``; returns at once."""
        if self._thread is not None:
            self._orders.put(start)

    def ensure(self, segment: Segment, end: int) -> None:
        """Return when ``segment`` is ready up to ``end``. Raises ``DiskFull``."""
        while segment.ready < end:
            self._step(segment)

    def take(self, start: int) -> Segment:
        """The segment that begins at ``start``, made in advance or now."""
        with self._lock:
            segment, self._next = self._next, None
            if segment is None:
                segment = self._make(start)
            assert segment.start == start, "segments follow each other"
            self._last = start
            return segment

    def retreat(self, last: int) -> None:
        """The log gave its newest segments back; the one that starts at ``last`` is the newest now."""
        with self._lock:
            if self._next is not None:
                self._disk.remove(self._next.path)
                self._next = None
            self._last = last

    def wipe(self, segment: Segment, begin: int) -> None:
        """Turn what stands from ``begin`` on to zeros, durably; it is not ready for records any more."""
        with self._lock:
            segment.ready = begin
            segment.wipe(begin)

    def _step(self, segment: Segment) -> None:
        with self._lock:
            begin = segment.ready
            end = min(segment.size, (begin // STEP_BYTES + 1) * STEP_BYTES)
            segment.zero(begin, end)
            segment.ready = end

    def _make(self, start: int) -> Segment:
        path = self._directories.of_new(start, segment_bytes=self._size)
        return self._disk.open_segment(path, size=self._size, create=True)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                if isinstance(order, int):
                    self._make_next(order)
                else:
                    segment, position = order
                    self._ensure_ahead(segment, position)
            except StoreError as error:
                # The log meets the same obstacle when it gets there, and then the sender is told.
                log.warning("log space could not be prepared", extra={"error": str(error)})

    def _make_next(self, start: int) -> None:
        with self._lock:
            if start != self._last + self._size:
                return
            if self._next is None:
                self._next = self._make(start)
            segment = self._next
        self._ensure_ahead(segment, 0)

    def _ensure_ahead(self, segment: Segment, position: int) -> None:
        end = min(segment.size, position + AHEAD_BYTES)
        while segment.ready < end:
            self._step(segment)
