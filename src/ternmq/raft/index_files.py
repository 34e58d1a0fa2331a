"""The index of a Raft log: where each entry is, in DLedger's files (P2; ``wire.layouts.raft_entry``).

The unit of entry *i* is at byte 32 · i, so the first file of a log whose first entry is not number 0 begins with a
hole, or is not there. The newest units wait in memory until there are 1,024 of them.

The index is derived from the data files and only a hint: a caller compares what it finds with the entry's header
(``raft.places``). So nothing here is synced with the entries, and a lost or wrong unit costs time, no data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ternmq.errors import StoreError
from ternmq.store.disk.base import Disk, PlainFile
from ternmq.store.disk.segment import NAME_DIGITS, segment_name
from ternmq.wire.layouts.raft_entry import (
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    EntryPlace,
    pack_index_unit,
    unpack_index_unit,
)

_TAIL_BYTES: Final = 1024 * INDEX_UNIT_BYTES
#: Bytes that may wait in memory where the disk is full. More are left out, and derived again when they are needed.
_LATE_BYTES_MAX: Final = 64 * _TAIL_BYTES
#: Files that stay open: the one that is written to, and some for followers that lag behind.
_OPEN_MAX: Final = 4


class EntryIndex:
    """The index files of one log. Belongs to the store's thread."""

    def __init__(self, disk: Disk, directory: Path, *, file_bytes: int = INDEX_FILE_BYTES) -> None:
        assert file_bytes % INDEX_UNIT_BYTES == 0, "a unit lies in one file"
        self._disk = disk
        self.directory = directory
        self._file_bytes = file_bytes
        #: Starts in bytes of the files that exist.
        self._starts: set[int] = set()
        self._open: dict[int, PlainFile] = {}
        #: Units that are not written out, and the index of the first.
        self._tail = bytearray()
        self._tail_index = 0
        self._unsynced: set[int] = set()
        self._has_new_names = False
        #: Whether units wait in memory because they could not be written.
        self.is_late = False

    def load(self) -> None:
        """Find the files; changes nothing."""
        self._starts = {
            int(name)
            for name, length_bytes, _ in self._disk.list(self.directory)
            if length_bytes == self._file_bytes and name.isascii() and name.isdigit() and len(name) == NAME_DIGITS
        }

    def tidy(self) -> None:
        """Remove files that have not their length, such as one that was being made when the process died."""
        for name, length_bytes, is_directory in self._disk.list(self.directory):
            if not is_directory and length_bytes != self._file_bytes:
                self._disk.remove(self.directory / name)

    # --- Reading ----------------------------------------------------------------------------------------------------

    def get(self, index: int) -> EntryPlace | None:
        """What the index has of an entry; None if it has nothing."""
        in_tail = (index - self._tail_index) * INDEX_UNIT_BYTES
        if 0 <= in_tail < len(self._tail):
            return unpack_index_unit(self._tail, in_tail)
        at = index * INDEX_UNIT_BYTES
        start = at - at % self._file_bytes
        if start not in self._starts:
            return None
        try:
            data = self._file(start).read(at - start, INDEX_UNIT_BYTES)
        except StoreError:
            return None
        place = unpack_index_unit(data) if len(data) == INDEX_UNIT_BYTES else None
        return place if place is not None and place.index == index else None

    # --- Writing ----------------------------------------------------------------------------------------------------

    def add(self, place: EntryPlace) -> None:
        """Add the unit of an entry: usually behind the last one that was added. Never raises."""
        self.extend(place.index, pack_index_unit(place))

    def extend(self, index: int, units: bytes) -> None:
        """Add the units of entries that follow each other, the first of which is ``index``. Never raises."""
        tail = self._tail
        if index != self._tail_index + len(tail) // INDEX_UNIT_BYTES or len(tail) >= _LATE_BYTES_MAX:
            if tail:
                self.try_write_out()
            self._tail = tail = bytearray()
            self._tail_index = index
        tail += units
        if len(tail) >= _TAIL_BYTES and not self.is_late:
            self.try_write_out()

    def try_write_out(self) -> None:
        """Write the units in memory to their files; without success ``is_late`` tells."""
        try:
            self.write_out()
        except StoreError:
            self.is_late = True

    def write_out(self) -> None:
        """Write the units in memory to their files. Raises ``DiskFull``; then they stay in memory."""
        tail, done = self._tail, 0
        at = self._tail_index * INDEX_UNIT_BYTES
        while done < len(tail):
            start = at - at % self._file_bytes
            count = min(len(tail) - done, start + self._file_bytes - at)
            if start not in self._starts:
                self._make(start)
            self._file(start).write(at - start, tail[done : done + count])
            self._unsynced.add(start)
            at += count
            done += count
        self._tail_index += len(tail) // INDEX_UNIT_BYTES
        self._tail = bytearray()
        self.is_late = False

    def take_unsynced(self) -> tuple[list[Path], list[Path]]:
        """Files written to since this was last asked, and directories with new names."""
        paths = [self._path(start) for start in sorted(self._unsynced)]
        names = [self.directory] if self._has_new_names else []
        self._unsynced.clear()
        self._has_new_names = False
        return paths, names

    # --- Cutting ----------------------------------------------------------------------------------------------------

    def cut(self, index: int) -> None:
        """Forget the units from ``index`` on; zeros are there afterwards. Raises ``StoreError``."""
        keep = max(index - self._tail_index, 0) * INDEX_UNIT_BYTES
        del self._tail[keep:]
        at = index * INDEX_UNIT_BYTES
        if not self._tail:
            self._tail_index = index
        for start in sorted(self._starts, reverse=True):
            if start >= at and (start or not index):
                self._drop(start)
            elif start + self._file_bytes > at:
                self._file(start).zero_from(at - start)
                self._unsynced.add(start)

    def drop_before(self, index: int) -> None:
        """Delete the files that have only units of entries before ``index``. Raises ``StoreError``."""
        for start in sorted(self._starts):
            if start + self._file_bytes <= index * INDEX_UNIT_BYTES:
                self._drop(start)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    # --- Files ------------------------------------------------------------------------------------------------------

    def _path(self, start: int) -> Path:
        return self.directory / segment_name(start)

    def _make(self, start: int) -> None:
        self._disk.open_file(self._path(start), create_size=self._file_bytes).close()
        self._starts.add(start)
        self._has_new_names = True

    def _file(self, start: int) -> PlainFile:
        file = self._open.pop(start, None)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()
            file = self._disk.open_file(self._path(start))
        # A dict keeps its order of insertion: the last one used is the last to go.
        self._open[start] = file
        return file

    def _drop(self, start: int) -> None:
        file = self._open.pop(start, None)
        if file is not None:
            file.close()
        self._starts.discard(start)
        self._unsynced.discard(start)
        self._disk.remove(self._path(start))
        self._has_new_names = True
