"""Files of fixed size, and the disk that holds them: the store's one seam to the operating system (C1, C11).

A *segment* is a file of a size known beforehand, mapped into memory and named by its start: 20 digits, the offset
(of the log, or in bytes of a queue) of its first byte. It is made sparse at full length, because RocketMQ refuses
to open a file of any other. Hot code writes to ``segment.page`` and never calls through the seam.

A store to a page of a sparse mapping that finds the disk full does not raise: it kills the process (SIGBUS). Hence
the rule of this package: **nobody writes to a mapped byte that was not reserved**. ``zero`` (write zeros ahead; the
page is then in memory, too, so that appends do not fault) and ``reserve`` (only claim the blocks) raise ``DiskFull``
instead. ``ready`` tells how far a log segment is prepared.

Queue files are many and small, so they are not mapped: ``PlainFile`` reads and writes at positions.

Deleting a segment is unlink and forget. Views of it, in a reply on its way, keep the mapping alive; the last one
ends it. ``OSError`` becomes ``StoreError`` here and nowhere else in the store.

``Disk`` is a protocol so that a simulation can hold segments in bytearrays and lose what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ternmq.errors import CorruptFile, DiskFull, StoreError, StoreLocked

NAME_DIGITS: Final = 20
PAGE_BYTES: Final = 4096

_ZEROS: Final = memoryview(bytes(256 * 1024))
#: C's ``struct flock`` on Linux: kind, whence, start, length, process.
_FLOCK: Final = struct.Struct("@hhqqi0q")


class FileEntry(NamedTuple):
    """One line of a directory's listing."""

    name: str
    length_bytes: int
    is_directory: bool


class Usage(NamedTuple):
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


class Held(Protocol):
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

    def usage(self, path: Path) -> Usage:
        """How full the disk is on which a path lies or would lie. Any thread may ask."""
        ...

    def boot_id(self) -> str:
        """Another one each time the machine starts; empty if nobody knows."""
        ...

    def sync_file(self, path: Path) -> None:
        """``fdatasync`` a file by its name; one that is gone meanwhile needs none."""
        ...

    def sync_names(self, directory: Path) -> None:
        """Return when the names in a directory are on the disk: what was made is found, what was removed is gone."""
        ...

    def lock(self, path: Path) -> Held:
        """Lock a file as RocketMQ does. Raises ``StoreLocked``."""
        ...


def segment_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def segment_starts(
    disk: Disk, directory: Path, *, size: int, key: str, lenient: bool = False, begin: int = 0
) -> list[int]:
    """Starts of the segments of a directory, in order. See ``segment_files``."""
    return list(segment_files(disk, [directory], size=size, key=key, lenient=lenient, begin=begin))


def segment_files(
    disk: Disk, directories: Iterable[Path], *, size: int, key: str, lenient: bool = False, begin: int = 0
) -> dict[int, Path]:
    """Start and file of each segment in these directories, in order; ``CorruptFile`` if one cannot belong to the rest.

    ``key`` is the setting that fixes the size. Subdirectories are no business of ours, as in RocketMQ. A last file
    of length 0 was being made when the process died: it is left out here, and made anew when it is needed.

    ``lenient``: a power cut may have taken names or lengths that nobody had synced. What is found ends before the first
    file that is missing or empty; the caller can do without the rest, or asks for it by its ``begin``.
    """
    files = [(entry, directory) for directory in directories for entry in disk.list(directory)]
    files = sorted((entry, directory) for entry, directory in files if not entry.is_directory)
    if files and files[-1][0].length_bytes == 0:
        files.pop()
    found: dict[int, Path] = {}
    last = -1
    for (name, length_bytes, _), directory in files:
        path = directory / name
        if not (name.isascii() and name.isdigit()):
            raise CorruptFile(
                f"{path} is no segment: its name should be {NAME_DIGITS} digits; move it out of the store",
                path=str(path),
            )
        start = int(name)
        if start < begin:
            continue
        if lenient and (length_bytes == 0 or (found and start > last + size)):
            break
        if length_bytes != size:
            raise CorruptFile(
                f"{path} has {length_bytes} bytes, but {key} is {size}; set {key} to what the store was made with, or "
                "restore the file",
                path=str(path),
            )
        if start in found:
            raise CorruptFile(
                f"{path} and {found[start]} have the same name; only one of them can belong to the store, move the "
                "other away",
                path=str(path),
            )
        if start % size or (found and start != last + size):
            raise CorruptFile(
                f"{path} does not follow the file before it; restore what is missing between, or set {key} to what the "
                "store was made with",
                path=str(path),
            )
        found[start] = path
        last = start
    return found


