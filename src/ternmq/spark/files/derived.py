"""The queue and index entries of one slice of a log, in the form in which they are sent to their writers (U4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from ternmq.spark.files.columns import LogRows
from ternmq.spark.files.derive import Rules, index_entries, queue_runs
from ternmq.spark.files.layout import LogSlice
from ternmq.spark.files.reading import SliceReader
from ternmq.store.inspect.scan import Damaged
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES

#: Bytes of queue entries that are gathered before they are sent.
_GATHERED_BYTES_MAX: Final = 32 << 20


class QueuePart(NamedTuple):
    """A queue, and a part of it. Sorts by queue and log order."""

    topic: str
    queue_id: int
    log_offset: int
    queue_offset: int

    @property
    def partition(self) -> int:
        """The same number for all parts of a queue, in every process."""
        return crc32(f"{self.topic}/{self.queue_id}".encode())


class EntryRun(NamedTuple):
    """Entries of one queue with consecutive queue offsets."""

    key: QueuePart
    entries: bytes


class Keys(NamedTuple):
    """Entries of the index (``derive.KEYED``), and how many entries of the slice precede them."""

    slice: int
    before: int
    entries: bytes


class Sum(NamedTuple):
    """The totals of a slice; ``log_end`` is -1 if it was empty."""

    slice: int
    records: int
    keys: int
    log_end: int


def derived(part: LogSlice, number: int, rules: Rules) -> Iterator[EntryRun | Keys | Damaged | Sum]:
    """Read the slice with this ``number``. Raises ``StoreError``."""
    records = keys = 0
    log_end = -1
    gathered = _Gathered()
    for found in SliceReader(part):
        if isinstance(found, Damaged):
            if found.records_behind:
                yield found
            continue
        rows = LogRows(found, segment="")
        for runs in queue_runs(rows, rules):
            columns = (runs.topics, runs.queue_ids, runs.log_offsets, runs.queue_offsets, runs.entries)
            for topic, queue_id, log_offset, queue_offset, entries in zip(
                *(column.to_pylist() for column in columns), strict=True
            ):
                gathered.add(QueuePart(topic, queue_id, log_offset, queue_offset), entries)
        if gathered.total_bytes > _GATHERED_BYTES_MAX:
            yield from gathered.take()
        made = index_entries(rows)
        if len(made):
            yield Keys(number, keys, made.tobytes())
        records, keys = records + len(found), keys + len(made)
        log_end = int(found.log_offsets[-1] + found.sizes[-1])
    yield from gathered.take()
    yield Sum(number, records, keys, log_end)


class _Gathered:
    """Joins consecutive runs of a queue: a slice has few records of each of ten thousand queues, and each run that is
    sent has a cost."""

    def __init__(self) -> None:
        #: By queue: the first key of its last run, and the entries.
        self._last: dict[tuple[str, int], tuple[QueuePart, list[bytes]]] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._done: list[EntryRun] = []
        self.total_bytes = 0

    def add(self, key: QueuePart, entries: bytes) -> None:
        queue = (key.topic, key.queue_id)
        if self._next.get(queue) == key.queue_offset:
            self._last[queue][1].append(entries)
        else:
            if queue in self._last:
                self._done.append(_run(*self._last[queue]))
            self._last[queue] = key, [entries]
        self._next[queue] = key.queue_offset + len(entries) // ENTRY_BYTES
        self.total_bytes += len(entries)

    def take(self) -> Iterator[EntryRun]:
        """All runs; afterwards it is empty."""
        yield from self._done
        yield from (_run(key, pieces) for key, pieces in self._last.values())
        self._last, self._next, self._done, self.total_bytes = {}, {}, [], 0


def _run(key: QueuePart, pieces: list[bytes]) -> EntryRun:
    return EntryRun(key, b"".join(pieces))
