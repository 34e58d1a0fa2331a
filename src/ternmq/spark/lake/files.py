"""What a lake needs of a file system: names that are on the disk, and directories that change places (U4)."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ternmq.files import sync_directory
from ternmq.spark.source import options

#: Of the kernel: names in the current directory, and «let the two names change places».
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT_SWAP: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def local_path(path: str | Path) -> Path:
    """A path of a file system; raises ``ConfigError`` for others that Spark knows."""
    cure = "a lake needs renames and locks, so mount it and give that path"
    return options.local_path(str(path), cure=cure).absolute()


def sync_directories(paths: Iterable[Path], *, up_to: Path) -> None:
    """Have the names of files on the disk, and those of the directories that they are in."""
    for directory in {parent for path in paths for parent in path.parents if parent.is_relative_to(up_to)}:
        if directory.exists():
            sync_directory(directory)


def swap(new: Path, live: Path) -> None:
    """Let two directories change places. Where the file system cannot, the old one goes before the new one comes:
    readers then miss its rows for a moment, as ever better than seeing them twice."""
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is not None and live.exists():
        if exchange(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(live), _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in _CANNOT_SWAP:
            raise OSError(number, os.strerror(number), str(live))
    if live.exists():
        live.rename(new.with_name("old"))
    new.rename(live)
