"""Where the log's segments are: in one directory, or spread over several disks (C1).

``storePathCommitLog=/disk1/log,/disk2/log`` names the directories. Segments are found wherever they lie; a new one goes
to the directory that its number picks, modulo how many there are, in the order of their names. So neighbours lie on
different disks, and one of them can be read while the next is written.

``readOnlyCommitLogStorePaths`` names directories that get no new segment: a disk that is to be emptied. Its segments
are read, and deleted when they are old, but for the log's last one not written to. Directories on disks that are nearly
full are left out while there is another.

RocketMQ looks at the read-only directories only if it has several others; here they always count.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ternmq.store.disk.segment import segment_name


class LogPaths:
    """The directories of one log. What is in both lists is read-only; at least one is not."""

    __slots__ = ("full", "read_only", "writable")

    def __init__(self, directories: Iterable[Path], read_only: Iterable[Path] = ()) -> None:
        self.read_only = frozenset(read_only)
        self.writable = tuple(sorted(set(directories) - self.read_only, key=_java_order))
        assert self.writable, "a log needs a directory to write to"
        #: Directories whose disks are nearly full; retention tells.
        self.full: frozenset[Path] = frozenset()

    @property
    def all(self) -> tuple[Path, ...]:
        return *self.writable, *sorted(self.read_only)

    def of_new(self, start: int, *, segment_bytes: int) -> Path:
        """The file of the segment that starts at ``start`` and is to be made. Any thread may ask."""
        full = self.full
        choice = [directory for directory in self.writable if directory not in full] or self.writable
        return choice[start // segment_bytes % len(choice)] / segment_name(start)

    def is_read_only(self, path: Path) -> bool:
        """Whether a segment's file lies in a directory that is not to be written to."""
        return path.parent in self.read_only


def _java_order(path: Path) -> bytes:
    # Java compares UTF-16 units. For the names that people give it is the order of the text.
    return str(path).encode("utf-16-be", "surrogatepass")
