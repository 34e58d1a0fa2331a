"""Disks that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from ternmq.errors import DiskFull, StoreError
from ternmq.store.disk.base import PlainFile, Segment
from ternmq.store.disk.file_disk import FileDisk


class TroubledDisk(FileDisk):
    """A real disk that can be full, fail to sync, or sync only when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.fails_to_sync = False
        self.sync_count = 0
        #: Taken during each sync of a segment: a test that holds it makes the sync wait.
        self.gate = threading.Lock()
        #: Set when a sync has begun.
        self.is_syncing = threading.Event()

    def open_segment(self, path: Path, *, size: int, create: bool = False, writable: bool = True) -> Segment:  # type: ignore[override]
        if create and self.is_full:
            raise DiskFull("full")
        return TroubledSegment(self, super().open_segment(path, size=size, create=create, writable=writable))

    def open_file(self, path: Path, *, create_size: int | None = None) -> PlainFile:  # type: ignore[override]
        if create_size is not None and self.is_full and not path.exists():
            raise DiskFull("full")
        return TroubledFile(self, super().open_file(path, create_size=create_size))


class TroubledSegment:
    def __init__(self, disk: TroubledDisk, real: Segment) -> None:
        self._disk = disk
        self._real = real
        self.path, self.start, self.size, self.page, self.ready = (
            real.path,
            real.start,
            real.size,
            real.page,
            real.ready,
        )

    def zero(self, begin: int, end: int) -> None:
        self._check_space()
        self._real.zero(begin, end)

    def reserve(self, begin: int, end: int) -> None:
        self._check_space()
        self._real.reserve(begin, end)

    def remains(self, begin: int) -> Iterator[tuple[int, bytes]]:
        return self._real.remains(begin)

    def wipe(self, begin: int) -> None:
        self._real.wipe(begin)

    def sync(self) -> None:
        self._disk.is_syncing.set()
        with self._disk.gate:
            self._disk.sync_count += 1
            if self._disk.fails_to_sync:
                raise StoreError("cannot flush: Input/output error")
            self._real.sync()

    def _check_space(self) -> None:
        if self._disk.is_full:
            raise DiskFull("full")


class TroubledFile:
    def __init__(self, disk: TroubledDisk, real: PlainFile) -> None:
        self._disk = disk
        self._real = real

    def read(self, at: int, length_bytes: int) -> bytes:
        return self._real.read(at, length_bytes)

    def write(self, at: int, data: bytes | bytearray) -> None:
        if self._disk.is_full:
            raise DiskFull("full")
        self._real.write(at, data)

    def zero_from(self, at: int) -> None:
        self._real.zero_from(at)

    def close(self) -> None:
        self._real.close()
