"""The log of all topics: segments of one size, records back to back (C1).

::

    00000000000000000000            00000000001073741824            00000000002147483648
    | record | record | … | blank | | record | record | … | blank | | record | …
    ^ min_offset                                                             ^ written

A record never spans two segments. When it does not fit with 8 bytes to spare, a *blank* (the space left, and a magic
of its own) ends the segment and the record goes to the next; so does a whole batch. Bytes behind the 8 of a blank
mean nothing.

Writing takes two steps: ``place`` finds room, the store packs the record straight into ``page``, and ``written``
moves. In between nothing may await. ``room`` is where the quick path ends: up to there the current segment is ready
(``store.prepare``) and ``place`` need not be called.

There may be thousands of segments, so few of them are mapped: the newest, for those who write and those who keep up,
and of the older ones those that were last asked for. A view keeps its mapping alive, whatever is forgotten here.

Invariants: ``min_offset <= written``; every record in between starts with its own log offset; ``page`` is the
segment that holds ``written``, and behind ``written`` stand zeros or a cut record's rest; what is not yet synced is
mapped.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from ternmq.errors import CorruptRecord, NotRunning, StoreError
from ternmq.store.disk import Disk, Segment
from ternmq.store.paths import LogPaths
from ternmq.store.prepare import AHEAD_BYTES, Preparer
from ternmq.store.segment import segment_files, segment_name
from ternmq.types import Buffer
from ternmq.wire.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    Record,
    Sysflag,
    pack_blank,
    peek_head,
    unpack_record,
)

log = logging.getLogger(__name__)

#: What a segment keeps free behind its last record: room for a blank (RocketMQ's END_FILE_MIN_BLANK_LENGTH).
BLANK_BYTES: Final = 8

#: Segments that stay mapped at the log's end, and older ones that are mapped for a while. Each has two descriptors,
#: ours and the mapping's own.
MAPPED_MAX: Final = 32
OLDER_MAX: Final = 16

_LOG_OFFSET_AT: Final = 28
_SYSFLAG_AT: Final = 36
_STORE_TIME_AT: Final = 56
_STORE_TIME_V6_AT: Final = 68
#: As much of a record as tells when it was stored, whatever its hosts.
HEAD_BYTES: Final = _STORE_TIME_V6_AT + 8
_INT: Final = struct.Struct(">i")
_MAGIC: Final = _INT.pack(MAGIC_V1)
_LONG: Final = struct.Struct(">q")


class Piece(NamedTuple):
    """A part of a segment by its place on disk, for those who must not touch the mapping."""

    path: Path
    at: int
    length_bytes: int


class CommitLog:
    """The log's segments, where it begins and where it ends."""

    __slots__ = (
        "_disk",
        "_mapped_from",
        "_older",
        "_paths",
        "_preparer",
        "_refusal",
        "_segments",
        "before_place",
        "directories",
        "let_go",
        "min_offset",
        "page",
        "room",
        "segment_bytes",
        "start",
        "store_time_ms",
        "synced",
        "written",
    )

    def __init__(self, disk: Disk, directories: LogPaths, *, segment_bytes: int) -> None:
        self._disk = disk
        self.directories = directories
        self._preparer = Preparer(disk, directories, size=segment_bytes)
        #: Start → file of every segment, in order.
        self._paths: dict[int, Path] = {}
        #: The newest segments without a gap, where they begin, and some older ones, the last used last.
        self._segments: list[Segment] = []
        self._mapped_from = 0
        self._older: dict[int, Segment] = {}
        self._refusal: StoreError | NotRunning | None = NotRunning("the store is not open; call open() first")
        #: Called when space is needed, now and then; it may raise, and the log then takes nothing.
        self.before_place: Callable[[], None] | None = None
        #: Given segments that are not needed any more: to unmap a GiB takes 30 ms, which another thread can spend.
        self.let_go: Callable[[Segment], object] = _forget
        self.segment_bytes = segment_bytes
        self.min_offset = 0
        self.written = 0
        #: Log offset up to which the flush thread needs no segment any more.
        self.synced = 0
        #: Store time of the last record.
        self.store_time_ms = 0
        #: The segment under the pen: its page, the log offset where it starts, and the log offset up to which
        #: records (with 8 bytes to spare) can be packed without asking.
        self.page = memoryview(b"")
        self.start = 0
        self.room = -1

    # --- Life -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the segments that exist, and change nothing. Raises ``CorruptFile``."""
        size = self.segment_bytes
        self._paths = segment_files(self._disk, self.directories.all, size=size, key="mappedFileSizeCommitLog")
        self._map_newest()
        if self._paths:
            self.min_offset = next(iter(self._paths))
            self.written = next(reversed(self._paths)) + size

    def _map_newest(self) -> None:
        newest = list(self._paths.items())[-MAPPED_MAX:]
        self._segments = [
            self._disk.open_segment(
                path,
                size=self.segment_bytes,
                writable=number == len(newest) or not self.directories.is_read_only(path),
            )
            for number, (_, path) in enumerate(newest, 1)
        ]
        self._mapped_from = newest[0][0] if newest else 0

    def begin(self, end: int, store_time_ms: int) -> None:
        """Cut the log at ``end``, where recovery found it to end, and be ready to append."""
        size = self.segment_bytes
        while self._paths and (last := next(reversed(self._paths))) >= end and last > self.min_offset:
            self._remove_last(last)
        if not self._segments:
            self._map_newest()
        elif self._segments[-1].page.readonly:
            # It was not the last when it was mapped.
            self._segments[-1] = self._disk.open_segment(self._segments[-1].path, size=size)
        # A file that was being made when the process died; ``segment_files`` leaves out only one of length 0.
        half_made = segment_name(self._segments[-1].start + size if self._segments else 0)
        for directory in self.directories.writable:
            self._disk.remove(directory / half_made)
        self._refusal = None
        self.written = self.synced = end
        self.store_time_ms = store_time_ms
        self.start = end - end % size
        for directory in self.directories.all:
            # Also the name of a segment whose maker died before he had synced it.
            self._disk.sync_names(directory)
        if self._segments and self._segments[-1].start == self.start:
            segment = self._segments[-1]
            self.page = segment.page
            segment.ready = end - self.start
            # What lies behind the end may be whole records. One of them could begin where a later record ends, and a
            # walk would go on into it. So zeros must be on the disk before the first of those records.
            self._set_aside_tail(segment)
            segment.wipe(segment.ready)
        else:
            # An empty log, or one whose last segment is full: the next is made when a record comes.
            self.page = memoryview(b"")
        self.room = -1

    def start_preparing(self) -> None:
        """From now on a thread readies log space (``store.prepare``)."""
        self._preparer.start(last=self.start if self.page else self.start - self.segment_bytes)
        if self.page:
            self._preparer.ahead(self._segments[-1], self.written - self.start)

    def _remove_last(self, start: int) -> None:
        """Take away a segment behind the log's end: made in advance and never used, or not to be reached any more."""
        segment = self._segment(start)
        assert segment is not None
        del self._paths[start]
        if self._older.pop(start, None) is None:
            self._segments.pop()
        if peek_head(segment.page) == (0, 0):
            self._disk.remove(segment.path)
            # One by one: a power cut must not bring a later one back without those before it.
            self._disk.sync_names(segment.path.parent)
            return
        # A record before it is damaged, but those in here may be whole: an operator may want to look at them.
        aside = _aside(segment.path)
        log.error("segment behind a damaged record set aside", extra={"path": str(segment.path), "now": str(aside)})
        self._disk.move(segment.path, aside)

    def _set_aside_tail(self, segment: Segment) -> None:
        """Copy the records behind a damaged one, each to its place, to a file of their own, if there are any."""
        remains = segment.remains(segment.ready)
        # The damaged one begins with its size and the magic.
        if not any(_MAGIC in data[8 if at == segment.ready else 0 :] for at, data in remains):
            return
        aside = _aside(segment.path)
        try:
            file = self._disk.open_file(aside, create_size=segment.size)
            for at, data in segment.remains(segment.ready):
                file.write(at, data)
            file.close()
            self._disk.sync_file(aside)
            for directory in aside.parents[:2]:
                self._disk.sync_names(directory)
        except StoreError as error:
            log.error("records behind a damaged one are lost", extra={"path": str(segment.path), "error": str(error)})
        else:
            log.error("records behind a damaged one set aside", extra={"path": str(segment.path), "now": str(aside)})

    def refuse(self, reason: StoreError | NotRunning) -> None:
        """Accept nothing any more: closed, or a flush that failed. Costs the quick path nothing."""
        self._refusal = reason
        self.room = -1

    def close(self) -> None:
        self.refuse(NotRunning("the store is closed; open it again to append"))
        self._preparer.close()
        self._paths, self._segments, self._older = {}, [], {}
        self.page = memoryview(b"")

    # --- Writing ----------------------------------------------------------------------------------------------

    def place(self, size: int) -> int:
        """Find room for ``size`` bytes in one segment; returns the log offset, which is ``written`` then.

        Raises ``DiskFull``, or what ``refuse`` was given. The caller has checked that a segment can hold ``size``.
        """
        if self._refusal is not None:
            # One error for many refusals must not gather the frames of all.
            raise self._refusal.with_traceback(None)
        if self.before_place is not None:
            self.before_place()
        segment_bytes = self.segment_bytes
        at = self.written - self.start
        if not self.page or at + size + BLANK_BYTES > segment_bytes:
            self._roll(at)
            at = 0
        segment = self._segments[-1]
        end = at + size + BLANK_BYTES
        self._preparer.ensure(segment, end)
        self._preparer.ahead(segment, end)
        if segment_bytes - at <= max(segment_bytes // 2, AHEAD_BYTES):
            self._preparer.soon(segment.start + segment_bytes)
        # Come back when half of the ready space is used, so that the thread has the other half's time for more.
        ready = segment.ready
        self.room = self.start + (ready if ready == segment_bytes else max(end, (end + ready) // 2))
        return self.written

    def _roll(self, at: int) -> None:
        """Close the current segment with a blank and go to the next."""
        start = self.start
        if self.page:
            pack_blank(self.page, at, self.segment_bytes - at)
            start += self.segment_bytes
        segment = self._preparer.take(start)
        self._paths[start] = segment.path
        self._segments.append(segment)
        self.page = segment.page
        self.start = self.written = start
        if len(self._paths) == 1:
            self.min_offset = self._mapped_from = start
        while len(self._segments) > MAPPED_MAX and self._mapped_from + self.segment_bytes <= self.synced:
            self._unmap_first()

    def drop_first(self) -> Path:
        """Forget the oldest segment, which is not the last; its file is the caller's to remove.

        Views of it stay valid until nobody holds them.
        """
        assert len(self._paths) > 1, "the segment under the pen stays"
        start = self.min_offset
        path = self._paths.pop(start)
        self.min_offset += self.segment_bytes
        if start == self._mapped_from:
            self._unmap_first()
        elif (older := self._older.pop(start, None)) is not None:
            self.let_go(older)
        return path

    def _unmap_first(self) -> None:
        self._mapped_from += self.segment_bytes
        self.let_go(self._segments.pop(0))

    # --- Reading ----------------------------------------------------------------------------------------------

    def view(self, log_offset: int, length_bytes: int) -> memoryview | None:
        """These bytes of the log; None if they are not all there, in one segment."""
        if log_offset < self.min_offset or log_offset + length_bytes > self.written:
            return None
        segment = self._segment(log_offset)
        if segment is None:
            return None
        at = log_offset - segment.start
        if at + length_bytes > self.segment_bytes:
            return None
        return segment.page[at : at + length_bytes]

    def views(self, runs: list[tuple[int, int]]) -> list[memoryview] | None:
        """The bytes from each start up to its end; None if some are not there. For reads of many records at once."""
        segments, low, size, written = self._segments, self._mapped_from, self.segment_bytes, self.written
        found = []
        for start, end in runs:
            if end > written:
                return None
            if start < low:
                older = self.view(start, end - start)
                if older is None:
                    return None
                found.append(older)
                continue
            segment = segments[(start - low) // size]
            at = start - segment.start
            if at + end - start > size:
                return None
            found.append(segment.page[at : at + end - start])
        return found

    def record(self, log_offset: int) -> memoryview | None:
        """The whole record at ``log_offset``; None if none starts there."""
        head = self.view(log_offset, _STORE_TIME_AT)
        if head is None:
            return None
        size = record_size(head, log_offset)
        return self.view(log_offset, size) if size else None

    def page_at(self, log_offset: int) -> tuple[Buffer, int, int]:
        """The page of the segment that ``log_offset`` lies in, for who looks at many records there one after the other.

        With it, the log offsets at which it begins and up to which it is written; an empty one if there is none. It is
        good until others get their turn.
        """
        segment = self._segment(log_offset) if self.min_offset <= log_offset < self.written else None
        if segment is None:
            return b"", log_offset, log_offset
        return segment.page, segment.start, min(segment.start + self.segment_bytes, self.written)

    def piece(self, log_offset: int, length_bytes: int | None = None) -> Piece | None:
        """Where these bytes lie, without ``length_bytes`` up to the segment's end; None if they are not all there.

        Any thread may ask.
        """
        start = log_offset - log_offset % self.segment_bytes
        path = self._paths.get(start)
        room = min(start + self.segment_bytes, self.written) - log_offset
        if path is None or room <= 0 or (length_bytes or 0) > room:
            return None
        return Piece(path, log_offset - start, length_bytes or room)

    def store_time(self, log_offset: int) -> int:
        """When the record at ``log_offset`` was stored; -1 if there is none."""
        head = self.view(log_offset, HEAD_BYTES)
        return head_store_time(head) if head is not None else -1

    # --- For flush, recovery and readers ------------------------------------------------------------------------

    def oldest(self, count: int) -> list[Path]:
        """The files of the oldest segments, at most ``count``, never the last one's."""
        return list(islice(self._paths.values(), min(count, max(len(self._paths) - 1, 0))))

    @property
    def starts(self) -> list[int]:
        """Where each segment starts."""
        return list(self._paths)

    def dirty(self, begin: int, end: int) -> list[Segment]:
        """The segments that hold bytes from ``begin`` up to ``end``. Any thread may ask."""
        size = self.segment_bytes
        return [segment for segment in self._segments.copy() if segment.start < end and segment.start + size > begin]

    def sync(self, begin: int, end: int) -> None:
        """Return when the bytes from ``begin`` up to ``end`` are on the disk, whoever wrote them."""
        for start, path in self._paths.items():
            if start < end and start + self.segment_bytes > begin:
                self._disk.sync_file(path)

    def walk(self, log_offset: int, *, check_crc: bool = True) -> LogWalk:
        """The records from ``log_offset`` on, where one must start."""
        return LogWalk(self._segment, log_offset, segment_bytes=self.segment_bytes, check_crc=check_crc)

    def read(self, log_offset: int, length_bytes: int) -> bytes:
        """A copy of these bytes, fewer at the end of their segment; none if there is no such segment.

        Not through a mapping: on tmpfs even a look at a hole takes a block, and on a full one that ends the process.
        """
        start = log_offset - log_offset % self.segment_bytes
        path = self._paths.get(start)
        if path is None:
            return b""
        length_bytes = min(length_bytes, start + self.segment_bytes - log_offset)
        return self._disk.read_at(path, log_offset - start, length_bytes)

    def _segment(self, log_offset: int) -> Segment | None:
        """The segment that holds this byte, mapped for the occasion if it is not; None if there is none."""
        size = self.segment_bytes
        if log_offset >= self._mapped_from:
            number = (log_offset - self._mapped_from) // size
            return self._segments[number] if number < len(self._segments) else None
        start = log_offset - log_offset % size
        segment = self._older.pop(start, None)
        if segment is None:
            path = self._paths.get(start)
            if path is None:
                return None
            if len(self._older) >= OLDER_MAX:
                self.let_go(self._older.pop(next(iter(self._older))))
            segment = self._disk.open_segment(path, size=size, writable=False)
        # A dict keeps its order of insertion: taken out and put in again, the segment is the newest.
        self._older[start] = segment
        return segment


def record_size(data: Buffer, log_offset: int) -> int:
    """Size of the record that ``data`` begins with, if it says that it stands at ``log_offset``; else 0."""
    if len(data) < _STORE_TIME_AT:
        return 0
    size, magic = peek_head(data)
    if magic == MAGIC_BLANK or size < _STORE_TIME_AT or _LONG.unpack_from(data, _LOG_OFFSET_AT)[0] != log_offset:
        return 0
    return size


def head_store_time(head: Buffer) -> int:
    """When a record was stored, from its first ``HEAD_BYTES``."""
    (sysflag,) = _INT.unpack_from(head, _SYSFLAG_AT)
    at = _STORE_TIME_V6_AT if sysflag & Sysflag.BORN_V6 else _STORE_TIME_AT
    store_time_ms: int = _LONG.unpack_from(head, at)[0]
    return store_time_ms


def _aside(path: Path) -> Path:
    """Where a segment, or the rest of one, goes that is no part of the log any more."""
    return path.parent.parent / "cut" / path.name


def _forget(_segment: Segment) -> None:
    """Let the last reference end here."""


class LogWalk:
    """Iterates over records in log order and stops at the first that is none; ``position`` is then the log's end."""

    __slots__ = ("_check_crc", "_segment_at", "_segment_bytes", "position", "trouble")

    def __init__(
        self,
        segment_at: Callable[[int], Segment | None],
        log_offset: int,
        *,
        segment_bytes: int,
        check_crc: bool = True,
    ) -> None:
        """``segment_at`` gives the segment that holds a log offset, if there is one."""
        self._segment_at = segment_at
        self._segment_bytes = segment_bytes
        self._check_crc = check_crc
        self.position = log_offset
        #: Why the walk ended; empty where the log simply goes no further.
        self.trouble = ""

    def __iter__(self) -> Iterator[Record]:
        size = self._segment_bytes
        while (segment := self._segment_at(self.position)) is not None:
            at = self.position - segment.start
            page = segment.page
            while True:
                if at + BLANK_BYTES > size:
                    self.trouble = "no blank at the end of the segment"
                    return
                total, magic = peek_head(page, at)
                if magic == MAGIC_BLANK:
                    self.position = segment.start + size
                    break
                if magic == 0 and total == 0:
                    return
                try:
                    record = unpack_record(page, at, check_crc=self._check_crc, end=size)
                except CorruptRecord as error:
                    self.trouble = str(error)
                    return
                if record.log_offset != self.position:
                    self.trouble = f"a record of log offset {record.log_offset} stands at {self.position}"
                    return
                at += total
                self.position = segment.start + at
                yield record
