"""Where the log of a store directory is: a plain one, or that of a member of a Raft group (C1, P2).

A member has a directory ``dledger-n0`` below the root, named after its id, with the data files, their index and the
commit index. A plain log in front of its entries is part of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.errors import StoreError
from ternmq.store.disk.base import Disk
from ternmq.store.disk.segment import segment_name
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.plain_log import PlainLog
from ternmq.wire.layouts.raft_entry import (
    ENTRY_HEADER_BYTES,
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    unpack_entry_header,
    unpack_index_unit,
)
from ternmq.wire.layouts.raft_state import unpack_saved
from ternmq.wire.layouts.segment_form import PLAIN_FORM, RAFT_FORM, SegmentForm

_PREFIX: Final = "dledger-"


@dataclass(slots=True, frozen=True)
class LogPlace:
    """The directories of a log."""

    paths: LogPaths
    #: Directories with segments of a plain log, in front of the others.
    old: tuple[Path, ...] = ()
    #: What else a member of a Raft group has: ``index``, ``checkpoint``, ``currterm``.
    home: Path | None = None

    @property
    def form(self) -> SegmentForm:
        """The form of all segments but the old ones."""
        return PLAIN_FORM if self.home is None else RAFT_FORM

    def open(self, disk: Disk, *, segment_bytes: int) -> PlainLog:
        """The log, to be read. Raises ``CorruptFile``."""
        log = PlainLog(disk, self.paths, segment_bytes=segment_bytes, form=self.form, old=self.old)
        log.load()
        return log

    def committed(self, disk: Disk, log: PlainLog) -> int | None:
        """Position behind the entries that are known to be committed; None if all records of the log are."""
        if self.home is None or all(log.form_at(start) is PLAIN_FORM for start in log.starts):
            return None
        begin = max(log.begin, log.closed)
        index = unpack_saved(disk.read(self.home / "checkpoint") or b"").committed_index
        if index < 0:
            return begin
        at = index * INDEX_UNIT_BYTES
        path = self.home / "index" / segment_name(at - at % INDEX_FILE_BYTES)
        if not path.exists():
            return begin
        unit = disk.read_at(path, at % INDEX_FILE_BYTES, INDEX_UNIT_BYTES)
        place = unpack_index_unit(unit) if len(unit) == INDEX_UNIT_BYTES else None
        if place is None or place.index != index:
            return begin
        # The index is a hint: the entry itself must say the same.
        header = log.view(place.position, ENTRY_HEADER_BYTES) if place.position >= begin else None
        return place.end if header is not None and unpack_entry_header(header) == place else begin


def find_log(
    disk: Disk, root: Path, *, directories: tuple[Path, ...] = (), read_only: tuple[Path, ...] = ()
) -> LogPlace:
    """The log of the store in ``root``. ``directories`` are those of a plain log that is not in ``commitlog``.

    Raises ``StoreError`` if there are the logs of several members.
    """
    plain = directories or (root / "commitlog",)
    homes = [
        root / entry.name
        for entry in disk.list(root)
        if entry.is_directory and entry.name.startswith(_PREFIX) and disk.list(root / entry.name / "data")
    ]
    if len(homes) > 1:
        names = " and ".join(home.name for home in homes)
        raise StoreError(
            f"{root} has the logs of several members of Raft groups, {names}; move those away that are old"
        )
    if not homes:
        for entry in disk.list(root):
            if entry.name.startswith(_PREFIX) and disk.list(root / entry.name / "index"):
                raise StoreError(
                    f"{root / entry.name} has no data files: storePathDLedgerCommitLog names another directory; make "
                    f"{root / entry.name / 'data'} a link to that"
                )
        return LogPlace(LogPaths(plain, read_only))
    old = (*plain, *read_only)
    return LogPlace(LogPaths([homes[0] / "data"], old), old, homes[0])
