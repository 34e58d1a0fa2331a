"""Segments: files of fixed size, named by their start (C1).

A *segment* is a file of a size known beforehand, mapped into memory and named by its start: 20 digits, the offset
(of the log, or in bytes of a queue) of its first byte. It is made sparse at full length, because RocketMQ refuses
to open a file of any other. Hot code writes to ``segment.page`` and never calls through the seam (``store.disk.base``).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ternmq.errors import CorruptFile
from ternmq.store.disk.base import Disk

NAME_DIGITS: Final = 20


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

    ``lenient``: a power cut may have taken names or lengths that were not synced. What is found ends before the first
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
