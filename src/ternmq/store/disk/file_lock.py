"""The lock on a store directory, as RocketMQ takes it (C11)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path
from typing import Final

from ternmq.errors import StoreLocked
from ternmq.files import make_directory
from ternmq.store.disk.system import border

#: C's ``struct flock`` on Linux: kind, whence, start, length, process. On macOS: start, length, process, kind, whence.
_FLOCK: Final = struct.Struct("@qqihh" if sys.platform == "darwin" else "@hhqqi0q")

_LOCK_TEXT: Final = b"lock"

#: Directories locked by this process: fcntl locks do not exclude their own process, and closing any descriptor of
#: the file would drop the lock that another store here holds.
_held: Final[set[str]] = set()


class StoreLock:
    """RocketMQ's ``lock`` file: an exclusive fcntl lock on its first byte, and the text ``lock``."""

    __slots__ = ("_fd", "_key")

    def __init__(self, path: Path) -> None:
        with border(path, "lock"):
            make_directory(path.parent)
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
    """The process that holds this lock file, 0 if it is not known which; None if none does. Locks nothing itself."""
    if str(path.resolve()) in _held:
        # To open and close the file here would drop the lock.
        return os.getpid()
    with border(path, "read"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            kind, pid = _holder(fd)
        finally:
            os.close(fd)
    # A process that this one cannot see, in another container, is shown as -1 or 0.
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _holder(fd: int) -> tuple[int, int]:
    """The kind of the lock that would be in the way of ours, and its process."""
    if sys.platform == "darwin":
        _, _, pid, kind, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(0, 1, 0, fcntl.F_WRLCK, 0)))
    else:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0)))
    return kind, pid
