"""The segments of a log, and how they are cut into tasks; for the planner (U3).

A path is the directory of a store, which has a ``commitlog`` or the log of a Raft member, or a directory of segments.
Several stores are read in parallel; several directories of segments are one log that is spread over disks (C1), so that
a missing segment between them is noticed.

A log from which retention has deleted begins later than 0. After its end there may be segments that were created in
advance and contain zeros; the *tail* is the last one with records.

A segment has 1 GiB, too much for one task, so it is cut into *slices*: a task reads the records that begin
inside its slice, wherever they end. It finds the first of them itself (``files.borders``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark.sql.datasource import InputPartition

from ternmq.errors import StoreError
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import NAME_DIGITS, segment_files
from ternmq.store.inspect.sizes import usual_length
from ternmq.store.inspect.view import StoreView
from ternmq.store.log.place import find_log
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER_BYTES, unpack_entry_header
from ternmq.wire.layouts.segment_form import PLAIN_FORM, RAFT_FORM, SegmentForm
from ternmq.wire.record import HEAD_BYTES, head_store_time, record_size

KEY: Final = "mappedFileSizeCommitLog"

_ZEROS: Final = bytes(8)


@dataclass(slots=True, frozen=True)
class SegmentFile:
    """One file of a log; ``start`` is the log offset of its first byte."""

    path: Path
    start: int
    size_bytes: int
    #: The last one that has records: the log ends after the last of them.
    is_tail: bool = False
    #: In a store that was closed properly, the last record is complete.
    is_closed: bool = False
    #: What stands between the records.
    form: SegmentForm = PLAIN_FORM


class LogSlice(InputPartition):
    """The records of a segment that begin from ``begin`` up to ``end``, counted from its first byte. Sent to the
    executor that reads it."""

    def __init__(self, segment: SegmentFile, begin: int, end: int) -> None:
        super().__init__((segment, begin, end))
        self.segment = segment
        self.begin = begin
        self.end = end


def find_segments(
    paths: Sequence[Path], *, segment_bytes: int | None = None, lenient: bool = False
) -> list[SegmentFile]:
    """The segments of all logs, each log in order, up to its tail.

    Raises ``StoreError`` for a path without a log, ``CorruptFile`` for a file that does not match the others; with
    ``lenient`` such a file is read as far as possible.
    """
    disk = FileDisk(writable=False)
    stores = [path for path in paths if _is_directory(path / "commitlog") or any(path.glob("dledger-*/data"))]
    bare = [path for path in paths if path not in stores]
    for path in bare:
        _check_is_log(disk, path)
    found: list[SegmentFile] = []
    for path in stores:
        place = find_log(disk, path)
        segments = _of_log(disk, [*place.paths.all], segment_bytes, lenient=lenient)
        segments = [
            replace(segment, form=PLAIN_FORM if segment.path.parent in place.old else place.form)
            for segment in segments
        ]
        found += _up_to_tail(disk, segments, is_closed=not (path / "abort").exists())
    if bare:
        segments = _of_log(disk, bare, segment_bytes, lenient=lenient)
        segments = [replace(segment, form=_form_of(disk, segment.path)) for segment in segments]
        # Whether the broker stopped cleanly is unknown.
        found += _up_to_tail(disk, segments, is_closed=False)
    return found


def segments_of(view: StoreView) -> list[SegmentFile]:
    """The segments of an opened store, up to its tail."""
    size = view.sizes.segment
    segments = [SegmentFile(path, start, size, form=view.log.form_at(start)) for start, path in view.segments.items()]
    return _up_to_tail(FileDisk(writable=False), segments, is_closed=view.was_closed)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror}; give the user of the Spark processes read permission"
        ) from error


def _check_is_log(disk: FileDisk, path: Path) -> None:
    if not path.exists():
        raise StoreError(
            f"there is no directory {path} on this machine; the driver and the workers of Spark need the store under "
            "the same path"
        )
    if not any(name.isdigit() and len(name) == NAME_DIGITS for name, _, _ in disk.list(path)):
        raise StoreError(
            f"{path} is not a store: it contains neither a commitlog nor segments; give the directory of "
            "storePathRootDir, or those of storePathCommitLog"
        )


def _of_log(disk: FileDisk, directories: list[Path], size: int | None, *, lenient: bool) -> list[SegmentFile]:
    listed = [(entry, directory) for directory in directories for entry in disk.list(directory)]
    size = size or usual_length(entry for entry, _ in listed)
    if size is None:
        return []
    if not lenient:
        files = segment_files(disk, directories, size=size, key=KEY)
        return [SegmentFile(path, start, size) for start, path in files.items()]
    return sorted(
        (
            SegmentFile(directory / entry.name, int(entry.name), min(entry.length_bytes, size))
            for entry, directory in listed
            if entry.length_bytes and entry.name.isdigit() and len(entry.name) == NAME_DIGITS
        ),
        key=lambda segment: (segment.start, segment.path),
    )


def _form_of(disk: FileDisk, path: Path) -> SegmentForm:
    """The form of a segment, as its first entry or record shows it."""
    head = disk.read_at(path, 0, ENTRY_HEADER_BYTES)
    is_entry = len(head) == ENTRY_HEADER_BYTES and unpack_entry_header(head) is not None
    return RAFT_FORM if is_entry else PLAIN_FORM


def _up_to_tail(disk: FileDisk, segments: list[SegmentFile], *, is_closed: bool) -> list[SegmentFile]:
    while segments and disk.read_at(segments[-1].path, segments[-1].form.lead, len(_ZEROS)) in (_ZEROS, b""):
        segments.pop()
    if segments:
        last = segments[-1]
        segments[-1] = replace(last, is_tail=True, is_closed=is_closed)
    return segments


def between(segments: Sequence[SegmentFile], begin_ms: int | None, end_ms: int | None) -> list[SegmentFile]:
    """The segments that may have records of a time range, by the store times of their first records."""
    if begin_ms is None and end_ms is None:
        return list(segments)
    disk = FileDisk(writable=False)
    firsts = [_first_time_ms(disk, segment) for segment in segments]
    kept = []
    for number, segment in enumerate(segments):
        follows = not segment.is_tail and number + 1 < len(segments)
        next_ms = firsts[number + 1] if follows else None
        is_before = begin_ms is not None and next_ms is not None and next_ms < begin_ms
        first_ms = firsts[number]
        is_behind = end_ms is not None and first_ms is not None and first_ms >= end_ms
        if not is_before and not is_behind:
            kept.append(segment)
    return kept


def _first_time_ms(disk: FileDisk, segment: SegmentFile) -> int | None:
    lead = segment.form.lead
    head = disk.read_at(segment.path, lead, HEAD_BYTES)
    if len(head) < HEAD_BYTES or not record_size(head, segment.start + lead):
        return None
    return head_store_time(head)


def cut(segments: Iterable[SegmentFile], *, slice_bytes: int, until: int | None = None) -> list[LogSlice]:
    """Slices of about ``slice_bytes``, in log order; those of one segment have equal length. Records from the log
    offset ``until`` on are left out."""
    slices: list[LogSlice] = []
    for segment in segments:
        count = max(1, round(segment.size_bytes / slice_bytes))
        borders = [segment.size_bytes * number // count for number in range(count + 1)]
        limit = segment.size_bytes if until is None else until - segment.start
        slices += [
            LogSlice(segment, begin, min(end, limit)) for begin, end in itertools.pairwise(borders) if begin < limit
        ]
    return slices
