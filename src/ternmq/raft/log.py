"""The log of a Raft group, in DLedger's file layout (P2; ``wire.layouts.raft_entry``).

``RaftLog`` fulfils ``store.log.protocol.Log`` and ``raft.core.EntryTerms``. A store is opened on it, and afterwards the
node uses both::

    log = RaftLog(disk, RaftPaths.of(config, "n0"), segment_bytes=config.mapped_file_size_commit_log)
    store = MessageStore.open(config, log=log, …)

    leader      log.term = 7 ; store.put(draft) …         # seal numbers the entries: log.last_index
    send        last, pieces = log.entries(next_index, 1 << 20)
    follower    arrived = log.check_append(data)          # raises before anything is changed
                store.truncate(log.cut_before(index), error)
                store.append_raw(arrived.position, data) ; store.follow(budget_s)
    commit      store.confirm(log.end_of(commit)) ; log.note_committed(commit)

It is built on a ``PlainLog`` that reserves 48 bytes in front of each record. ``seal`` fills them: index, term,
position, CRCs. ``raft.places`` knows where each entry is.

A node that was a single broker before has a plain log. Its segments stay in front of the data files, as in DLedger: the
first start as a member recovers them, closes the last one with a blank, and entries begin with the next file. All
records there count as confirmed.

``end`` is always behind the last entry. A blank with no entry behind it does not count: a later leader may have an
entry that fits before it, and data files must be equal on all nodes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from ternmq.errors import DiskFull, StoreError, TernError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.raft.checked_entries import CheckedEntries, check_entries
from ternmq.raft.group import Members
from ternmq.raft.index_files import EntryIndex
from ternmq.raft.membership import Change, Membership, peers_in
from ternmq.raft.places import EntryStretch, Places
from ternmq.raft.term_file import CommitFile
from ternmq.store.config import StoreConfig
from ternmq.store.disk.base import Disk, Segment
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.plain_log import PlainLog
from ternmq.types import Buffer
from ternmq.wire.layouts.raft_entry import (
    ENTRY_HEADER_BYTES,
    INDEX_FILE_BYTES,
    EntryPlace,
    is_record_whole,
    pack_entry_header,
    pack_index_unit,
    unpack_entry_header,
)
from ternmq.wire.layouts.raft_state import Saved
from ternmq.wire.layouts.segment_form import RAFT_FORM
from ternmq.wire.record import peek_head

log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class RaftPaths:
    """Where the files of one member are."""

    #: Directories of the data files, on one disk or several.
    data: tuple[Path, ...]
    #: ``index``, ``currterm`` and ``checkpoint`` are here.
    home: Path
    #: Directories of the plain log that this member had before it joined the group.
    old: tuple[Path, ...] = ()

    @classmethod
    def of(cls, config: StoreConfig, member: str, data: Sequence[Path] = ()) -> Self:
        """The files of ``member`` in a store directory; ``data`` are other directories for the data files."""
        home = config.store_path_root_dir / f"dledger-{member}"
        return cls(tuple(data) or (home / "data",), home, config.log_paths.all)

    @property
    def log_paths(self) -> LogPaths:
        """The directories of the whole log; new files go to those of the data."""
        return LogPaths(self.data, self.old)


class Arrived(NamedTuple):
    """Entries of another node that were checked."""

    first_index: int
    last_index: int
    last_term: int
    #: Position of the first entry, and behind the last one.
    position: int
    end: int


class RaftLog:
    """All methods belong to the store's thread, unless the protocol says otherwise. Indexes count from 0; -1: none."""

    confirms_at_once: Final = False
    lead: Final = ENTRY_HEADER_BYTES

    def __init__(
        self,
        disk: Disk,
        paths: RaftPaths,
        *,
        segment_bytes: int,
        index_file_bytes: int = INDEX_FILE_BYTES,
        on_sealed: Callable[[], None] | None = None,
        takes_changes: bool = True,
    ) -> None:
        """``on_sealed`` is told of entries that this member has sealed: the leader sends them to the others.
        ``takes_changes``: entries of others may name the members. Not where RocketMQ brokers lead: they take a record
        of any topic from any client."""
        self._on_sealed = on_sealed
        self._takes_changes = takes_changes
        self._disk = disk
        self._home = paths.home
        plain = self._plain = PlainLog(
            disk, paths.log_paths, segment_bytes=segment_bytes, form=RAFT_FORM, old=paths.old
        )
        self._index = EntryIndex(disk, paths.home / "index", file_bytes=index_file_bytes)
        self._places = Places(plain, self._index)
        self.membership = Membership(disk, paths.home / "members")
        self._commit_file = CommitFile(disk, paths.home / "checkpoint")
        self._saved = Saved()
        #: The last entry that recovery has seen.
        self._seen: EntryPlace | None = None
        #: What ``check_append`` was last asked, and what it found.
        self._checked: CheckedEntries | None = None
        self._is_open = False
        #: Term that the next sealed entries get. The node sets it when it becomes leader.
        self.term = 0
        #: The commit index that is known: after a start the saved one, if the log still has it. -1: none.
        self.committed = -1
        #: The last entry that was known as committed, and was lost: by a power cut, or damage. -1: none is missing.
        self.lost = -1
        #: Position behind the last entry.
        self.end = 0
        self.window = plain.window
        self.segment_bytes = segment_bytes
        self.directories = plain.directories
        self.form_at = plain.form_at
        self.view = plain.view
        self.views = plain.views
        self.record = plain.record
        self.page_at = plain.page_at
        self.piece = plain.piece
        self.store_time = plain.store_time
        self.read = plain.read
        self.walk = plain.walk
        self.dirty = plain.dirty
        self.note_synced = plain.note_synced
        self.sync = plain.sync
        self.oldest = plain.oldest
        self.refuse: Callable[[TernError], None] = plain.refuse
        self.start_threads: Callable[[Callable[[Segment], object]], None] = plain.start_threads

    # --- What the core asks (raft.core.EntryTerms) ----------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """The first entry that is kept; ``last_index + 1`` if there is none."""
        return self._places.first_index

    @property
    def last_index(self) -> int:
        """The last entry; -1 if there never was one."""
        return self._places.next_index - 1

    @property
    def last_term(self) -> int:
        """Term of the last entry; 0 without one."""
        return self._places.term_of(self._places.next_index - 1) or 0

    def term_of(self, index: int) -> int | None:
        """Term of an entry; 0 for index -1; None if it is deleted or not there. ``first_index - 1`` may be known."""
        return 0 if index == -1 else self._places.term_of(index)

    @property
    def members(self) -> Members | None:
        """Who the members are, as the newest entry says that names them; None: there is none."""
        return self.membership.members

    @property
    def members_index(self) -> int:
        return self.membership.index

    def span(self, first_index: int, bytes_max: int) -> tuple[int, int]:
        """The last of the entries from ``first_index`` on that fit into ``bytes_max`` and are in one data file, one at
        least; and their bytes. ``(first_index - 1, 0)`` if there is none."""
        places = self._places
        place = places.locate(first_index)
        if place is None:
            return first_index - 1, 0
        last = places.last_in_file(place)
        end = self.end_of(last)
        if end is None or end - place.position > bytes_max:
            last = max(places.index_at(place.position + bytes_max), first_index)
            end = self.end_of(last)
        assert end is not None, "an entry between two others is there"
        return last, end - place.position

    # --- Places -----------------------------------------------------------------------------------------------------

    def position_of(self, index: int) -> int | None:
        """Position of an entry, where its header begins; None if it is not there."""
        place = self._places.locate(index)
        return place.position if place is not None else None

    def end_of(self, index: int) -> int | None:
        """Position behind an entry: what ``store.confirm`` and watermarks take; None if it is not there.

        For ``first_index - 1`` it is where the entries begin.
        """
        if index == self._places.first_index - 1:
            return self._entries_begin
        place = self._places.locate(index)
        return place.end if place is not None else None

    @property
    def _entries_begin(self) -> int:
        """Position of the first entry, or of the one that will be the first."""
        return max(self._plain.begin, self._plain.closed)

    def cut_before(self, index: int) -> int:
        """The position at which ``store.truncate`` takes this entry and all behind it back."""
        end = self.end_of(index - 1)
        assert end is not None, "what is taken back is there"
        return end

    def index_at(self, position: int) -> int:
        """The last entry that ends at ``position`` or before; ``first_index - 1`` if none does.

        For a watermark of the store: ``index_at(store.flushed.value)`` is on the disk.
        """
        return self._places.index_at(position)

    # --- Entries on their way ---------------------------------------------------------------------------------------

    def entries(self, first: int, bytes_max: int) -> tuple[int, list[memoryview]]:
        """Raw bytes of the entries from ``first`` on, and the index of the last one; all of one data file.

        At least one entry if there is one; ``(first - 1, [])`` if not. Views are good until the next ``truncate``.
        """
        last, length_bytes = self.span(first, bytes_max)
        position = self.position_of(first)
        view = self._plain.view(position, length_bytes) if position is not None else None
        return (last, [view]) if view is not None else (first - 1, [])

    def check_append(self, data: Buffer) -> Arrived:
        """Check whole entries that are to be appended behind ``last_index``: headers, consecutive indexes, terms that
        do not decrease, positions that follow ours, CRCs. Raises ``RemoteProtocolError`` and changes nothing."""
        stretches = self._check(data).stretches
        first, last = stretches[0].first, stretches[-1].last
        return Arrived(first.index, last.index, last.term, first.position, last.end)

    def _check(self, data: Buffer) -> CheckedEntries:
        checked = self._checked
        if checked is None or checked.data is not data:
            checked = self._checked = check_entries(
                data,
                index=self._places.next_index,
                term=self.last_term,
                end=self.end,
                file_bytes=self.segment_bytes,
            )
        return checked

    @property
    def entries_begin(self) -> tuple[int, int, int]:
        """Where another member may begin: the first entry, its position, and the term of the entry before (or -1)."""
        prev_term = self._places.prev_term
        return self.first_index, self._entries_begin, -1 if prev_term is None else prev_term

    def old_segments(self) -> list[Path]:
        """The files of the plain log in front of the entries."""
        return self._plain.paths_before(self._plain.closed)

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append whole entries, as ``check_append`` wants them; ``log_offset`` is the position of the first.

        A blank is written where an entry begins a new file. On a full disk some of them may be appended.
        """
        _, stretches, named = self._check(data)
        self._checked = None
        assert log_offset == stretches[0].first.position, "entries know where they belong"
        self._write_late()
        for place, record in named if self._takes_changes else ():
            if (peers := peers_in(record)) is not None:
                # First: an entry that is not in the file would be missed by the next start.
                self.membership.add(Change(place.index, place.term, peers), committed=self.committed)
        try:
            self._append_stretches(stretches, data)
        except BaseException:
            # Of entries that have not come, no members follow.
            self.membership.cut(self.last_index + 1)
            raise

    def _append_stretches(self, stretches: list[EntryStretch], data: Buffer) -> None:
        plain, view, done, number = self._plain, memoryview(data), 0, 0
        self._take_blank_back()
        while number < len(stretches):
            together = [stretches[number]]
            begin = together[0].first.position
            number += 1
            while number < len(stretches) and stretches[number].first.position == together[-1].last.end:
                together.append(stretches[number])
                number += 1
            if begin != plain.end:
                plain.end_with_blank()
            size = together[-1].last.end - begin
            plain.append_raw(begin, view[done : done + size])
            for stretch in together:
                self._places.extend(stretch)
            self.end = begin + size
            done += size

    def begin_at(self, log_offset: int, *, index: int = 0, prev_term: int | None = None) -> None:
        """Let an empty log begin with the data file at ``log_offset``, whose first entry will be ``index``."""
        self._plain.begin_at(log_offset)
        self.end = log_offset
        self._places.forget(index, 0 if index == 0 else prev_term)
        self.committed = index - 1

    # --- Commit index -----------------------------------------------------------------------------------------------

    def note_committed(self, index: int) -> None:
        """Remember the commit index; ``save_committed`` saves it now and then, and so does a clean stop."""
        assert self.committed <= index <= self.last_index, "commit indexes grow, and their entries are here"
        self.committed = index
        if index >= self.lost:
            self.lost = -1

    def save_committed(self) -> None:
        """Write ``checkpoint``, and ``members``, if they are not up to date. For the node, every 3 s or so. Raises
        ``StoreError``."""
        self.membership.tidy()
        first = self.first_index
        prev_term = self._places.prev_term
        # Entry 0 may be behind an old log that was deleted.
        is_known = not first and (self._plain.closed or not self._entries_begin)
        begin = (0, 0, -1) if is_known else (first, self._entries_begin, -1 if prev_term is None else prev_term)
        saved = Saved(self.last_index, self.committed, *begin, self.lost)
        if saved != self._saved:
            self._commit_file.save(saved)
            self._saved = saved

    @property
    def known_confirmed(self) -> int | None:
        plain = self._plain
        if all(plain.form_at(start) is not RAFT_FORM for start in plain.starts):
            # All are records of the single broker that this was.
            return None
        committed = self._saved.committed_index
        if committed < self._places.first_index:
            return self._entries_begin
        end = self._places.end_before_open(committed)
        # If it is lost, all that are left are before it.
        return end if end is not None else plain.end

    # --- Life -------------------------------------------------------------------------------------------------------

    @property
    def begin(self) -> int:
        return self._plain.begin

    @property
    def closed(self) -> int:
        return self._plain.closed

    @property
    def store_time_ms(self) -> int:
        return self._plain.store_time_ms

    @property
    def starts(self) -> list[int]:
        return self._plain.starts

    def load(self) -> None:
        self._plain.load()
        self._places.load()
        saved = self._saved = self._commit_file.load()
        if not self._plain.starts and saved.begin_position > 0 and saved.begin_position % self.segment_bytes == 0:
            # Its files are still to come from another member (``raft.filling``).
            self._plain.begin_at(saved.begin_position)
        self.end = self._plain.end

    def open_at(self, end: int, store_time_ms: int) -> None:
        plain, places, saved = self._plain, self._places, self._saved
        for directory in (self._home.parent, self._home):
            # What a process made there that died before it had synced the names: the vote is kept there, too.
            self._disk.sync_names(directory)
        knows_begin = 0 < saved.begin_position == plain.begin
        if places.begin_before(end):
            places.open(end, self._seen)
            assert places.last is not None, "the log ends with an entry"
            self.end = places.last.end
            plain.open_at(self.end, store_time_ms)
            if knows_begin and saved.begin_index == places.first_index and saved.begin_term >= 0:
                places.prev_term = saved.begin_term
        else:
            begin_term = saved.begin_term if saved.begin_term >= 0 else None
            places.forget(*((saved.begin_index, begin_term) if knows_begin else (0, 0)))
            plain.open_at(end, store_time_ms)
            if plain.starts and plain.form_at(plain.starts[-1]) is not RAFT_FORM:
                plain.close_segment()
            self.end = plain.end
        self.membership.load(first_index=self.first_index, has=self._has_change)
        self.committed = min(max(saved.committed_index, self.first_index - 1), self.last_index)
        if (lost := max(saved.lost_index, saved.committed_index)) > self.committed:
            self.lost = lost
        self._is_open = True
        # From now on entries come and go: what recovery saw last says nothing about those that follow.
        self._seen = None
        try:
            self._save_less()
        except DiskFull as error:
            log.warning("this member takes no entries before there is room on its disk: %s", error)

    def _has_change(self, change: Change) -> bool:
        """Whether the log has this entry. Index and term alone do not tell: a leader whose disk had no room for it went
        on with another one in the same term. Of one that cannot be read the file knows more."""
        place = self._places.locate(change.index)
        if place is None or place.term != change.term:
            return False
        entry = self._plain.view(place.position, place.size)
        if entry is None or unpack_entry_header(entry) != place or not is_record_whole(entry):
            return True
        return peers_in(entry[ENTRY_HEADER_BYTES:]) == change.members

    def is_sealed(self, lead: bytes, log_offset: int, size: int, /) -> bool:
        place = unpack_entry_header(lead)
        if place is None or (place.position, place.end) != (log_offset - ENTRY_HEADER_BYTES, log_offset + size):
            return False
        before = self.entry_before(place.position)
        if before is None:
            return True
        index, term = before
        if index >= 0 and (place.index != index + 1 or place.term < term):
            # DLedger leaves what it truncates in its files: it may follow the last entry as if it belonged there.
            return False
        entry = self._plain.view(place.position, place.size)
        if entry is not None and not is_record_whole(entry):
            return False
        self._seen = place
        return True

    def entry_before(self, position: int, /) -> tuple[int, int] | None:
        if self._is_open:
            # Entries that arrive are checked before they are taken. What is read from the disk is checked then.
            return None
        seen = self._seen
        if seen is None or position not in (seen.end, seen.end + -seen.end % self.segment_bytes):
            return -1, 0
        return seen.index, seen.term

    def note_checked(self, lead: bytes, /) -> None:
        if not self._is_open:
            self._seen = unpack_entry_header(lead)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            # It is a hint; the next start does without.
            with contextlib.suppress(StoreError):
                self.save_committed()
        self._index.close()
        self._plain.close()

    # --- Writing ----------------------------------------------------------------------------------------------------

    def _write_late(self) -> None:
        """Before more is appended: write what a full disk left in memory. Raises ``DiskFull``."""
        if self._index.is_late:
            self._index.write_out()
        self._save_less()

    def _save_less(self) -> None:
        """What a power cut took is not committed here any more: other entries may come in its place, and the next start
        must not take those for committed. Raises ``StoreError``."""
        if self.committed < self._saved.committed_index:
            self.save_committed()

    def _take_blank_back(self) -> None:
        """If a blank was written for an entry that never came, as the disk was full: the next one may fit before it,
        and all members must have it at the same place."""
        plain = self._plain
        if plain.end > self.end:
            plain.truncate(self.end, plain.store_time_ms)

    def reserve(self, record_bytes: int, count: int = 1) -> None:
        self._write_late()
        self._take_blank_back()
        self._plain.reserve(record_bytes, count)

    def seal(self, end: int, store_time_ms: int) -> None:
        plain, places, term = self._plain, self._places, self.term
        if end == self.end:
            plain.store_time_ms = store_time_ms
            return
        assert term >= self.last_term, "the node sets its term before it leads"
        page, base, begin = self.window.page, self.window.base, plain.end
        units = None
        if HAS_NATIVE:
            units = native.seal_entries(page, begin - base, end - base, places.next_index, term, begin)
        places.extend(EntryStretch(units or self._fill_headers(end)))
        self.end = end
        plain.seal(end, store_time_ms)
        if self._index.is_late:
            self.window.shut()
        if self._on_sealed is not None:
            self._on_sealed()

    def _fill_headers(self, end: int) -> bytes:
        """Fill the headers of the entries that were packed up to ``end``; returns their units in the index."""
        page, base, at, index = self.window.page, self.window.base, self._plain.end, self._places.next_index
        units = []
        while at < end:
            record_at = at + ENTRY_HEADER_BYTES
            size, _ = peek_head(page, record_at - base)
            record_end = record_at + size
            page[at - base : record_at - base] = pack_entry_header(
                index, self.term, at, page[record_at - base : record_end - base]
            )
            units.append(pack_index_unit(EntryPlace(index, self.term, at, ENTRY_HEADER_BYTES + size)))
            index += 1
            at = record_end
        assert at == end, "records were packed one behind the other"
        return b"".join(units)

    def truncate(self, log_offset: int, store_time_ms: int) -> None:
        kept = self._places.index_at(log_offset)
        assert log_offset == self.end_of(kept), "an entry is taken back as a whole"
        assert kept >= self.committed, "what is committed stays"
        self._checked = None
        self._plain.truncate(log_offset, store_time_ms)
        self.end = log_offset
        self._places.cut(kept + 1)
        self.membership.cut(kept + 1)

    # --- Flush and retention ----------------------------------------------------------------------------------------

    def write_out(self) -> tuple[list[Path], list[Path]]:
        self._index.write_out()
        return self._index.take_unsynced()

    def drop_first(self) -> Path:
        with contextlib.suppress(StoreError):
            self.membership.tidy()
        path = self._plain.drop_first()
        first = self.first_index
        self._places.drop_before(self._plain.begin)
        self.end = max(self.end, self._plain.begin)
        if self.first_index > first:
            # What goes was committed; and if a power cut takes all that is left, this tells how to go on.
            self.committed = max(self.committed, self.first_index - 1)
            with contextlib.suppress(StoreError):
                self.save_committed()
        return path
