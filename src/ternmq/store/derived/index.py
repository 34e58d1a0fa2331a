"""The hash index: records by key (C4).

A file is a hash table with chains, all in place (``wire.layouts.index_file``): 5,000,000 slots, 20,000,000 entries.

Keys are the UNIQ_KEY and each part of KEYS; what is hashed is ``topic#key``. Only hashes are stored, so a search looks
up compares topic and key in the record itself (``store.read.query``). A file is named by the local time of its making
and ends when its entries are used up; the next begins with begin = end = the end of this one, as RocketMQ's does.

Records wait in memory, up to 64, until entries are made of them together: a search makes them first, and a crash
loses them like everything derived, to be folded again. The header is written after entries and slots. The newest file
stays mapped; an older one is for the time of a search, as there may be hundreds.

``cut`` undoes entries from the newest to the oldest, giving each slot its previous entry back, so that after a crash
the index equals a fresh fold of the log. (RocketMQ deletes the current file, and forgets what it held of older
records.)
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ternmq.errors import CorruptFile, StoreError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.derived.key_hash import MADE_ENTRY, IndexEntry, Keyed, KeyHashes
from ternmq.store.derived.trouble import OnTrouble, raise_it
from ternmq.store.disk.base import Disk, Segment
from ternmq.wire.layouts.index_file import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SECONDS_MAX,
    INDEX_SLOT,
    INDEX_SLOT_BYTES,
    index_entries_at,
)

if TYPE_CHECKING:
    from ternmq.store.derived.fact import Fact

log = logging.getLogger(__name__)

#: Where no entry was written. (The first record of a log has one like it if its key's hash is 0.)
_NO_ENTRY: Final = (0, 0, 0, 0)
#: Claimed on disk at a time for entries to come: some 50,000.
_RESERVE_BYTES: Final = 1 << 20
#: Records taken in before their entries are written together, which spares a third of the work.
WAITING_MAX: Final = 64

#: Entries of a chain that a search looks at in a row, some 0.5 ms.
WALK_ENTRIES: Final = 1_024

_EMPTY_SLOTS: Final = bytes(64 * 1024)
_unpack_slot: Final = INDEX_SLOT.unpack_from
_pack_slot: Final = INDEX_SLOT.pack_into
_pack_entry: Final = INDEX_ENTRY.pack_into
_pack_header: Final = INDEX_HEADER.pack_into


class IndexFile:
    """One file of the index. The fields are the header's; the file is mapped when something else of it is needed."""

    __slots__ = (
        "_entries_at",
        "_entries_max",
        "_open",
        "_reserved",
        "_segment",
        "_slots",
        "begin_offset",
        "begin_time_ms",
        "count",
        "end_offset",
        "end_time_ms",
        "path",
        "used_slots",
    )

    def __init__(self, path: Path, header: bytes, map_it: Callable[[], Segment], *, slots: int, entries: int) -> None:
        self.path = path
        self._open = map_it
        self._segment: Segment | None = None
        self._slots = slots
        self._entries_max = entries
        self._entries_at = index_entries_at(slots)
        self._reserved = 0
        fields: tuple[int, int, int, int, int, int] = INDEX_HEADER.unpack(header)
        self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset, self.used_slots, count = fields
        # A new file has zeros; entries are numbered from 1 on. More than there can be is damage.
        self.count = min(max(count, 1), entries)

    @property
    def segment(self) -> Segment:
        if self._segment is None:
            self._segment = self._open()
        return self._segment

    def rest(self) -> None:
        """Unmap the file until it is needed again; a thread that has to sync it holds the segment."""
        self._segment = None

    @property
    def _page(self) -> memoryview:
        return self.segment.page

    @property
    def is_full(self) -> bool:
        return self.count >= self._entries_max

    @property
    def is_empty(self) -> bool:
        return self.count <= 1

    def begin_after(self, time_ms: int, log_offset: int) -> None:
        """A new file continues where the last one ended. Raises ``DiskFull``."""
        self._reserve(INDEX_HEADER_BYTES)
        self.begin_time_ms = self.end_time_ms = time_ms
        self.begin_offset = self.end_offset = log_offset
        self.write_header()

    def put(self, entries: list[IndexEntry]) -> None:
        """Add entries; the file has room for them. Raises ``DiskFull`` before anything is changed."""
        number, page, slots, begin_time_ms = self.count, self._page, self._slots, self.begin_time_ms
        entry_at = self._entries_at + number * INDEX_ENTRY_BYTES
        if entry_at + len(entries) * INDEX_ENTRY_BYTES > self._reserved:
            self._reserve(entry_at + len(entries) * INDEX_ENTRY_BYTES)
        used_slots = self.used_slots
        seconds = last_time_ms = -1
        for key_hash, log_offset, store_time_ms in entries:
            if store_time_ms != last_time_ms:
                last_time_ms = store_time_ms
                seconds = (store_time_ms - begin_time_ms) // 1000 if begin_time_ms > 0 else 0
                seconds = min(max(seconds, 0), INDEX_SECONDS_MAX)
            slot_at = INDEX_HEADER_BYTES + key_hash % slots * INDEX_SLOT_BYTES
            (previous,) = _unpack_slot(page, slot_at)
            if not 0 < previous < number:
                previous = 0
                used_slots += 1
            _pack_entry(page, entry_at, key_hash, log_offset, seconds, previous)
            _pack_slot(page, slot_at, number)
            if number == 1:
                # Only the first entry of a file counts its seconds from the end of the file before.
                self.begin_offset = log_offset
                self.begin_time_ms = begin_time_ms = store_time_ms
                last_time_ms = -1
            number += 1
            entry_at += INDEX_ENTRY_BYTES
        self.count = number
        self.used_slots = used_slots
        _, self.end_offset, self.end_time_ms = entries[-1]
        self.write_header()

    def put_made(self, made: bytes) -> None:
        """``put`` for entries that a kernel made. Raises ``DiskFull`` before anything is changed."""
        number = self.count
        behind = number + len(made) // MADE_ENTRY.size
        end = self._entries_at + behind * INDEX_ENTRY_BYTES
        if end > self._reserved:
            self._reserve(end)
        self.used_slots, self.begin_time_ms, self.begin_offset, self.end_offset, self.end_time_ms = native.index_put(
            self.segment.page, made, self._slots, number, self.used_slots, self.begin_time_ms, self.begin_offset
        )
        self.count = behind

    def write_header(self) -> None:
        _pack_header(
            self._page,
            0,
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )

    def _reserve(self, end: int, ahead_bytes: int = _RESERVE_BYTES) -> None:
        """Claim slots and entries up to ``end`` and some more; a store to what is not claimed could end the process."""
        end = min(self.segment.size, end + ahead_bytes)
        if end > self._reserved:
            self.segment.reserve(self._reserved, end)
            self._reserved = end

    # --- Reading ------------------------------------------------------------------------------------------------

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file has entries of this time."""
        return begin_ms <= self.end_time_ms and end_ms >= self.begin_time_ms

    def walk(self, key_hash: int, *, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Log offsets of entries with this hash, newest first; None now and then: see ``Index.walk``."""
        number, looked = self._newest(key_hash), 0
        while number:
            entry_hash, log_offset, seconds, previous = self._entry(number)
            # The first entry's seconds count from the end of the file before, but its time is the header's.
            time_ms = self.begin_time_ms + (seconds * 1000 if number > 1 else 0)
            # Entries know whole seconds only: one of the second in which the span begins may belong to it.
            if seconds < 0 or time_ms + 999 < begin_ms:
                return
            if entry_hash == key_hash and time_ms <= end_ms:
                yield log_offset
            looked += 1
            if looked % WALK_ENTRIES == 0:
                yield None
            # Numbers fall along a chain; anything else is damage, and would lead in circles.
            number = previous if 0 < previous < number else 0

    def _newest(self, key_hash: int) -> int:
        number: int = _unpack_slot(self._page, self._slot_at(key_hash))[0]
        return number if 0 < number < self.count else 0

    def _slot_at(self, key_hash: int) -> int:
        return INDEX_HEADER_BYTES + key_hash % self._slots * INDEX_SLOT_BYTES

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        return INDEX_ENTRY.unpack_from(self._page, self._entry_at(number))

    def _entry_at(self, number: int) -> int:
        return self._entries_at + number * INDEX_ENTRY_BYTES

    # --- Cutting ------------------------------------------------------------------------------------------------

    def cut(self, log_offset: int, store_time: Callable[[int], int], *, distrust: bool) -> None:
        """Undo the entries of records at ``log_offset`` and behind; with ``distrust`` make all slots anew.

        What is undone becomes zero. Otherwise a page that comes back after a later power cut could hold entries of
        records that are long gone, and nothing would show it.
        """
        kept, last = self._kept(log_offset), self.count
        # A process that died between an entry and the header left entries that are not counted.
        while last < self._entries_max and self._entry(last) != _NO_ENTRY:
            last += 1
        if last == 1:
            # Begun on a full disk, it may lack even its slots; ``Index`` removes it.
            return
        # No more than is there, so that a store on a full disk opens.
        self._reserve(self._entry_at(last), ahead_bytes=0)
        if not distrust:
            self._undo(kept, last)
        self.count = kept
        if distrust:
            self._remake_slots()
        if kept > 1:
            _, self.end_offset, seconds, _ = self._entry(kept - 1)
            exact_ms = store_time(self.end_offset)
            # A page of the log that the disk has lost reads as zeros.
            self.end_time_ms = exact_ms if exact_ms > 0 else self.begin_time_ms + seconds * 1000
        self.write_header()
        if distrust:
            # Pages of entries may have come to the disk beyond one that did not.
            self.segment.wipe(self._entry_at(kept))
        else:
            begin, end = self._entry_at(kept), self._entry_at(last)
            self._page[begin:end] = bytes(end - begin)

    def _undo(self, kept: int, last: int) -> None:
        """Give slots their previous entry back, from the newest to the oldest. To do it twice does no harm."""
        for number in range(last - 1, kept - 1, -1):
            key_hash, _, _, previous = self._entry(number)
            if not 0 < previous < number:
                previous = 0
                if number < self.count:
                    self.used_slots -= 1
            _pack_slot(self._page, self._slot_at(key_hash), previous)

    def _kept(self, log_offset: int) -> int:
        """The first entry of a record at ``log_offset`` or behind, or the first that a lost page left empty."""
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self._entry(middle)
            if entry[1] >= log_offset or entry == _NO_ENTRY:
                high = middle
            else:
                low = middle + 1
        return low

    def _remake_slots(self) -> None:
        """Let each slot name its newest entry. Entries know the one before, so nothing else is needed."""
        slots_end = self._entries_at
        for at in range(INDEX_HEADER_BYTES, slots_end, len(_EMPTY_SLOTS)):
            end = min(at + len(_EMPTY_SLOTS), slots_end)
            self._page[at:end] = _EMPTY_SLOTS[: end - at]
        page, slots = self._page, self._slots
        for number, (key_hash, _, _, _) in enumerate(
            INDEX_ENTRY.iter_unpack(page[self._entry_at(1) : self._entry_at(self.count)]), 1
        ):
            _pack_slot(page, INDEX_HEADER_BYTES + key_hash % slots * INDEX_SLOT_BYTES, number)
        # Whatever the order of its bytes, an empty slot is 0.
        self.used_slots = slots - array("I", page[INDEX_HEADER_BYTES:slots_end].tobytes()).count(0)


