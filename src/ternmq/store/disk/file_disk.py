"""The machine's file system under a store (C1, C11).

Deleting a segment is unlink and forget. Views of it, in a reply on its way, keep the mapping alive; the last one
ends it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ternmq.files import make_directory, sync_directory
from ternmq.store.disk.base import DiskUsage, FileEntry
from ternmq.store.disk.file_lock import StoreLock
from ternmq.store.disk.system import as_store_error, border, sync_data

_ZEROS: Final = memoryview(bytes(256 * 1024))


class FileDisk:
    """The machine's file system. One that is not ``writable`` opens files for reading only: for tools."""

    __slots__ = ("_writable",)

    def __init__(self, *, writable: bool = True) -> None:
        self._writable = writable

    def list(self, directory: Path) -> list[FileEntry]:
        with border(directory, "read"):
            try:
                with os.scandir(directory) as entries:
                    found = [
                        FileEntry(entry.name, 0, True)
                        if entry.is_dir()
                        else FileEntry(entry.name, entry.stat().st_size, False)
                        for entry in entries
                    ]
            except FileNotFoundError:
                return []
        found.sort()
        return found

    def open_segment(self, path: Path, *, size: int, create: bool = False, writable: bool = True) -> MappedSegment:
        writable = writable and self._writable
        assert writable or not create, "this disk is only read"
        with border(path, "open"):
            if create:
                make_directory(path.parent)
            # O_EXCL: to make a segment that exists would be a mistake of ours that zeroes records.
            how = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if create else 0) | os.O_CLOEXEC
            fd = os.open(path, how, 0o644)
            try:
                if create:
                    os.ftruncate(fd, size)
                    # First the length, then the name: else a power cut may leave files of length 0 among the others.
                    os.fsync(fd)
                    sync_directory(path.parent)
                page = mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
            except BaseException:
                os.close(fd)
                if create:
                    path.unlink()
                raise
        return MappedSegment(path, size, fd, page)

    def open_file(self, path: Path, *, create_size: int | None = None) -> DescriptorFile:
        with border(path, "open"):
            try:
                fd = os.open(path, (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC)
            except FileNotFoundError:
                if create_size is None:
                    raise
                path.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # Also when the file exists: its maker may have died before it got its length.
            if create_size is not None and os.fstat(fd).st_size < create_size:
                os.ftruncate(fd, create_size)
        return DescriptorFile(path, fd)

    def read(self, path: Path) -> bytes | None:
        with border(path, "read"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def read_at(self, path: Path, at: int, length_bytes: int) -> bytes:
        with border(path, "read"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(fd, length_bytes, at)
            finally:
                os.close(fd)

    def write(self, path: Path, data: bytes) -> None:
        with border(path, "write"):
            make_directory(path.parent)
            is_new = not path.exists()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(fd, data, 0)
                sync_data(fd)
            finally:
                os.close(fd)
            if is_new:
                sync_directory(path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        fresh = path.with_name(path.name + ".tmp")
        with border(path, "write"):
            make_directory(path.parent)
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        with border(path, "remove"), contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def move(self, path: Path, to: Path) -> None:
        with border(path, "move"):
            make_directory(to.parent)
            path.replace(to)
            sync_directory(to.parent)
            sync_directory(path.parent)

    def check_writable(self, path: Path) -> None:
        with border(path, "write"):
            # One call for each of ten thousand queues.
            if not os.access(path, os.W_OK, effective_ids=True) and path.exists():
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def modified_ms(self, path: Path) -> int:
        with border(path, "look at"):
            return path.stat().st_mtime_ns // 1_000_000

    def usage(self, path: Path) -> DiskUsage:
        with border(path, "look at"):
            while True:
                try:
                    disk = os.statvfs(path)
                except FileNotFoundError:
                    if path == path.parent:
                        raise
                    path = path.parent  # not made yet
                else:
                    return DiskUsage((disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def next_data(self, path: Path, at: int) -> int | None:
        """The first position of a file from ``at`` on that is not in a hole, which reads as zeros; None if none is."""
        with border(path, "read"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _next_data(fd, at)
            finally:
                os.close(fd)

    def sync_file(self, path: Path) -> None:
        with border(path, "flush"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            try:
                sync_data(fd)
            finally:
                os.close(fd)

    def sync_names(self, directory: Path) -> None:
        with border(directory, "flush"), contextlib.suppress(FileNotFoundError):
            sync_directory(directory)

    def lock(self, path: Path) -> StoreLock:
        return StoreLock(path)


class MappedSegment:
    """A file and its mapping, closed when the last reference to it ends."""

    __slots__ = ("_fd", "page", "path", "ready", "size", "start")

    def __init__(self, path: Path, size: int, fd: int, mapped: mmap.mmap) -> None:
        self.path = path
        self.start = int(path.name) if path.name.isdigit() else 0
        self.size = size
        self.page = memoryview(mapped)
        self.ready = 0
        self._fd = fd

    def __del__(self) -> None:
        # Not a method that has to be called: the flush thread may be inside fdatasync while retention drops us.
        os.close(self._fd)

    def zero(self, begin: int, end: int) -> None:
        # pwrite, not a store to each page or MADV_POPULATE_WRITE: it reports a full disk as an error, works without
        # the GIL (madvise holds it), and the mapping sees the same page cache.
        with border(self.path, "write"):
            while begin < end:
                begin += os.pwrite(self._fd, _ZEROS[: end - begin], begin)

    def reserve(self, begin: int, end: int) -> None:
        with border(self.path, "write"):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, begin, end - begin)
            else:
                self._fill_holes(begin, end)

    def _fill_holes(self, begin: int, end: int) -> None:
        """What ``posix_fallocate`` does, where it is missing (macOS). No other thread writes to what is reserved."""
        while begin < end:
            data = _next_data(self._fd, begin)
            hole_end = end if data is None else min(data, end)
            while begin < hole_end:
                begin += os.pwrite(self._fd, _ZEROS[: hole_end - begin], begin)
            if begin < end:
                begin = os.lseek(self._fd, begin, os.SEEK_HOLE)

    def remains(self, begin: int) -> Iterator[tuple[int, bytes]]:
        with border(self.path, "read"):
            # Only where something was written, and most of that is zero already: it was prepared and never used.
            while (begin_data := _next_data(self._fd, begin)) is not None:
                begin = os.lseek(self._fd, begin_data, os.SEEK_HOLE)
                for at in range(begin_data, begin, len(_ZEROS)):
                    data = os.pread(self._fd, min(len(_ZEROS), begin - at), at)
                    if data != bytes(len(data)):
                        yield at, data

    def wipe(self, begin: int) -> None:
        is_changed = False
        with border(self.path, "write"):
            for at, data in self.remains(begin):
                os.pwrite(self._fd, _ZEROS[: len(data)], at)
                is_changed = True
            if is_changed:
                sync_data(self._fd)

    def sync(self) -> None:
        # fdatasync on the descriptor writes the same dirty pages as mmap.flush() in half the time, and the file's
        # length never changes here.
        with border(self.path, "flush"):
            sync_data(self._fd)


class DescriptorFile:
    """A file by its descriptor."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def read(self, at: int, length_bytes: int) -> bytes:
        # No context manager on the way of every read from a queue: it would cost as much as the read.
        try:
            return os.pread(self._fd, length_bytes, at)
        except OSError as error:
            raise as_store_error(error, self._path, "read") from error

    def write(self, at: int, data: bytes | bytearray) -> None:
        try:
            done = os.pwrite(self._fd, data, at)
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], at + done)
        except OSError as error:
            raise as_store_error(error, self._path, "write") from error

    def zero_from(self, at: int) -> None:
        with border(self._path, "write"):
            # Only where something was written: the file is sparse, and the holes read as zeros anyway.
            while (begin := _next_data(self._fd, at)) is not None:
                at = os.lseek(self._fd, begin, os.SEEK_HOLE)
                while begin < at:
                    begin += os.pwrite(self._fd, _ZEROS[: at - begin], begin)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Who only looks at a store closes nothing.
        self.close()


def _next_data(fd: int, at: int) -> int | None:
    """The first position from ``at`` on that is not in a hole, or None."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
