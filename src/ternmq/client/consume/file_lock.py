"""A lock that one process at a time can hold, and that goes with it when it dies; on every system Python runs on."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


class ProcessLock:
    """A lock on a file, which is made and stays. It also excludes other holders in the same process."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free; returns whether it is ours. Raises ``OSError`` when the file cannot be made."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(fd)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Give it back; nothing if it is not ours."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        # flock belongs to the descriptor, unlike lockf, which does not exclude its own process.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
