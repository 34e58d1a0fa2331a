"""Cuts the end off a log that is closed, and keeps what it cut off (O1, C11).

For a slave whose log has records that its master does not have (``replication.handshake``), and for an operator. What
is cut off goes to a directory of its own, each record at its place, which has the form of a store: ``tern store dump``
reads it. The log then looks as after a power cut that took its end, so the next start brings queues, index and derived
parts back to the new end. What knows more than the log besides these are tables of the broker, such as offsets of
consumers; the note ``cut/tables`` asks the broker to correct them, and stays until it has.

Order, for a crash at any moment: a copy of what is cut off; the note, and ``abort``, so that the next start trusts no
page; segments from the last one down; the rest of the segment that stays. A cut that was interrupted is repeated.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.errors import StoreError
from ternmq.store.disk.base import Disk
from ternmq.store.disk.segment import segment_files
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.plain_log import PlainLog

log = logging.getLogger(__name__)

#: Where what was cut off is kept, within the store's directory.
CUT_DIRECTORY: Final = "cut"
_NOTE: Final = "tables"


@dataclass(slots=True, frozen=True)
class Cut:
    """What a cut took away."""

    log_offset: int
    cut_bytes: int
    messages: int
    #: Where it is kept; None if nothing was taken away.
    kept: Path | None


def cut_log(
    disk: Disk, root: Path, paths: LogPaths, *, segment_bytes: int, log_offset: int, keep: Path | None = None
) -> Cut:
    """Let the log of a closed store end at ``log_offset``, where a record ends. The caller holds the directory's lock.

    ``keep`` is a new directory for what is cut off; without it, one in ``cut``. Raises ``StoreError``: before anything
    is changed if the log cannot end there.
    """
    segments = segment_files(disk, paths.all, size=segment_bytes, key="mappedFileSizeCommitLog")
    begin, room_end = min(segments, default=0), max(segments, default=0) + segment_bytes
    if not segments or not begin <= log_offset <= room_end:
        span = f"its files reach from {begin} to {room_end}" if segments else "it has no files"
        raise StoreError(f"the log in {root} cannot be cut at {log_offset}: {span}")
    if log_offset == begin > 0:
        raise StoreError(
            f"the log in {root} begins at {begin}, so nothing of it would be left; empty the directory instead"
        )
    end, messages = _look(disk, paths, segment_bytes, log_offset)
    changed = {start: path for start, path in segments.items() if start + segment_bytes > log_offset}
    if not any(_remains(disk, path, log_offset - start, segment_bytes) for start, path in changed.items()):
        return Cut(log_offset, 0, 0, None)
    kept = keep or _new_directory(disk, root / CUT_DIRECTORY, log_offset)
    if disk.list(kept):
        raise StoreError(f"{kept} is not empty; choose another directory for what is cut off")
    for start, path in changed.items():
        _copy(disk, path, kept / "commitlog" / path.name, log_offset - start, segment_bytes)
    for directory in (kept / "commitlog", *list((kept / "commitlog").parents)[:3]):
        disk.sync_names(directory)
    # From here on the log changes.
    disk.replace(root / CUT_DIRECTORY / _NOTE, f"{log_offset}\n{kept}\n".encode())
    disk.replace(root / "abort", b"\n\n")
    for start, path in sorted(changed.items(), reverse=True):
        if start >= log_offset:
            # One by one: a power cut must not bring a later one back without those before it.
            disk.remove(path)
            disk.sync_names(path.parent)
        else:
            disk.open_segment(path, size=segment_bytes).wipe(log_offset - start)
    log.warning(
        "cut %d bytes with %d messages off the log in %s, which ends at %d now; they are kept in %s "
        "(`tern store dump` shows them)",
        end - log_offset,
        messages,
        root,
        log_offset,
        kept,
    )
    return Cut(log_offset, end - log_offset, messages, kept)


def tables_to_correct(disk: Disk, root: Path) -> bool:
    """Whether the log was cut, and the broker's tables may still know more than it has."""
    return disk.read(root / CUT_DIRECTORY / _NOTE) is not None


def tables_corrected(disk: Disk, root: Path) -> None:
    """The broker's tables are corrected, on the disk."""
    disk.remove(root / CUT_DIRECTORY / _NOTE)
    disk.sync_names(root / CUT_DIRECTORY)


def _look(disk: Disk, paths: LogPaths, segment_bytes: int, log_offset: int) -> tuple[int, int]:
    """Where the log ends, and how many records it has from ``log_offset`` on. Raises ``StoreError`` if none ends there.

    The walk begins with the segment of ``log_offset``. One that ends before it has nothing to cut, or damage.
    """
    commit_log = PlainLog(disk, paths, segment_bytes=segment_bytes)
    try:
        commit_log.load()
        walk = commit_log.walk(log_offset - log_offset % segment_bytes, check_crc=False)
        messages, border = 0, walk.position
        for record in walk:
            if record.log_offset >= log_offset:
                messages += 1
            elif walk.position <= log_offset:
                border = walk.position
        if border != log_offset and log_offset % segment_bytes:
            raise StoreError(f"no record ends at log offset {log_offset}; the last one before it ends at {border}")
        return max(walk.position, log_offset), messages
    finally:
        commit_log.close()


def _remains(disk: Disk, path: Path, at: int, segment_bytes: int) -> bool:
    """Whether anything stands in a segment from ``at`` on."""
    segment = disk.open_segment(path, size=segment_bytes, writable=False)
    return next(segment.remains(max(at, 0)), None) is not None


def _copy(disk: Disk, path: Path, to: Path, at: int, segment_bytes: int) -> None:
    """Copy what stands in a segment from ``at`` on, each byte to its place."""
    file = disk.open_file(to, create_size=segment_bytes)
    try:
        for place, data in disk.open_segment(path, size=segment_bytes, writable=False).remains(max(at, 0)):
            file.write(place, data)
    finally:
        file.close()
    disk.sync_file(to)


def _new_directory(disk: Disk, parent: Path, log_offset: int) -> Path:
    """A name that is not used; of a cut that was repeated there are several."""
    used = {entry.name for entry in disk.list(parent)}
    number = next(number for number in range(1, len(used) + 2) if f"{log_offset}-{number}" not in used)
    return parent / f"{log_offset}-{number}"