def file_name(now_ms: int, last: str) -> str:
    """The name of a new file, by local time; ``last`` is that of the file before, or empty."""
    name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
    # Names must rise, also within one ms and when the clock or summer time steps back.
    return name if name > last else f"{int(last) + 1:017d}"


class Index:
    """All index files of a store, derived from the log (``store.derived.dispatch.Derived``)."""

    __slots__ = (
        "_disk",
        "_entries",
        "_entries_left",
        "_file_bytes",
        "_files",
        "_hashes",
        "_now_ms",
        "_on_trouble",
        "_slots",
        "_taken",
        "_unsynced",
        "directory",
        "waiting",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        slots: int,
        entries: int,
        file_bytes: int,
        now_ms: Callable[[], int],
        on_trouble: OnTrouble = raise_it,
    ) -> None:
        """``on_trouble`` is told when records that wait could not be written; the log should take no more for now."""
        self._disk = disk
        self.directory = directory
        self._slots = slots
        self._entries = entries
        self._file_bytes = file_bytes
        self._now_ms = now_ms
        self._files: list[IndexFile] = []
        self._hashes = KeyHashes()
        #: Records that entries are not yet made of, in log order. ``dispatch`` adds to it, one call less for each.
        self.waiting: list[Keyed] = []
        #: Log offset of the last record that they were made of.
        self._taken = -1
        #: Entries that were to be written when the disk was full.
        self._entries_left: list[IndexEntry] = []
        self._on_trouble = on_trouble
        #: Full files that are not on the disk yet.
        self._unsynced: list[Segment] = []

    def __len__(self) -> int:
        return len(self._files)

    @property
    def end_time_ms(self) -> int:
        return self._files[-1].end_time_ms if self._files else 0

    @property
    def end_offset(self) -> int:
        """Log offset of the last record that has entries; -1 if none has."""
        return self._files[-1].end_offset if self._files and self._files[-1].end_time_ms else -1

    @property
    def taken(self) -> int:
        """Log offset of the last record that was taken in; -1 if none was."""
        return self.waiting[-1][2] if self.waiting else self._taken

    def overflow(self) -> None:
        """Make entries of the records that wait. The log has them already, so this cannot refuse them."""
        try:
            self.write_out()
        except StoreError as error:
            self._on_trouble(error)

    def write_out(self) -> None:
        """Make the entries of all records taken in. Raises ``DiskFull``; then the rest keeps waiting."""
        waiting, made = self.waiting, None
        if waiting:
            self._taken = waiting[-1][2]
            if HAS_NATIVE and not self._entries_left:
                made = native.index_entries(waiting)
            if made is None:
                self._entries_left += self._hashes.entries(waiting)
            waiting.clear()
        if made is not None:
            self._write_made(made)
        entries = self._entries_left
        while entries:
            file = self._open_file()
            room = self._entries - file.count
            file.put(entries[:room])
            del entries[:room]

    def add_made(self, made: bytes, last: int) -> None:
        """Take in entries that a kernel made of records up to log offset ``last``. Like ``overflow``, refuse none."""
        if self.waiting or self._entries_left:
            self.overflow()
        self._taken = last
        if self._entries_left:
            self._entries_left += MADE_ENTRY.iter_unpack(made)
            return
        try:
            self._write_made(made)
        except StoreError as error:
            self._on_trouble(error)

    def _write_made(self, made: bytes) -> None:
        while made:
            try:
                file = self._open_file()
                room_bytes = (self._entries - file.count) * MADE_ENTRY.size
                file.put_made(made[:room_bytes])
            except StoreError:
                self._entries_left += MADE_ENTRY.iter_unpack(made)
                raise
            made = made[room_bytes:]

    def _open_file(self) -> IndexFile:
        """The file that has room for the next entry. Raises ``DiskFull``."""
        return self._files[-1] if self._files and not self._files[-1].is_full else self._next_file()

    def _next_file(self) -> IndexFile:
        last = self._files[-1] if self._files else None
        path = self.directory / file_name(self._now_ms(), last.path.name if last is not None else "")
        self._disk.open_segment(path, size=self._file_bytes, create=True)
        file = self._file(path, bytes(INDEX_HEADER_BYTES))
        if last is not None:
            try:
                file.begin_after(last.end_time_ms, last.end_offset)
            except StoreError:
                # Without a header it would end every search that comes upon it.
                self._disk.remove(path)
                raise
            self._unsynced.append(last.segment)
            last.rest()
        self._files.append(file)
        return file

    def _file(self, path: Path, header: bytes) -> IndexFile:
        def map_it() -> Segment:
            return self._disk.open_segment(path, size=self._file_bytes)

        return IndexFile(path, header, map_it, slots=self._slots, entries=self._entries)

    # --- Derived --------------------------------------------------------------------------------------------------

    def fold(self, fact: Fact) -> None:
        """Add the entries of a record read from the log, unless they are there already."""
        if fact.log_offset > self.taken and fact.is_indexed:
            self.waiting.append((fact.topic, fact.properties, fact.log_offset, fact.store_time_ms))
            if len(self.waiting) >= WAITING_MAX:
                self.overflow()

    def cut(self, log_offset: int, store_time: Callable[[int], int], *, distrust: bool = False) -> None:
        """Forget what came from ``log_offset`` on. ``store_time`` tells when a record was stored, as its entry only
        knows the second; ``distrust`` means that pages may be missing in what is left, too."""
        self.write_out()
        for name, length_bytes, is_directory in self._disk.list(self.directory):
            if not length_bytes and not is_directory:
                self._disk.remove(self.directory / name)
        while self._files:
            last = self._files[-1]
            last.cut(log_offset, store_time, distrust=distrust)
            if not last.is_empty:
                break
            self._disk.remove(last.path)
            self._files.pop()
        self._taken = self.end_offset

    def resume(self, log_offset: int, store_time: Callable[[int], int]) -> None:
        """Go on where a killed process stopped: the entries of its last record may not all be there, and those of
        records from ``log_offset`` on are not synced."""
        self._unsynced = [file.segment for file in self._files if file.end_offset >= log_offset]
        self.cut(max(log_offset, self.end_offset), store_time)

    # --- Reading ----------------------------------------------------------------------------------------------------

    def walk(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Log offsets of records that may have this key, newest first.

        Keys share slots, and a sender can choose millions that share one. So there is a None after each
        ``WALK_ENTRIES`` entries: the caller can give the loop back before it goes on. What was deleted meanwhile is
        not found.
        """
        self.write_out()
        key_hash = self._hashes.of(topic, key)
        for file in reversed(tuple(self._files)):
            if file.overlaps(begin_ms, end_ms):
                try:
                    for log_offset in file.walk(key_hash, begin_ms=begin_ms, end_ms=end_ms):
                        yield log_offset
                        if file not in self._files:
                            # The files before it are gone, too.
                            return
                finally:
                    if file not in self._files[-1:]:
                        file.rest()
            if file.begin_time_ms < begin_ms:
                return

    def find(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """The first of these, in one go."""
        found = (each for each in self.walk(topic, key, begin_ms=begin_ms, end_ms=end_ms) if each is not None)
        return list(islice(found, max(count_max, 0)))

    # --- Life -----------------------------------------------------------------------------------------------------

    def drop_before(self, log_offset: int) -> list[Path]:
        """Forget the files whose records all lie before ``log_offset``, never the last; the caller removes them."""
        gone: list[Path] = []
        while len(self._files) > 1 and self._files[0].end_offset < log_offset:
            gone.append(self._files.pop(0).path)
        self._unsynced = [segment for segment in self._unsynced if segment.path not in gone]
        return gone

    def load(self) -> None:
        """Find the files that exist; changes nothing. Raises ``CorruptFile``."""
        for name, length_bytes, is_directory in self._disk.list(self.directory):
            # One of length 0 was being made when the process died.
            if is_directory or not length_bytes or not (name.isascii() and name.isdigit()):
                continue
            path = self.directory / name
            if length_bytes != self._file_bytes:
                raise CorruptFile(
                    f"{path} has {length_bytes} bytes, but maxHashSlotNum and maxIndexNum make {self._file_bytes}; set "
                    "them to what the store was made with, or move the index directory away: it is built again",
                    path=str(path),
                )
            self._files.append(self._file(path, self._disk.read_at(path, 0, INDEX_HEADER_BYTES)))
        self._taken = self.end_offset

    def ensure_file(self) -> None:
        """Have at least one file, even an empty one: none at all means that the index was thrown away."""
        if not self._files:
            self._next_file()

    def take_unsynced(self) -> list[Segment]:
        """Segments written to since they were last asked for, the current one included; the caller syncs them."""
        self.write_out()
        current = self._files[-1].segment if self._files else None
        segments = [segment for segment in self._unsynced if segment is not current]
        self._unsynced = []
        return [*segments, current] if current is not None else segments

    def close(self) -> None:
        """Have everything on the disk."""
        for segment in self.take_unsynced():
            segment.sync()
        self._files.clear()
