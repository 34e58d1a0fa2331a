"""What a log is: the protocol through which the rest of the store writes, flushes, reads and cuts it (C1, C5).

::

    begin                        confirmed            end
    | lead | record | lead | record | … | lead | record |<──── window ────>|
                                                  sealed   reserved

A record is *reserved* (there is room for it in one segment), packed by the writer into the log's ``window``, *sealed*
(the log fills the bytes in front of it; what is not sealed does not exist), *confirmed* and then dispatched. A plain
log has no bytes in front of records (``lead`` 0) and confirms them with the seal. A log of a Raft group has an entry
header of 48 bytes there and confirms a record when a majority has it; until then ``truncate`` may take it back. It may
begin with segments of a plain log, from the time before its broker joined a group: ``form_at`` tells how one looks.

Two kinds of log offsets must not be mixed up. A *record's* log offset is where the record itself begins, as queue
entries, index and message ids have it. A *position* lies between records: behind one, before the lead of the next.
``begin``, ``end``, ``starts`` and all arguments of ``read`` and ``walk`` are positions. Behind a record, at its log
offset + size, there is always a position; the next record is ``lead`` bytes further, or in the next segment. A blank
stands at a position, without a lead.

Sealed bytes that are confirmed never change, so views of them are good for ever. Views of what is not confirmed are
good until the next ``truncate``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from ternmq.errors import TernError
from ternmq.store.disk.base import Segment
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.walk import LogWalk
from ternmq.store.log.window import Window
from ternmq.types import Buffer
from ternmq.wire.layouts.segment_form import SegmentForm


class Piece(NamedTuple):
    """A part of a segment by its place on disk, for threads that must not touch the mapping."""

    path: Path
    at: int
    length_bytes: int


class LogPiece(NamedTuple):
    """A copy of some bytes of one segment."""

    data: bytes
    #: Position of the first byte.
    begin: int
    #: What stands between the records here.
    form: SegmentForm
    #: Where in the segment it begins, and the segment's size.
    at: int
    segment_bytes: int

    @property
    def ends_segment(self) -> bool:
        return self.at + len(self.data) == self.segment_bytes


class Log(Protocol):
    """All methods belong to the store's thread, unless they say that any thread may call them."""

    @property
    def lead(self) -> int:
        """Bytes in front of each record that is appended from now on."""
        ...

    @property
    def confirms_at_once(self) -> bool:
        """Whether a record is confirmed when it is sealed. Else ``MessageStore.confirm`` tells when it is."""
        ...

    def form_at(self, position: int) -> SegmentForm:
        """What stands between the records of the segment that ``position`` lies in."""
        ...

    @property
    def closed(self) -> int:
        """Position up to which a segment's end is known to be one: what is damaged before does not end the log."""
        ...

    @property
    def known_confirmed(self) -> int | None:
        """After ``load``: position up to which records are known to be confirmed; None: all that are whole."""
        ...

    @property
    def segment_bytes(self) -> int: ...

    @property
    def directories(self) -> LogPaths: ...

    @property
    def begin(self) -> int:
        """Position of the first byte that is kept."""
        ...

    @property
    def end(self) -> int:
        """Position behind the last sealed byte. Any thread may ask."""
        ...

    @property
    def store_time_ms(self) -> int:
        """Store time of the last sealed record. Any thread may ask, before it asks for ``end``."""
        ...

    @property
    def starts(self) -> list[int]:
        """Where each segment starts."""
        ...

    # --- Life -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the segments that exist, and change nothing. Raises ``CorruptFile``."""
        ...

    def open_at(self, end: int, store_time_ms: int) -> None:
        """Cut the log at ``end``, where recovery found it to end, and be ready to append.

        Afterwards ``self.end`` may be another position between the same two records: behind a blank, or before it.
        """
        ...

    def start_threads(self, let_go: Callable[[Segment], object]) -> None:
        """From now on a thread readies log space. ``let_go`` takes segments that are not needed any more: to unmap a
        GiB takes 30 ms, which another thread can spend."""
        ...

    def refuse(self, reason: TernError) -> None:
        """Accept nothing any more: the one switch for a closed store, a failed disk and a node that is no master."""
        ...

    def close(self) -> None: ...

    # --- Writing ----------------------------------------------------------------------------------------------

    @property
    def window(self) -> Window:
        """Always the same object."""
        ...

    def reserve(self, record_bytes: int, count: int = 1) -> None:
        """Let the window have room for ``count`` records of ``record_bytes`` in all, in one segment.

        Raises ``DiskFull``, or what ``refuse`` was given. The caller has checked that a segment can hold them.
        """
        ...

    def seal(self, end: int, store_time_ms: int) -> None:
        """Make the records exist that were packed from ``window.at`` up to ``end``, ``lead`` bytes between them.

        With ``end`` as it is, only the time is told: that of the last record which ``append_raw`` brought.
        """
        ...

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append bytes of another node's log, cut anywhere, at ``end``. Raises ``DiskFull``."""
        ...

    def begin_at(self, log_offset: int) -> None:
        """Let an empty log begin with the segment that starts at ``log_offset``."""
        ...

    def truncate(self, log_offset: int, store_time_ms: int) -> None:
        """Take back what was sealed from the position ``log_offset`` on; zeros are on the disk there afterwards.

        ``store_time_ms`` is that of the last record before it. Not below what is confirmed.
        """
        ...

    # --- Reading ----------------------------------------------------------------------------------------------

    def view(self, log_offset: int, length_bytes: int) -> memoryview | None:
        """These bytes of the log; None if they are not all there, in one segment."""
        ...

    def views(self, runs: list[tuple[int, int]]) -> list[memoryview] | None:
        """The bytes from each start up to its end; None if some are not there. For reads of many records at once."""
        ...

    def record(self, log_offset: int) -> memoryview | None:
        """The whole record at ``log_offset``; None if none starts there."""
        ...

    def page_at(self, log_offset: int) -> tuple[Buffer, int, int]:
        """The page of the segment that ``log_offset`` lies in, to look at many records there one after the other.

        With it, the log offsets at which it begins and up to which it is sealed; an empty one if there is none. It is
        good until the store's thread does something else.
        """
        ...

    def piece(self, log_offset: int, length_bytes: int | None = None) -> Piece | None:
        """Where these bytes lie, without ``length_bytes`` up to the segment's end; None if they are not all there.

        Any thread may ask.
        """
        ...

    def store_time(self, log_offset: int) -> int:
        """When the record at ``log_offset`` was stored; -1 if there is none."""
        ...

    def read(self, position: int, length_bytes: int) -> LogPiece | None:
        """A copy of these bytes, fewer at the end of their segment; None if there is no such segment."""
        ...

    def is_sealed(self, lead: bytes, log_offset: int, size: int, /) -> bool:
        """Whether these bytes are the lead of the record at ``log_offset``; asked only where leads have bytes."""
        ...

    def entry_before(self, position: int, /) -> tuple[int, int] | None:
        """Index and term of the Raft entry that one at ``position`` must follow, if ``is_sealed`` checks that, and the
        CRC of the whole record; a negative index if that may be any. None if it checks nothing but the lead."""
        ...

    def note_checked(self, lead: bytes, /) -> None:
        """Others have checked entries in place of ``is_sealed``; this is the header of the last one."""
        ...

    def walk(self, position: int, *, check_crc: bool = True) -> LogWalk:
        """The records from ``position`` on."""
        ...

    # --- Flush and retention ----------------------------------------------------------------------------------

    def dirty(self, begin: int, end: int) -> list[Segment]:
        """The segments that hold bytes from ``begin`` up to ``end``. Any thread may ask."""
        ...

    def write_out(self) -> tuple[list[Path], list[Path]]:
        """Write out what the log derives from its records for itself, such as an index of them. Raises ``StoreError``.

        Returns the files that must be synced, and the directories whose names must be after that, before the
        checkpoint says that what is derived from the records is on the disk.
        """
        ...

    def note_synced(self, end: int) -> None:
        """The flush needs no segment before ``end`` any more. Any thread may tell."""
        ...

    def sync(self, begin: int, end: int) -> None:
        """Return when the bytes from ``begin`` up to ``end`` are on the disk, by whichever process written."""
        ...

    def oldest(self, count: int) -> list[Path]:
        """The files of the oldest segments, at most ``count``, never the last one's."""
        ...

    def drop_first(self) -> Path:
        """Forget the oldest segment, which is not the last; its file is the caller's to remove. Views stay valid."""
        ...