# --- The real disk --------------------------------------------------------------------------------------------


class FileDisk:
    """The machine's file system. One that is not ``writable`` opens files for reading only: for tools."""

    __slots__ = ("_writable",)

    def __init__(self, *, writable: bool = True) -> None:
        self._writable = writable

    def list(self, directory: Path) -> list[FileEntry]:
        with _border(directory, "read"):
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
        with _border(path, "open"):
            if create:
                _make_directory(path.parent)
            # O_EXCL: to make a segment that exists would be a mistake of ours that zeroes records.
            how = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if create else 0) | os.O_CLOEXEC
            fd = os.open(path, how, 0o644)
            try:
                if create:
                    os.ftruncate(fd, size)
                    # First the length, then the name: else a power cut may leave files of length 0 among the others.
                    os.fsync(fd)
                    _sync_directory(path.parent)
                page = mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
            except BaseException:
                os.close(fd)
                if create:
                    path.unlink()
                raise
        return MappedSegment(path, size, fd, page)

    def open_file(self, path: Path, *, create_size: int | None = None) -> DescriptorFile:
        with _border(path, "open"):
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
        with _border(path, "read"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def read_at(self, path: Path, at: int, length_bytes: int) -> bytes:
        with _border(path, "read"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(fd, length_bytes, at)
            finally:
                os.close(fd)

    def write(self, path: Path, data: bytes) -> None:
        with _border(path, "write"):
            _make_directory(path.parent)
            is_new = not path.exists()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(fd, data, 0)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            if is_new:
                _sync_directory(path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        fresh = path.with_name(path.name + ".tmp")
        with _border(path, "write"):
            _make_directory(path.parent)
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            _sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        with _border(path, "remove"), contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def move(self, path: Path, to: Path) -> None:
        with _border(path, "move"):
            _make_directory(to.parent)
            path.replace(to)
            _sync_directory(to.parent)
            _sync_directory(path.parent)

    def check_writable(self, path: Path) -> None:
        with _border(path, "write"):
            # One call for each of ten thousand queues.
            if not os.access(path, os.W_OK, effective_ids=True) and path.exists():
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def modified_ms(self, path: Path) -> int:
        with _border(path, "look at"):
            return path.stat().st_mtime_ns // 1_000_000

    def usage(self, path: Path) -> Usage:
        with _border(path, "look at"):
            while True:
                try:
                    disk = os.statvfs(path)
                except FileNotFoundError:
                    if path == path.parent:
                        raise
                    path = path.parent  # not made yet
                else:
                    return Usage((disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def next_data(self, path: Path, at: int) -> int | None:
        """The first position of a file from ``at`` on that is not in a hole, which reads as zeros; None if none is."""
        with _border(path, "read"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _next_data(fd, at)
            finally:
                os.close(fd)

    def sync_file(self, path: Path) -> None:
        with _border(path, "flush"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def sync_names(self, directory: Path) -> None:
        with _border(directory, "flush"), contextlib.suppress(FileNotFoundError):
            _sync_directory(directory)

    def lock(self, path: Path) -> FileLock:
        return FileLock(path)


class MappedSegment:
    """A file and its mapping, closed when nobody holds it any more."""

    __slots__ = ("_fd", "page", "path", "ready", "size", "start")

    def __init__(self, path: Path, size: int, fd: int, mapped: mmap.mmap) -> None:
        self.path = path
        self.start = int(path.name) if path.name.isdigit() else 0
        self.size = size
        self.page = memoryview(mapped)
        self.ready = 0
        self._fd = fd

    def __del__(self) -> None:
        # Not a method that someone must call: the flush thread may be inside fdatasync while retention drops us.
        os.close(self._fd)

    def zero(self, begin: int, end: int) -> None:
        # pwrite, not a store to each page or MADV_POPULATE_WRITE: it reports a full disk as an error, works without
        # the GIL (madvise holds it), and the mapping sees the same page cache.
        with _border(self.path, "write"):
            while begin < end:
                begin += os.pwrite(self._fd, _ZEROS[: end - begin], begin)

    def reserve(self, begin: int, end: int) -> None:
        with _border(self.path, "write"):
            os.posix_fallocate(self._fd, begin, end - begin)

    def remains(self, begin: int) -> Iterator[tuple[int, bytes]]:
        with _border(self.path, "read"):
            # Only where something was written, and most of that is zero already: it was prepared and never used.
            while (begin_data := _next_data(self._fd, begin)) is not None:
                begin = os.lseek(self._fd, begin_data, os.SEEK_HOLE)
                for at in range(begin_data, begin, len(_ZEROS)):
                    data = os.pread(self._fd, min(len(_ZEROS), begin - at), at)
                    if data != bytes(len(data)):
                        yield at, data

    def wipe(self, begin: int) -> None:
        is_changed = False
        with _border(self.path, "write"):
            for at, data in self.remains(begin):
                os.pwrite(self._fd, _ZEROS[: len(data)], at)
                is_changed = True
            if is_changed:
                os.fdatasync(self._fd)

    def sync(self) -> None:
        # fdatasync on the descriptor writes the same dirty pages as mmap.flush() in half the time, and the file's
        # length never changes here.
        with _border(self.path, "flush"):
            os.fdatasync(self._fd)


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
            raise _ours(error, self._path, "read") from error

    def write(self, at: int, data: bytes | bytearray) -> None:
        try:
            done = os.pwrite(self._fd, data, at)
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], at + done)
        except OSError as error:
            raise _ours(error, self._path, "write") from error

    def zero_from(self, at: int) -> None:
        with _border(self._path, "write"):
            # Only where something was written: the file is sparse, and the holes read as zeros anyway.
            while (begin := _next_data(self._fd, at)) is not None:
                at = os.lseek(self._fd, begin, os.SEEK_HOLE)
                while begin < at:
                    begin += os.pwrite(self._fd, _ZEROS[: at - begin], begin)

    def close(self) -> None:
        os.close(self._fd)


def _next_data(fd: int, at: int) -> int | None:
    """The first position from ``at`` on that is not in a hole, or None."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


#: Directories locked by this process: fcntl locks do not exclude their own process, and closing any descriptor of
#: the file would drop the lock that another store here holds.
_held: Final[set[str]] = set()


_LOCK_TEXT: Final = b"lock"


class FileLock:
    """RocketMQ's ``lock`` file: an exclusive fcntl lock on its first byte, and the text ``lock``."""

    __slots__ = ("_fd", "_key")

    def __init__(self, path: Path) -> None:
        with _border(path, "lock"):
            _make_directory(path.parent)
            key = str(path.resolve())
            if key in _held:
                raise StoreLocked(str(path.parent))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                if os.pread(fd, len(_LOCK_TEXT) + 1, 0) != _LOCK_TEXT:
                    os.pwrite(fd, _LOCK_TEXT, 0)
            except BaseException as error:
                os.close(fd)
                if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLocked(str(path.parent)) from None
                raise
        self._fd = fd
        self._key = key
        _held.add(key)

    def release(self) -> None:
        _held.discard(self._key)
        os.close(self._fd)


def lock_holder(path: Path) -> int | None:
    """The process that holds this lock file, 0 if it is not known which; None if nobody does. Locks nothing itself."""
    if str(path.resolve()) in _held:
        # To open and close the file here would drop the lock.
        return os.getpid()
    with _border(path, "read"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        finally:
            os.close(fd)
    # A process that this one cannot see, in another container, is shown as -1 or 0.
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _make_directory(directory: Path) -> None:
    """Make a directory and those above it, each of them durably: one that is lost takes all that is in it along."""
    if not directory.exists():
        _make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    # A new name is on disk only when its directory is.
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _border(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _ours(error, path, doing) from error


def _ours(error: OSError, path: Path, doing: str) -> StoreError:
    """The error of the store for one of the system, with the cure where one is known."""
    what = f"cannot {doing} {path}: {error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFull(f"{what}; free some space, or lower fileReservedTime")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreError(f"{what}; let the broker's user read and write it")
        case errno.EMFILE | errno.ENFILE:
            return StoreError(f"{what}; raise the limit of open files (ulimit -n)")
        case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
            cure = "storePathRootDir must be a directory of the broker's own, and so must each of storePathCommitLog"
            return StoreError(f"{what}; {cure}")
        case _:
            return StoreError(f"{what}; look at the disk and the system's log")
