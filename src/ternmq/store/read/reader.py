"""Read-only scan of a store directory: all records in log order, no lock, nothing changed (U3, C11).

For tests and tools, beside a running broker or without one. The size of the segments is taken from the files, so a
directory can be read whose settings are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ternmq.errors import StoreError
from ternmq.store.disk.base import Disk, Segment
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import segment_files
from ternmq.store.log.place import find_log
from ternmq.store.log.walk import LogWalk
from ternmq.wire.layouts.segment_form import PLAIN_FORM, SegmentForm
from ternmq.wire.record import Record


class LogReader:
    """Iterates over the records of the log under ``root``. Bodies are views: copy what outlives the reader.

    Raises ``StoreError`` if there is no log, ``CorruptFile`` for a file that cannot belong to it.
    """

    def __init__(
        self,
        root: Path,
        *,
        directories: Sequence[Path] = (),
        log_offset: int | None = None,
        check_crc: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """``directories``: where the log is, if not in ``commitlog`` under ``root``."""
        disk = disk if disk is not None else FileDisk()
        place = find_log(disk, root, directories=tuple(directories))
        directories = place.paths.all
        entries = [entry for directory in directories for entry in disk.list(directory)]
        sizes = [entry.length_bytes for entry in entries if not entry.is_directory and entry.length_bytes]
        if not sizes:
            names = " and ".join(map(str, directories))
            raise StoreError(f"there is no log in {names}; give the directory that storePathRootDir names")
        size = sizes[0]
        files = segment_files(disk, directories, size=size, key="mappedFileSizeCommitLog")

        def segment_at(position: int) -> Segment | None:
            # One at a time: a directory may have more files than a process may open.
            path = files.get(position - position % size)
            return disk.open_segment(path, size=size, writable=False) if path is not None else None

        def form_at(position: int) -> SegmentForm:
            path = files.get(position - position % size)
            return PLAIN_FORM if path is not None and path.parent in place.old else place.form

        first = min(files) if log_offset is None else log_offset
        self._walk = LogWalk(segment_at, first, segment_bytes=size, form_at=form_at, check_crc=check_crc)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._walk)

    @property
    def position(self) -> int:
        """Log offset behind the last record that was read."""
        return self._walk.position

    @property
    def trouble(self) -> str:
        """Why the scan ended before the log's end, if it did."""
        return self._walk.trouble
