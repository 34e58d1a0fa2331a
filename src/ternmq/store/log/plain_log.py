"""The plain log: segments of one size, records back to back, confirmed when they are sealed (C1;
``store.log.protocol``).

::

    00000000000000000000            00000000001073741824            00000000002147483648
    | record | record | … | blank | | record | record | … | blank | | record | …
    ^ begin                                                                  ^ end

A record never spans two segments. When it does not fit with 8 bytes to spare, a *blank* (the space left, and a magic
of its own) ends the segment and the record goes to the next; so does a whole batch. Bytes behind the 8 of a blank
mean nothing.

The window is large: it ends where the current segment is not ready yet (``store.log.prepare``), so most appends pack
their record without a call and make one, ``seal``. Between both nothing may await.

There may be thousands of segments, so few of them are mapped: the newest, for writers and for consumers that keep up,
and of the older ones those that were last asked for. A view keeps its mapping alive, whatever is forgotten here.

A log with bytes in front of each record can be built on this one: its ``form`` tells how many, room for them is
reserved and walks step over them; what stands there is that log's business. Segments in the directories ``old`` are
plain ones and come before all others (``close_segment`` ends the last of them).

Invariants: ``begin <= end``; every record in between starts with its own log offset; the window's page is the segment
that holds ``end``, and behind ``end`` stand zeros or the rest of a record that was cut; what is not yet synced is
mapped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from ternmq.errors import NotRunning, StoreError, TernError
from ternmq.store.disk.base import Disk, Segment
from ternmq.store.disk.segment import segment_files, segment_name
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.prepare import AHEAD_BYTES, Preparer
from ternmq.store.log.protocol import LogPiece, Piece
from ternmq.store.log.walk import LogWalk
from ternmq.store.log.window import Window
from ternmq.types import Buffer
from ternmq.wire.layouts.segment_form import PLAIN_FORM, SegmentForm
from ternmq.wire.record import (
    BLANK_BYTES,
    HEAD_BYTES,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    head_store_time,
    peek_head,
    record_size,
)

log = logging.getLogger(__name__)

#: Segments that stay mapped at the log's end, and older ones that are mapped for a while. Each has two descriptors,
#: ours and the mapping's own.
MAPPED_MAX: Final = 32
OLDER_MAX: Final = 16

_MAGIC: Final = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")


class PlainLog:
    """Implements ``store.log.protocol.Log``, where the methods are described."""

    confirms_at_once: Final = True
    known_confirmed: Final = None

    __slots__ = (
        "_disk",
        "_form",
        "_let_go",
        "_mapped_from",
        "_old_directories",
        "_old_end",
        "_older",
        "_paths",
        "_preparer",
        "_refusal",
        "_segments",
        "_synced",
        "begin",
        "closed",
        "directories",
        "end",
        "lead",
        "segment_bytes",
        "store_time_ms",
        "window",
    )

    def __init__(
        self,
        disk: Disk,
        directories: LogPaths,
        *,
        segment_bytes: int,
        form: SegmentForm = PLAIN_FORM,
        old: Iterable[Path] = (),
    ) -> None:
        self._disk = disk
        self._form = form
        self._old_directories = frozenset(old)
        self.directories = directories
        self._preparer = Preparer(disk, directories, size=segment_bytes)
        #: Start → file of every segment, in order.
        self._paths: dict[int, Path] = {}
        #: The newest segments without a gap, where they begin, and some older ones, the last used last.
        self._segments: list[Segment] = []
        self._mapped_from = 0
        self._older: dict[int, Segment] = {}
        self._refusal: TernError | None = NotRunning("the store is not open; call open() first")
        self._let_go: Callable[[Segment], object] = _forget
        #: Position before which the flush thread needs no segment any more.
        self._synced = 0
        self.segment_bytes = segment_bytes
        self.lead = form.lead
        self.begin = 0
        #: Where the segments of the old directories end, and the same if others follow.
        self._old_end = 0
        self.closed = 0
        self.end = 0
        self.store_time_ms = 0
        #: Its page is the segment being written, its base where that starts.
        self.window = Window()

    # --- Life -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        size = self.segment_bytes
        self._paths = segment_files(self._disk, self.directories.all, size=size, key="mappedFileSizeCommitLog")
        self._map_newest()
        if self._paths:
            self.begin = next(iter(self._paths))
            self.end = next(reversed(self._paths)) + size
        old = [start for start, path in self._paths.items() if path.parent in self._old_directories]
        self._old_end = old[-1] + size if old else 0
        self.closed = self._old_end if self._old_end < self.end else 0

    def form_at(self, position: int) -> SegmentForm:
        return self._form if position >= self._old_end else PLAIN_FORM

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

    def open_at(self, end: int, store_time_ms: int) -> None:
        size = self.segment_bytes
        while self._paths and (last := next(reversed(self._paths))) >= end and last > self.begin:
            self._remove_last(last)
        if not self._segments:
            self._map_newest()
        elif self._segments[-1].page.readonly:
            # It was not the last when it was mapped.
            self._segments[-1] = self._disk.open_segment(self._segments[-1].path, size=size)
        # A file that was being made when the process died; ``segment_files`` leaves out only one of length 0.
        half_made = segment_name(self._segments[-1].start + size if self._segments else end)
        for directory in self.directories.writable:
            self._disk.remove(directory / half_made)
        self._refusal = None
        self._synced = end
        window = self.window
        window.base = end - end % size
        self._end_at(end, store_time_ms)
        for directory in self.directories.all:
            # Also the name of a segment whose maker died before he had synced it, or of the directory.
            self._disk.sync_names(directory.parent)
            self._disk.sync_names(directory)
        if self._segments and self._segments[-1].start == window.base:
            segment = self._segments[-1]
            window.page = segment.page
            segment.ready = end - window.base
            # What lies behind the end may be whole records. One of them could begin where a later record ends, and a
            # walk would go on into it. So zeros must be on the disk before the first of those records.
            self._set_aside_tail(segment)
            segment.wipe(segment.ready)
        else:
            # An empty log, or one whose last segment is full: the next is made when a record comes.
            window.page = memoryview(b"")
        window.shut()

    def _end_at(self, end: int, store_time_ms: int) -> None:
        self.end = end
        self.window.at = end + self.lead
        self.store_time_ms = store_time_ms

    def start_threads(self, let_go: Callable[[Segment], object]) -> None:
        self._let_go = let_go
        window = self.window
        self._preparer.start(last=window.base if window.page else window.base - self.segment_bytes)
        if window.page:
            self._preparer.ahead(self._segments[-1], self.end - window.base)

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
        # The damaged one begins with its size and the magic, behind its lead.
        own = segment.ready + self.form_at(segment.start).lead + BLANK_BYTES
        if not any(_MAGIC in data[max(own - at, 0) :] for at, data in segment.remains(segment.ready)):
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

    def refuse(self, reason: TernError) -> None:
        self._refusal = reason
        self.window.shut()

    def close(self) -> None:
        self.refuse(NotRunning("the store is closed; open it again to append"))
        self._preparer.close()
        self._paths, self._segments, self._older = {}, [], {}
        self.window.page = memoryview(b"")

    # --- Writing ----------------------------------------------------------------------------------------------

    def reserve(self, record_bytes: int, count: int = 1) -> None:
        self._check_accepts()
        segment_bytes, window = self.segment_bytes, self.window
        size = record_bytes + count * self.lead
        at = self.end - window.base
        if not window.page or at + size + BLANK_BYTES > segment_bytes:
            self._end_segment()
            at = 0
        segment = self._segments[-1]
        end = at + size + BLANK_BYTES
        self._preparer.ensure(segment, end)
        self._preparer.ahead(segment, end)
        if segment_bytes - at <= max(segment_bytes // 2, AHEAD_BYTES):
            self._preparer.soon(segment.start + segment_bytes)
        # Come back when half of the ready space is used, so that the thread has the other half's time for more.
        ready = segment.ready
        ready = ready if ready == segment_bytes else max(end, (end + ready) // 2)
        window.limit = window.base + ready - BLANK_BYTES

    def seal(self, end: int, store_time_ms: int) -> None:
        # In this order: the flush thread reads the time first, and must not vouch for more than it flushes.
        self.end = end
        self.window.at = end + self.lead
        self.store_time_ms = store_time_ms

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        assert log_offset == self.end, "bytes of another node follow what is there"
        self._check_accepts()
        view, window = memoryview(data), self.window
        while view:
            at = self.end - window.base
            if not window.page or at == self.segment_bytes:
                self._roll()
                at = 0
            segment = self._segments[-1]
            taken = view[: self.segment_bytes - at]
            self._preparer.ensure(segment, at + len(taken))
            self._preparer.ahead(segment, at + len(taken))
            window.page[at : at + len(taken)] = taken
            # The time of records that may be cut short here is not known; the follower tells it.
            self._end_at(self.end + len(taken), self.store_time_ms)
            view = view[len(taken) :]
        window.shut()

    def begin_at(self, log_offset: int) -> None:
        assert not self._paths, "only an empty log begins elsewhere"
        assert log_offset % self.segment_bytes == 0, "a log begins with a segment"
        self.window.base = self.begin = self._synced = log_offset
        self._end_at(log_offset, self.store_time_ms)

    def truncate(self, log_offset: int, store_time_ms: int) -> None:
        assert self.begin <= log_offset <= self.end
        if log_offset == self.end:
            return
        window = self.window
        window.shut()
        while self._segments[-1].start > log_offset:
            last = self._segments.pop()
            del self._paths[last.start]
            self._preparer.retreat(self._segments[-1].start)
            self._disk.remove(last.path)
            # One by one: a power cut must not bring a later one back without those before it.
            self._disk.sync_names(last.path.parent)
        segment = self._segments[-1]
        window.page, window.base = segment.page, segment.start
        self._synced = min(self._synced, log_offset)
        self._end_at(log_offset, store_time_ms)
        # What is taken back must not be found behind a later record that happens to end where one of it begins.
        self._preparer.wipe(segment, log_offset - segment.start)

    def _check_accepts(self) -> None:
        if self._refusal is not None:
            # One error for many refusals must not gather the frames of all.
            raise self._refusal.with_traceback(None)

    def _end_segment(self) -> None:
        """Let a blank end the segment, if there is one, and go to the next."""
        window = self.window
        if window.page and self.end < window.base + self.segment_bytes:
            self._pack_blank(self._segments[-1], self.end - window.base)
        self._roll()

    def _pack_blank(self, segment: Segment, at: int) -> None:
        self._preparer.ensure(segment, at + BLANK_BYTES)
        self.form_at(segment.start).pack_blank(segment.page, at, segment.size - at)
        # A record that was refused while it was packed may have left some bytes, and replicas are to be equal.
        rest = at + BLANK_BYTES
        segment.page[rest : segment.ready] = bytes(max(segment.ready - rest, 0))

    def end_with_blank(self) -> None:
        """Go to the next segment, as if a record came for which this one has no room. Raises ``DiskFull``."""
        self._check_accepts()
        self._end_segment()
        self.window.shut()

    def close_segment(self) -> None:
        """End the last segment of the old directories with a blank, durably; records go to the next one. For a log
        that has no other segments. Raises ``DiskFull``."""
        window, size = self.window, self.segment_bytes
        if window.page:
            segment, at = self._segments[-1], self.end - window.base
            self._pack_blank(segment, at)
            segment.sync()
            window.page, window.base = memoryview(b""), window.base + size
        self._old_end = self.closed = self._synced = window.base
        self._end_at(window.base, self.store_time_ms)

    def _roll(self) -> None:
        """Go to the next segment, or to the first."""
        window = self.window
        start = window.base + self.segment_bytes if window.page else window.base
        segment = self._preparer.take(start)
        self._paths[start] = segment.path
        self._segments.append(segment)
        window.page, window.base = segment.page, start
        self._end_at(start, self.store_time_ms)
        if len(self._paths) == 1:
            self.begin = self._mapped_from = start
        while len(self._segments) > MAPPED_MAX and self._mapped_from + self.segment_bytes <= self._synced:
            self._unmap_first()

    def drop_first(self) -> Path:
        assert len(self._paths) > 1, "the segment being written stays"
        start = self.begin
        path = self._paths.pop(start)
        self.begin += self.segment_bytes
        if start == self._mapped_from:
            self._unmap_first()
        elif (older := self._older.pop(start, None)) is not None:
            self._let_go(older)
        return path

    def _unmap_first(self) -> None:
        self._mapped_from += self.segment_bytes
        self._let_go(self._segments.pop(0))

    # --- Reading ----------------------------------------------------------------------------------------------

    def view(self, log_offset: int, length_bytes: int) -> memoryview | None:
        if log_offset < self.begin or log_offset + length_bytes > self.end:
            return None
        window = self.window
        at = log_offset - window.base
        if at >= 0 and window.page:
            # Most look at what was just appended.
            return window.page[at : at + length_bytes]
        segment = self._segment(log_offset)
        if segment is None:
            return None
        at = log_offset - segment.start
        if at + length_bytes > self.segment_bytes:
            return None
        return segment.page[at : at + length_bytes]

    def views(self, runs: list[tuple[int, int]]) -> list[memoryview] | None:
        segments, low, size, sealed = self._segments, self._mapped_from, self.segment_bytes, self.end
        found = []
        for start, end in runs:
            if end > sealed:
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
        if log_offset < self.begin or log_offset + RECORD_BYTES_MIN > self.end:
            return None
        segment = self._segment(log_offset)
        if segment is None:
            return None
        page, at = segment.page, log_offset - segment.start
        size = record_size(page, log_offset, at)
        if not size or log_offset + size > self.end or at + size > self.segment_bytes:
            return None
        return page[at : at + size]

    def page_at(self, log_offset: int) -> tuple[Buffer, int, int]:
        segment = self._segment(log_offset) if self.begin <= log_offset < self.end else None
        if segment is None:
            return b"", log_offset, log_offset
        return segment.page, segment.start, min(segment.start + self.segment_bytes, self.end)

    def piece(self, log_offset: int, length_bytes: int | None = None) -> Piece | None:
        start = log_offset - log_offset % self.segment_bytes
        path = self._paths.get(start)
        room = min(start + self.segment_bytes, self.end) - log_offset
        if path is None or room <= 0 or (length_bytes or 0) > room:
            return None
        return Piece(path, log_offset - start, length_bytes or room)

    def store_time(self, log_offset: int) -> int:
        head = self.view(log_offset, HEAD_BYTES)
        return head_store_time(head) if head is not None else -1

    # --- For flush, recovery and readers ------------------------------------------------------------------------

    def paths_before(self, position: int) -> list[Path]:
        """The files of the segments before ``position``."""
        return [path for start, path in self._paths.items() if start < position]

    def oldest(self, count: int) -> list[Path]:
        return list(islice(self._paths.values(), min(count, max(len(self._paths) - 1, 0))))

    @property
    def starts(self) -> list[int]:
        return list(self._paths)

    def dirty(self, begin: int, end: int) -> list[Segment]:
        size = self.segment_bytes
        return [segment for segment in self._segments.copy() if segment.start < end and segment.start + size > begin]

    def write_out(self) -> tuple[list[Path], list[Path]]:
        return [], []

    def note_synced(self, end: int) -> None:
        self._synced = end

    def sync(self, begin: int, end: int) -> None:
        for start, path in self._paths.items():
            if start < end and start + self.segment_bytes > begin:
                self._disk.sync_file(path)

    def walk(self, position: int, *, check_crc: bool = True) -> LogWalk:
        return LogWalk(
            self._segment, position, segment_bytes=self.segment_bytes, form_at=self.form_at, check_crc=check_crc
        )

    def read(self, position: int, length_bytes: int) -> LogPiece | None:
        start = position - position % self.segment_bytes
        path = self._paths.get(start)
        if path is None:
            return None
        at, window = position - start, self.window
        length_bytes = min(length_bytes, self.segment_bytes - at)
        if window.page and start == window.base and position + length_bytes <= self.end:
            # What was just appended, which a replica folds: three system calls less.
            data = bytes(window.page[at : at + length_bytes])
        else:
            # Not through a mapping: on tmpfs even a look at a hole takes a block, and on a full one that ends the
            # process.
            data = self._disk.read_at(path, at, length_bytes)
        return LogPiece(data, position, self.form_at(position), at, self.segment_bytes)

    def is_sealed(self, lead: bytes, log_offset: int, size: int, /) -> bool:
        return self.form_at(log_offset).is_lead(lead, log_offset, size)

    def entry_before(self, _position: int, /) -> tuple[int, int] | None:
        return None

    def note_checked(self, _lead: bytes, /) -> None:
        pass

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
                self._let_go(self._older.pop(next(iter(self._older))))
            segment = self._disk.open_segment(path, size=size, writable=False)
        # A dict keeps its order of insertion: taken out and put in again, the segment is the newest.
        self._older[start] = segment
        return segment


def _aside(path: Path) -> Path:
    """Where a segment, or the rest of one, goes that is no part of the log any more."""
    return path.parent.parent / "cut" / path.name


def _forget(_segment: Segment) -> None:
    """Let the last reference end here."""
