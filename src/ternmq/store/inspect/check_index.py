"""Whether the index says what the log says (C4, C5); whether its files are whole is what ``index_files`` looks at.

Entries lie in the order of the log, so both are read side by side: each key of each record is expected next. A key
without an entry is *missing*: no search finds the message by it. An entry without a key is *extra*; it costs a search
nothing but time, since a search looks at the record. (RocketMQ indexes one record twice when it recovers.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ternmq.kernels import native
from ternmq.store.derived.key_hash import MADE_ENTRY, IndexEntry
from ternmq.store.inspect.faults import REBUILD, Fault, Tally, plural
from ternmq.store.inspect.index_files import IndexFiles
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.index_file import INDEX_ENTRY, INDEX_ENTRY_BYTES

#: No entry: behind every record.
_NONE: Final = (0, sys.maxsize)


class IndexCheck:
    """Give it all entries that the log makes, in order, with ``expect`` and ``expect_made``; then ask for the
    ``faults``."""

    def __init__(self, view: StoreView, is_damaged: Callable[[int], bool]) -> None:
        self._view = view
        self._is_damaged = is_damaged
        self.files = IndexFiles(view)
        #: Log offsets of keys without an entry, in between and behind the last one; and of entries without a key.
        self._missing = Tally()
        self._behind = Tally()
        self._extra = Tally()
        self._chunks = iter(self.files)
        self._chunk = b""
        self._at = 0
        #: Hash and log offset of the next entry: the one in the chunk, at that place.
        self._entry = _NONE
        self._go_to(0)

    def _go_to(self, at: int) -> None:
        """Let the entry at this place in the chunk be the next one; behind its end, the first of the next chunk."""
        if at >= len(self._chunk):
            self._chunk, at = next(self._chunks, b""), 0
        self._at = at
        self._entry = INDEX_ENTRY.unpack_from(self._chunk, at)[:2] if self._chunk else _NONE

    def expect(self, wanted: Iterable[IndexEntry]) -> None:
        """The next entries, in log order."""
        for key_hash, log_offset, _ in wanted:
            while self._entry[1] < log_offset:
                self._add_extra(self._entry[1])
                self._go_to(self._at + INDEX_ENTRY_BYTES)
            if self._entry == (key_hash, log_offset):
                self._go_to(self._at + INDEX_ENTRY_BYTES)
            else:
                (self._missing if self._entry is not _NONE else self._behind).add(log_offset)

    def expect_made(self, made: bytes) -> None:
        """The next entries, as a kernel makes them."""
        at = 0
        while at < len(made):
            same = native.count_same(made, at, self._chunk, self._at)
            if same:
                at += same * MADE_ENTRY.size
                self._go_to(self._at + same * INDEX_ENTRY_BYTES)
            else:
                self.expect([MADE_ENTRY.unpack_from(made, at)])
                at += MADE_ENTRY.size

    def _add_extra(self, log_offset: int) -> None:
        # What the log has forgotten stays in the index until its file goes.
        if log_offset >= self._view.log.begin and not self._is_damaged(log_offset):
            self._extra.add(log_offset)

    def faults(self) -> list[Fault]:
        """What is wrong, once the log was read to its end."""
        while self._entry is not _NONE:
            self._add_extra(self._entry[1])
            self._go_to(self._at + INDEX_ENTRY_BYTES)
        directory = str(self._view.root / "index")
        faults = [*self.files.faults]
        if self._behind.count and not self._view.index_files:
            faults.append(
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
            faults += self._missing_faults(directory)
        if self._extra.count:
            entries = plural(self._extra.count, "entry", "entries")
            faults.append(
                Fault(
                    kind="index-extra",
                    path=directory,
                    at=self._extra.first,
                    count=self._extra.count,
                    what=f"{entries}, the first of log offset {self._extra.first:,}, are there twice or of no key",
                    cost="none but the time to find that out",
                    cure="",
                    is_note=True,
                )
            )
        return faults

    def _missing_faults(self, directory: str) -> Iterator[Fault]:
        for missing, is_newest in ((self._missing, False), (self._behind, True)):
            lags = is_newest and self._view.may_lag
            if missing.count:
                keys = plural(missing.count, "key")
                yield Fault(
                    kind="index-missing",
                    path=directory,
                    at=missing.first,
                    count=missing.count,
                    what=f"{keys} of records, from log offset {missing.first:,} on, have no entry",
                    cost="none, the next start adds them" if lags else "these messages are not found by key",
                    cure="" if lags else REBUILD,
                    is_note=lags,
                )
