"""The system under a store: its errors as ours, and what each system calls by another name.

``OSError`` becomes ``StoreError`` here and nowhere else in the store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ternmq.errors import DiskFull, StoreError

if hasattr(os, "fdatasync"):

    def sync_data(fd: int) -> None:
        """Bring the bytes of a file to the disk."""
        os.fdatasync(fd)

else:
    # macOS: fsync leaves them in the memory of the disk, which a power cut empties.
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)

    def sync_data(fd: int) -> None:
        """Bring the bytes of a file to the disk."""
        if _FULL_SYNC is None:
            os.fsync(fd)
        else:
            fcntl.fcntl(fd, _FULL_SYNC)


@contextlib.contextmanager
def border(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_store_error(error, path, doing) from error


def as_store_error(error: OSError, path: Path, doing: str) -> StoreError:
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
