"""File system operations of a lake: durable names, and the exchange of two directories (U4)."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ternmq.files import sync_directory
from ternmq.spark.source import options

#: Constants of the kernel: names relative to the current directory, and "exchange the two names".
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT_SWAP: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def local_path(path: str | Path) -> Path:
    """A path of a file system; raises ``ConfigError`` for other addresses that Spark supports."""
    cure = "a lake needs renames and locks, so mount it and give that path"
    return options.local_path(str(path), cure=cure).absolute()


def sync_directories(paths: Iterable[Path], *, up_to: Path) -> None:
    """Make the names of files, and of the directories above them, durable."""
    for directory in {parent for path in paths for parent in path.parents if parent.is_relative_to(up_to)}:
        if directory.exists():
            sync_directory(directory)


def swap(new: Path, live: Path) -> None:
    """Exchange two directories. If the file system cannot do that, the old one is removed before the new one is moved:
    readers then miss its rows for a moment, which is better than reading them twice."""
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
