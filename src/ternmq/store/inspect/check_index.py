"""Whether the index says what the log says, and whether its chains hold (C4, C5).

Entries lie in the order of the log, so both are read side by side: each key of each record is expected next. A key
without an entry is *missing*: nobody finds the message by it. An entry without a key is *extra*; it costs a search
nothing but time, since whoever finds it looks at the record.

A search goes from a slot to its newest entry and on from entry to entry. So while entries pass by, a table is kept of
what every slot should hold: each entry must name the one that its slot held before, and in the end the file's slots
must be equal to the table. A chain that is broken hides all that is behind it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ternmq.store.config import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES
from ternmq.store.inspect.faults import REBUILD, Fault, Tally, plural
from ternmq.store.inspect.sizes import INDEX_ENTRY, INDEX_HEADER
from ternmq.store.inspect.view import StoreView
from ternmq.store.key_hash import IndexEntry

#: Entries unpacked at a time.
_CHUNK: Final = 4096
#: No entry: behind every record.
_NONE: Final = (0, sys.maxsize)


class IndexCheck:
    """Give it all entries that the log makes, in order, with ``expect``; then ask for the ``faults``."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._faults: list[Fault] = []
        #: Log offsets of keys without an entry, in between and behind the last one; and of entries without a key.
        self._missing = Tally()
        self._behind = Tally()
        self._extra = Tally()
        self._entries = self._read()
        self._entry = next(self._entries, _NONE)
        self.entries = 0

    def expect(self, wanted: list[IndexEntry]) -> None:
        """The next entries, in log order."""
        entry, entries = self._entry, self._entries
        for key_hash, log_offset, _ in wanted:
            while entry[1] < log_offset:
                self._add_extra(entry[1])
                entry = next(entries, _NONE)
            if entry == (key_hash, log_offset):
                entry = next(entries, _NONE)
            else:
                (self._missing if entry is not _NONE else self._behind).add(log_offset)
        self._entry = entry

    def _add_extra(self, log_offset: int) -> None:
        # What the log has forgotten stays in the index until its file goes.
        if log_offset >= self._view.log.min_offset:
            self._extra.add(log_offset)

    def faults(self) -> list[Fault]:
        """What is wrong, once the log was read to its end."""
        while self._entry is not _NONE:
            self._add_extra(self._entry[1])
            self._entry = next(self._entries, _NONE)
        directory = str(self._view.root / "index")
        if self._behind.count and not self._view.index_files:
            self._faults.append(
                Fault(
                    kind="index-none",
                    path=directory,
                    at=0,
                    count=self._behind.count,
                    what=f"there is no index, and {plural(self._behind.count, 'key')} in the log",
                    cost="messages are not found by key until TernMQ starts here and builds it, or never if "
                    "messageIndexEnable is off",
                    cure="",
                    is_note=True,
                )
            )
        else:
            self._add_missing(directory)
        if self._extra.count:
            entries = plural(self._extra.count, "entry", "entries")
            self._faults.append(
                Fault(
                    kind="index-extra",
                    path=directory,
                    at=self._extra.first,
                    count=self._extra.count,
                    what=f"{entries}, the first of log offset {self._extra.first:,}, belong to no key in the log",
                    cost="none but the time to find that out",
                    cure="",
                    is_note=True,
                )
            )
        return self._faults

    def _add_missing(self, directory: str) -> None:
        for missing, is_newest in ((self._missing, False), (self._behind, True)):
            lags = is_newest and self._view.may_lag
            if missing.count:
                keys = plural(missing.count, "key")
                self._faults.append(
                    Fault(
                        kind="index-missing",
                        path=directory,
                        at=missing.first,
                        count=missing.count,
                        what=f"{keys} of records, from log offset {missing.first:,} on, have no entry",
                        cost="none, the next start adds them" if lags else "these messages are not found by key",
                        cure="" if lags else REBUILD,
                        is_note=lags,
                    )
                )

    # --- The files ------------------------------------------------------------------------------------------------

    def _read(self) -> Iterator[tuple[int, int]]:
        """Hash and log offset of all entries; checks each file on the way."""
        sizes = self._view.sizes
        for path, length_bytes in self._view.index_files:
            if length_bytes == sizes.index_file:
                yield from self._read_file(path)
            else:
                self._faults.append(
                    Fault(
                        kind="file-length",
                        path=str(path),
                        at=length_bytes,
                        what=f"the file has {length_bytes:,} bytes, not {sizes.index_file:,} as the others",
                        cost="a broker does not start on it; messages are not found by key",
                        cure=f"remove it, then {REBUILD}",
                    )
                )

    def _read_file(self, path: Path) -> Iterator[tuple[int, int]]:
        sizes = self._view.sizes
        slot_count = sizes.index_slots
        page = self._view.disk.open_segment(path, size=sizes.index_file, writable=False).page
        _, _, begin_offset, end_offset, _, count = INDEX_HEADER.unpack_from(page)
        count = min(max(count, 1), sizes.index_entries)
        entries_at = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES
        newest = array("i", bytes(INDEX_SLOT_BYTES * slot_count))
        broken = broken_at = 0
        first = last = -1
        for begin in range(1, count, _CHUNK):
            end = min(begin + _CHUNK, count)
            data = page[entries_at + begin * INDEX_ENTRY_BYTES : entries_at + end * INDEX_ENTRY_BYTES]
            for number, (key_hash, log_offset, _, previous) in enumerate(INDEX_ENTRY.iter_unpack(data), begin):
                slot = key_hash % slot_count
                if previous != newest[slot]:
                    broken += 1
                    broken_at = broken_at or number
                newest[slot] = number
                last = log_offset
                if first < 0:
                    first = log_offset
                yield key_hash, log_offset
        self.entries += count - 1
        if broken:
            self._faults.append(
                self._broken(path, broken_at, broken, "entry", "entries", "name the wrong previous one")
            )
        wrong_slots = _differing(newest, page[INDEX_HEADER_BYTES:entries_at])
        if wrong_slots:
            what = "do not lead to their newest entry"
            self._faults.append(self._broken(path, 0, wrong_slots, "slot", "slots", what))
        if count > 1 and (first, last) != (begin_offset, end_offset):
            self._faults.append(
                Fault(
                    kind="index-header",
                    path=str(path),
                    at=0,
                    what=f"the header names the log offsets {begin_offset:,} to {end_offset:,}, the entries "
                    f"{first:,} to {last:,}",
                    cost="a broker adds entries twice, or leaves some out",
                    cure=REBUILD,
                )
            )

    def _broken(self, path: Path, at: int, count: int, thing: str, things: str, what: str) -> Fault:
        lags = self._view.holder is not None
        return Fault(
            kind="index-chain",
            path=str(path),
            at=at,
            count=count,
            what=f"{plural(count, thing, things)} {what}",
            cost="none, a broker is writing" if lags else "messages behind them are not found by key",
            cure="" if lags else REBUILD,
            is_note=lags,
        )


def _differing(wanted: array[int], slots: memoryview) -> int:
    """How many slots of the file differ."""
    if sys.byteorder == "little":
        wanted.byteswap()
    if wanted.tobytes() == slots:
        return 0
    found = array("i", bytes(slots))
    return sum(ours != theirs for ours, theirs in zip(wanted, found, strict=True))
