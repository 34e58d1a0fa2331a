"""Whether the queues say what the log says (C2, C5).

The log is read once, in its order, which is also the order of every queue. For each queue the entries that should be
there are packed into a run, and a run of 200 is compared with the bytes of the file in one go: all is well nearly
always. Only runs that differ are looked at entry by entry.

What can differ, and what it costs a consumer: an entry that is *missing* hides its message; one that is *wrong* leads
to another record, or none; one that is *extra* names a message that is not in the log.

Not faults: a queue that begins later than its records, because its topic was deleted and made again (its queue offsets
begin with 0 again in the log); records of topics that ``topics.json`` does not know any more; newest entries that a
running broker has in memory, or a killed one had; due times in the schedule topic that other delay levels give than
those that the tool was told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queue_ext import ADDRESS_MAX, UnitReader
from ternmq.store.derived.queue_search import PAGE_ENTRIES
from ternmq.store.inspect.faults import REBUILD, Fault, Tally, plural
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES, FILLER_SIZE

#: Entries that are compared together.
_RUN_BYTES: Final = PAGE_ENTRIES * ENTRY_BYTES
_pack_entry: Final = ENTRY.pack


class QueueCheck:
    """What is expected of one queue. ``queue`` is None if the directory has none.

    ``is_damaged`` knows the places in the log that hold no records. Entries that lead there are not to blame for it.
    """

    __slots__ = (
        "_extra",
        "_is_damaged",
        "_late",
        "_missing",
        "_run",
        "_run_at",
        "_units",
        "_wrong",
        "first",
        "key",
        "next_offset",
        "queue",
        "records",
    )

    #: Records of any place in the log are expected (as ``native.scan`` asks).
    log_end: Final = 0

    def __init__(self, key: tuple[str, int], queue: ConsumeQueue | None, is_damaged: Callable[[int], bool]) -> None:
        self.key = key
        self.queue = queue
        self._is_damaged = is_damaged
        self._units = UnitReader(queue.ext) if queue is not None and queue.ext is not None else None
        self._begin(0)

    def _begin(self, queue_offset: int) -> None:
        self.records = 0
        #: Queue offset of the first record that the log has.
        self.first = queue_offset
        #: The queue offset that follows.
        self.next_offset = self._run_at = queue_offset
        self._run = bytearray()
        self._missing, self._wrong, self._extra, self._late = Tally(), Tally(), Tally(), Tally()

    def expect(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> None:
        """A record that must have an entry."""
        if queue_offset != self.next_offset:
            self._jump(queue_offset)
        self.records += 1
        self.next_offset += 1
        self._run += _pack_entry(log_offset, size, tags_code)
        if len(self._run) >= _RUN_BYTES:
            self._compare()

    def expect_all(self, entries: bytes) -> None:
        """Records that must have these entries, from ``next_offset`` on."""
        count = len(entries) // ENTRY_BYTES
        self.records += count
        self.next_offset += count
        self._run += entries
        if len(self._run) >= _RUN_BYTES:
            self._compare()

    def _jump(self, queue_offset: int) -> None:
        if not self.records or queue_offset <= self.next_offset:
            # The first that the log has of the queue; or its topic was deleted, and this is the first of a new one.
            self._begin(queue_offset)
            return
        self._compare()
        # The log has no records for these. Their entries should be fillers; others lead to what is damaged or gone.
        for number, (log_offset, size, _) in self._entries(self.next_offset, queue_offset):
            if size != FILLER_SIZE and not self._is_damaged(log_offset):
                self._extra.add(number)
        self.next_offset = self._run_at = queue_offset

    def _compare(self) -> None:
        run, run_at = self._run, self._run_at
        self._run, self._run_at = bytearray(), self.next_offset
        queue = self.queue
        if queue is not None and run_at >= queue.min_offset and queue.read(run_at, len(run) // ENTRY_BYTES) == run:
            return
        found = dict(self._entries(run_at, self.next_offset))
        for number, wanted in enumerate(ENTRY.iter_unpack(run), run_at):
            entry = found.get(number)
            if entry is None or entry[1] == FILLER_SIZE:
                self._missing.add(number)
            elif entry[:2] != wanted[:2]:
                self._wrong.add(number)
            elif not self._is_tags_code(entry[2], wanted[2]):
                (self._late if self.key[0] == SCHEDULE_TOPIC else self._wrong).add(number)

    def _is_tags_code(self, field: int, tags_code: int) -> bool:
        if field > ADDRESS_MAX:
            return field == tags_code
        # A unit beside the queue has it; without one, consumers are given the message whatever its tags are.
        return self._units is None or self._units.tags_code(field) in (None, tags_code)

    def _entries(self, begin: int, end: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """The entries that the queue has from ``begin`` up to ``end``."""
        if self.queue is None:
            return
        number, end = max(begin, self.queue.min_offset), min(end, self.queue.next_offset)
        while number < end and (data := self.queue.read(number, end - number)):
            for entry in ENTRY.iter_unpack(data):
                yield number, entry
                number += 1

    # --- The verdict ----------------------------------------------------------------------------------------------

    def faults(self, view: StoreView, *, is_known: bool) -> Iterator[Fault]:
        """What is wrong, once all records were seen. ``is_known``: the broker's table has the topic."""
        self._compare()
        topic, queue_id = self.key
        path = str(view.root / "consumequeue" / topic / str(queue_id))
        if self.queue is None:
            if self.records:
                # A new queue has no file before its first entries are written out.
                lags = view.may_lag and self.records <= PAGE_ENTRIES
                yield self._without_queue(path, is_known=is_known, lags=lags)
            return
        log_min = view.log.begin
        first = self.first if self.records else self.queue.next_offset
        for begin, end in ((self.queue.min_offset, first), (max(first, self.next_offset), self.queue.next_offset)):
            for number, (log_offset, size, _) in self._entries(begin, end):
                # Entries of records that the log has forgotten are no fault; the queue forgets them by the file.
                if size != FILLER_SIZE and log_offset >= log_min and not self._is_damaged(log_offset):
                    self._extra.add(number)
        yield from self._verdicts(view, path)

    def _verdicts(self, view: StoreView, path: str) -> Iterator[Fault]:
        assert self.queue is not None
        missing, wrong, extra, late = self._missing, self._wrong, self._extra, self._late
        if missing.count:
            is_newest = missing.first == self.queue.next_offset and missing.count == self.next_offset - missing.first
            lags = is_newest and view.may_lag
            messages = plural(missing.count, "message")
            yield Fault(
                kind="queue-missing",
                path=path,
                at=missing.first,
                count=missing.count,
                what=f"{messages} of the log, from queue offset {missing.first:,} on, have no entry",
                cost="none, the next start adds them" if lags else "consumers never see them",
                cure="" if lags else REBUILD,
                is_note=lags,
            )
        if wrong.count:
            entries = plural(wrong.count, "entry", "entries")
            yield Fault(
                kind="queue-wrong",
                path=path,
                at=wrong.first,
                count=wrong.count,
                what=f"{entries}, the first at queue offset {wrong.first:,}, lead to a wrong place or hold wrong tags",
                cost="consumers get other messages than those, or none",
                cure=REBUILD,
            )
        if late.count:
            entries = plural(late.count, "entry", "entries")
            yield Fault(
                kind="queue-delay",
                path=path,
                at=late.first,
                count=late.count,
                what=f"{entries}, the first at queue offset {late.first:,}, hold due times of other delay levels",
                cost="none, if the broker has other levels; a rebuild without them changes when messages are due",
                cure="look again with the broker's levels: -c broker.conf, or --set messageDelayLevel=…",
                is_note=True,
            )
        if extra.count:
            is_cut = extra.first >= self.next_offset and view.may_lag
            entries = plural(extra.count, "entry", "entries")
            yield Fault(
                kind="queue-extra",
                path=path,
                at=extra.first,
                count=extra.count,
                what=f"{entries}, the first at queue offset {extra.first:,}, belong to no record of the log",
                cost="none, the next start cuts them" if is_cut else "consumers find nothing there, or other messages",
                cure="" if is_cut else REBUILD,
                is_note=is_cut,
            )

    def _without_queue(self, path: str, *, is_known: bool, lags: bool) -> Fault:
        count = plural(self.records, "message")
        if not is_known:
            return Fault(
                kind="queue-deleted",
                path=path,
                at=self.first,
                count=self.records,
                what=f"{count} of the log belong to a queue that does not exist; its topic was deleted",
                cost="none; they go when their segments do",
                cure="",
                is_note=True,
            )
        return Fault(
            kind="queue-missing",
            path=path,
            at=self.first,
            count=self.records,
            what=f"the queue is missing, the log has {count} of it",
            cost="none, the next start adds it" if lags else "consumers never see them",
            cure="" if lags else REBUILD,
            is_note=lags,
        )
