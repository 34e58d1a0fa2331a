"""The store's one seam to the operating system (C1, C11).

A protocol, so that a simulation can hold segments in bytearrays and lose what was not synced;
``store.disk.file_disk`` is the real one.

A store to a page of a sparse mapping that finds the disk full does not raise: it kills the process (SIGBUS). Hence
the rule of this package: **no code writes to a mapped byte that was not reserved**. ``zero`` (write zeros ahead; the
page is then in memory, too, so that appends do not fault) and ``reserve`` (only claim the blocks) raise ``DiskFull``
instead. ``ready`` tells how far a log segment is prepared.

Queue files are many and small, so they are not mapped: ``PlainFile`` reads and writes at positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

PAGE_BYTES: Final = 4096


class FileEntry(NamedTuple):
    """One line of a directory's listing."""

    name: str
    length_bytes: int
    is_directory: bool


class DiskUsage(NamedTuple):
    """How full a file system is. Blocks that only root may use count neither as used nor as free."""

    used_bytes: int
    free_bytes: int

    @property
    def percent(self) -> int:
        """Rounded up, as RocketMQ compares it with its water marks."""
        total_bytes = self.used_bytes + self.free_bytes
        return -(-self.used_bytes * 100 // total_bytes) if total_bytes else 0


class Segment(Protocol):
    """A mapped file. ``page`` belongs to the store's thread; ``zero``, ``reserve`` and ``sync`` may run on another."""

    path: Path
    start: int
    size: int
    page: memoryview
    #: Bytes from the start that may be written to.
    ready: int

    def zero(self, begin: int, end: int) -> None:
        """Write zeros, so that these pages exist in memory and on disk. Raises ``DiskFull``."""
        ...

    def reserve(self, begin: int, end: int) -> None:
        """Claim the blocks of these bytes, whatever they hold. Raises ``DiskFull``."""
        ...

    def remains(self, begin: int) -> Iterator[tuple[int, bytes]]:
        """What is not zero from ``begin`` on: where it stands, and its bytes, in pieces."""
        ...

    def wipe(self, begin: int) -> None:
        """Turn what is not zero from ``begin`` on to zero, durably."""
        ...

    def sync(self) -> None:
        """Return when all that was written before is on the disk."""
        ...


class PlainFile(Protocol):
    """A file read and written at positions."""

    def read(self, at: int, length_bytes: int) -> bytes: ...

    def write(self, at: int, data: bytes | bytearray) -> None: ...

    def zero_from(self, at: int) -> None:
        """Turn all bytes from ``at`` to the end of the file to zero."""
        ...

    def close(self) -> None: ...


class HeldLock(Protocol):
    """A lock that is held."""

    def release(self) -> None: ...


class Disk(Protocol):
    """What the store asks of the operating system. All paths are absolute; directories are made when needed.

    What a method makes, writes, replaces or moves is durable when it returns, name and all; only ``open_file`` and
    ``remove`` leave the names to ``sync_names``, because queues are many.
    """

    def list(self, directory: Path) -> list[FileEntry]:
        """Files and directories by name; none if the directory does not exist."""
        ...

    def open_segment(self, path: Path, *, size: int, create: bool = False, writable: bool = True) -> Segment:
        """Map a file of exactly ``size`` bytes; its name is its start, if that is a number."""
        ...

    def open_file(self, path: Path, *, create_size: int | None = None) -> PlainFile:
        """Open a file; with ``create_size`` it is made, sparse, if it does not exist or has not its length yet."""
        ...

    def read(self, path: Path) -> bytes | None:
        """A small file's content, or None without such a file."""
        ...

    def read_at(self, path: Path, at: int, length_bytes: int) -> bytes:
        """A part of a file, without mapping it; fewer bytes at its end. Any thread may ask."""
        ...

    def write(self, path: Path, data: bytes) -> None:
        """Make or overwrite a small file in place."""
        ...

    def replace(self, path: Path, data: bytes) -> None:
        """Make or replace a small file, all or nothing, and durably."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file or a whole directory; what does not exist is no error."""
        ...

    def move(self, path: Path, to: Path) -> None:
        """Give a file another name, on the same disk."""
        ...

    def check_writable(self, path: Path) -> None:
        """Raise ``StoreError`` if a file or directory exists that this process may not write to; changes nothing."""
        ...

    def modified_ms(self, path: Path) -> int:
        """When a file was last written to, in ms since 1970. Any thread may ask."""
        ...

    def usage(self, path: Path) -> DiskUsage:
        """How full the disk is on which a path lies or would lie. Any thread may ask."""
        ...

    def boot_id(self) -> str:
        """Another one each time the machine starts; empty if it is not known."""
        ...

    def sync_file(self, path: Path) -> None:
        """``fdatasync`` a file by its name; one that is gone meanwhile needs none."""
        ...

    def sync_names(self, directory: Path) -> None:
        """Return when the names in a directory are on the disk: what was made is found, what was removed is gone."""
        ...

    def lock(self, path: Path) -> HeldLock:
        """Lock a file as RocketMQ does. Raises ``StoreLocked``."""
        ...
