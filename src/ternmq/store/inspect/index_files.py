"""The files of the index, read entry by entry and checked on the way (C4).

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

from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.inspect.faults import REBUILD, Fault, Tally, plural
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.index_file import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    index_entries_at,
)

#: Entries looked at together.
_CHUNK: Final = 4096


class IndexFiles:
    """Iterates over all entries, some at a time, in order; afterwards ``faults`` tells what is wrong there."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self.faults: list[Fault] = []
        #: How many entries were read.
        self.entries = 0

    def __iter__(self) -> Iterator[bytes]:
        sizes = self._view.sizes
        for path, length_bytes in self._view.index_files:
            if length_bytes == sizes.index_file:
                # Without entries the number of slots is not known, and not needed.
                if sizes.index_slots is not None and sizes.index_entries is not None:
                    yield from self._read_file(path, sizes.index_slots, sizes.index_entries)
            else:
                self.faults.append(
                    Fault(
                        kind="file-length",
                        path=str(path),
                        at=length_bytes,
                        what=f"the file has {length_bytes:,} bytes, not {sizes.index_file:,} as the others",
                        cost="a broker does not start on it; messages are not found by key",
                        cure=f"remove it, then {REBUILD}",
                    )
                )

    def _read_file(self, path: Path, slot_count: int, entries_max: int) -> Iterator[bytes]:
        page = self._view.disk.open_segment(path, size=self._view.sizes.index_file, writable=False).page
        _, _, begin_offset, end_offset, _, count = INDEX_HEADER.unpack_from(page)
        count = min(max(count, 1), entries_max)
        self.entries += count - 1
        entries_at = index_entries_at(slot_count)
        newest = array("i", bytes(INDEX_SLOT_BYTES * slot_count))
        broken, wrong = Tally(), Tally()
        first = last = -1
        for begin in range(1, count, _CHUNK):
            end = min(begin + _CHUNK, count)
            chunk = bytes(page[entries_at + begin * INDEX_ENTRY_BYTES : entries_at + end * INDEX_ENTRY_BYTES])
            if not _follow_chain(chunk, newest, begin, last, end_offset, broken):
                chunk = _in_order(chunk, begin, last, end_offset, wrong)
            if chunk:
                first = _log_offset(chunk, 0) if first < 0 else first
                last = _log_offset(chunk, len(chunk) - INDEX_ENTRY_BYTES)
                yield chunk
        wrong_slots = _differing(newest, page[INDEX_HEADER_BYTES:entries_at])
        if wrong.count:
            self.faults.append(self._wrong(path, wrong))
        if broken.count:
            self.faults.append(self._broken(path, broken.first, broken.count, "entry", "name a wrong previous one"))
        if wrong_slots:
            self.faults.append(self._broken(path, 0, wrong_slots, "slot", "do not lead to their newest entry"))
        if count > 1 and not wrong.count and (first, last) != (begin_offset, end_offset):
            self.faults.append(
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

    def _wrong(self, path: Path, wrong: Tally) -> Fault:
        entries = plural(wrong.count, "entry", "entries")
        return Fault(
            kind="index-wrong",
            path=str(path),
            at=wrong.first,
            count=wrong.count,
            what=f"{entries}, the first is number {wrong.first:,}, hold log offsets that are out of order",
            cost="these messages are not found by their keys",
            cure=REBUILD,
        )

    def _broken(self, path: Path, at: int, count: int, thing: str, what: str) -> Fault:
        lags = self._view.holder is not None
        return Fault(
            kind="index-chain",
            path=str(path),
            at=at,
            count=count,
            what=f"{plural(count, thing, 'entries' if thing == 'entry' else '')} {what}",
            cost="none, a broker is writing" if lags else "messages behind them are not found by key",
            cure="" if lags else REBUILD,
            is_note=lags,
        )


def _log_offset(entries: bytes, at: int) -> int:
    return int(INDEX_ENTRY.unpack_from(entries, at)[1])


def _follow_chain(
    entries: bytes, newest: array[int], first_number: int, last: int, end_offset: int, broken: Tally
) -> bool:
    """Note the entries that do not name the newest one of their slot; each becomes that. Whether the log offsets of all
    are in order, from that of the one before, up to the last one of the file."""
    # An empty array has no buffer.
    if HAS_NATIVE and newest:
        found = native.check_chain(entries, newest, number=first_number, low=last, high=end_offset)
        if found is not None:
            count, first_broken, is_in_order = found
            broken.add(first_broken, count)
            return is_in_order
    slot_count = len(newest)
    offsets = [last]
    for number, (key_hash, log_offset, _, previous) in enumerate(INDEX_ENTRY.iter_unpack(entries), first_number):
        slot = key_hash % slot_count
        if previous != newest[slot]:
            broken.add(number)
        newest[slot] = number
        offsets.append(log_offset)
    return offsets[-1] <= end_offset and offsets == sorted(offsets)


def _in_order(entries: bytes, first_number: int, last: int, end_offset: int, wrong: Tally) -> bytes:
    """The entries without those whose log offset cannot be: before the last one's, or behind the next one's."""
    offsets = [log_offset for _, log_offset, _, _ in INDEX_ENTRY.iter_unpack(entries)]
    kept: list[bytes] = []
    for number, (log_offset, following) in enumerate(zip(offsets, [*offsets[1:], end_offset], strict=True)):
        if last <= log_offset <= (following if following >= last else end_offset):
            kept.append(entries[number * INDEX_ENTRY_BYTES : (number + 1) * INDEX_ENTRY_BYTES])
            last = log_offset
        else:
            wrong.add(first_number + number)
    return b"".join(kept)


def _differing(wanted: array[int], slots: memoryview) -> int:
    """How many slots of the file differ."""
    if sys.byteorder == "little":
        wanted.byteswap()
    if wanted.tobytes() == slots:
        return 0
    found = array("i", bytes(slots))
    return sum(ours != theirs for ours, theirs in zip(wanted, found, strict=True))
