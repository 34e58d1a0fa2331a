"""Reading: by queue offset, by time, by key, by log offset (C2, C4, C10; the rules of RocketMQ's getMessage).

Nothing is copied. What a read returns are views of the mapped log, those of neighbouring records joined into one, so
that a pull of 32 messages is often a single view. A view dies with its request; a caller that keeps bytes copies them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ternmq.errors import CorruptFile, CorruptRecord, StoreError
from ternmq.message import Property
from ternmq.store.config import StoreConfig
from ternmq.store.derived.index import Index
from ternmq.store.derived.queue_ext import ADDRESS_BYTE, ADDRESS_MAX, Unit, UnitReader, by_unit
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.base import Disk
from ternmq.store.log.pending import Pending
from ternmq.store.log.protocol import Log, Piece
from ternmq.store.read.by_time import EntryTimes, search_time
from ternmq.types import Accepts, Buffer, IsOver, Matches
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES, FILLER_SIZE, TAGS_AT
from ternmq.wire.properties import find
from ternmq.wire.record import HEAD_BYTES, RECORD_BYTES_MIN, head_store_time, peek_head, peek_properties, unpack_record

_iter_entries: Final = ENTRY.iter_unpack
_unpack_entry: Final = ENTRY.unpack_from
#: Entries that are looked at together, and the sizes of their records.
_BLOCK: Final = 32
_BLOCK_BYTES: Final = _BLOCK * ENTRY_BYTES
_unpack_neighbours: Final = struct.Struct(">qi8xq").unpack_from
#: A search by key returns no more than this, as a reply must fit a frame; a single record may be larger.
QUERY_BYTES_MAX: Final = 12 * 1024 * 1024
#: The end of all time: the clock may have been set back since a message was stored.
_FAR_MS: Final = 1 << 62
_unpack_sizes: Final = struct.Struct(">" + "8xi8x" * _BLOCK).unpack_from
#: A filter's time is looked at after so many bytes, and each record counts some more than it has: that is every eight
#: small records, and each one with the longest properties.
_LOOKS_BYTES: Final = 32_768
_LOOK_BYTES: Final = 4_096


class GetStatus(enum.Enum):
    """How a read by queue offset ended; the names are RocketMQ's."""

    FOUND = enum.auto()
    #: Nothing in the scanned entries passed the filter: ask again at ``next_offset``.
    NO_MATCHED_MESSAGE = enum.auto()
    #: The records were deleted with their segment: ask again at ``next_offset``.
    MESSAGE_WAS_REMOVING = enum.auto()
    #: The queue's file was deleted: go on with the next one.
    OFFSET_FOUND_NULL = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    #: At the end of the queue: wait for the next message.
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()


@dataclass(slots=True)
class GetResult:
    """What a read by queue offset found."""

    status: GetStatus
    #: Where to read on.
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    #: The records, in order; one view may hold several that lie side by side.
    buffers: list[memoryview] = field(default_factory=list)
    count: int = 0
    body_bytes: int = 0
    #: Whether the next read is from so far back that a slave should serve it.
    is_behind: bool = False
    #: How much of the log was written since the last of the records.
    behind_bytes: int = 0
    #: Where the records are if they were left to ``store.read.cold``; ``buffers`` is empty then.
    cold: list[Piece] | None = None
    #: Their queue offsets, where ``accepts`` is to be asked about them.
    cold_offsets: Sequence[int] = ()


@dataclass(slots=True, frozen=True)
class QueryResult:
    """What a search by key found, oldest first."""

    buffers: list[memoryview]
    #: Store time and log offset of the newest record in the index.
    last_update_ms: int
    last_update_offset: int


class QueueEntry(NamedTuple):
    """Where a record lies, and its tags code; None if that stood in a unit which is missing."""

    log_offset: int
    size: int
    tags_code: int | None


class RawEntry(NamedTuple):
    """An entry as it stands in the queue's file: ``field`` is a tags code, or the address of a unit.

    ``unit`` is None for a tags code, and if the unit at the address is missing.
    """

    log_offset: int
    size: int
    field: int
    unit: Unit | None

    @property
    def is_filler(self) -> bool:
        """Whether it stands for no message."""
        return self.size == FILLER_SIZE

    @property
    def has_address(self) -> bool:
        return self.field <= ADDRESS_MAX


#: Yields log offsets and takes their records, None for those that are gone; the result comes last.
KeySearch: TypeAlias = Generator[list[int] | QueryResult, list[memoryview | None], None]


class Query:
    """The reading half of a store."""

    __slots__ = ("_config", "_disk", "_index", "_log", "_pending", "_queues", "_scan_max", "memory_bytes")

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        commit_log: Log,
        queues: ConsumeQueues,
        index: Index | None,
        pending: Pending,
        *,
        memory_bytes: int,
    ) -> None:
        self._config = config
        self._disk = disk
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._pending = pending
        #: Records further back than this are taken to be on disk only.
        self.memory_bytes = memory_bytes * config.access_message_in_memory_max_ratio // 100
        #: Entries that one read with a filter looks at.
        self._scan_max = config.max_filter_message_size // ENTRY_BYTES

    # --- By queue offset ----------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int | None = None,
        matches: Matches | None = None,
        may_pass: Callable[[Unit], bool] | None = None,
        accepts: Accepts | None = None,
        is_over: IsOver | None = None,
        leave_cold: bool = False,
    ) -> GetResult:
        """Messages of a queue from ``queue_offset`` on.

        ``matches`` chooses by tags code; ``accepts`` by a record's properties, once ``may_pass`` has seen the unit
        beside the entry, if there is one (C3). At least one message is returned if there is any, whatever its size.
        ``is_over`` says that ``accepts`` has taken enough time: what was found is returned, and ``next_offset`` is that
        of the first record that it was not asked about. It is asked about one at least.

        With ``leave_cold``, records that are probably not in memory are not touched: see ``GetResult.cold``. They are
        not asked ``accepts``, then; the call that reads them asks (``accepted``).
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        low, high = queue.min_offset, queue.next_offset
        if not low <= queue_offset < high:
            return _outside(queue_offset, low, high)

        commit_log, config = self._log, self._config
        bytes_memory = config.max_transfer_bytes_on_message_in_memory
        bytes_disk = config.max_transfer_bytes_on_message_in_disk
        if bytes_max is None:
            count_memory = min(count_max, config.max_transfer_count_on_message_in_memory)
            count_disk = min(count_max, config.max_transfer_count_on_message_in_disk)
        else:
            # A caller that limits the bytes of an answer may have many small messages in it, wherever they are.
            bytes_memory = bytes_disk = min(bytes_memory, bytes_max)
            count_memory = count_disk = max(1, min(count_max, bytes_memory // RECORD_BYTES_MIN))
        is_filtered = matches is not None or accepts is not None
        entries = queue.read(queue_offset, max(count_memory, self._scan_max) if is_filtered else count_memory)
        if not entries:
            return GetResult(GetStatus.OFFSET_FOUND_NULL, min(queue.file_end(queue_offset), high), low, high)
        if (matches is not None or may_pass is not None) and ADDRESS_BYTE in entries[TAGS_AT::ENTRY_BYTES]:
            matches = by_unit(queue.ext, matches, may_pass)

        written, log_min = commit_log.end, commit_log.begin
        memory_from = written - self.memory_bytes
        if not is_filtered and (warm := _warm_runs(entries, bytes_memory, max(memory_from, log_min))) is not None:
            warm_runs, count = warm
            views = commit_log.views(warm_runs)
            if views is not None:
                body_bytes = sum(map(len, views))
                behind_bytes = written - warm_runs[-1][1]
                return GetResult(
                    GetStatus.FOUND,
                    queue_offset + count,
                    low,
                    high,
                    views,
                    count,
                    body_bytes,
                    behind_bytes=behind_bytes,
                )
        runs: list[tuple[int, int]] = []
        run_start = run_end = last_offset = -1
        count = body_bytes = last_size = 0
        next_offset = queue_offset
        was_removed = is_left = is_late = False
        left: list[int] = []
        looked = 0
        page, page_begin, page_end = commit_log.page_at(-1)
        for log_offset, size, tags_code in _iter_entries(entries):
            if count:
                if log_offset >= memory_from:
                    if count >= count_memory or body_bytes + size > bytes_memory:
                        break
                elif count >= count_disk or body_bytes + size > bytes_disk:
                    break
            next_offset += 1
            last_offset, last_size = log_offset, size
            if matches is not None and not matches(tags_code):
                continue
            if log_offset < log_min or size == FILLER_SIZE:
                was_removed = True
                continue
            if accepts is not None:
                if not count:
                    is_left = leave_cold and log_offset < memory_from
                if is_left:
                    left.append(next_offset - 1)
                else:
                    if is_late:
                        next_offset -= 1
                        break
                    if log_offset + size > page_end or log_offset < page_begin:
                        page, page_begin, page_end = commit_log.page_at(log_offset)
                    # What cannot be read is for the reader to find out, as it is without a filter.
                    if log_offset + size <= page_end:
                        properties = peek_properties(page, log_offset - page_begin, size)
                        if properties is not None:
                            looked += size + _LOOK_BYTES
                            if looked >= _LOOKS_BYTES and is_over is not None:
                                looked, is_late = 0, is_over()
                            if not accepts(properties):
                                continue
            if log_offset != run_end:
                if run_end >= 0:
                    runs.append((run_start, run_end))
                run_start = log_offset
            run_end = log_offset + size
            count += 1
            body_bytes += size
        if count:
            runs.append((run_start, run_end))
            status = GetStatus.FOUND
        elif was_removed:
            status = GetStatus.MESSAGE_WAS_REMOVING
        else:
            status = GetStatus.NO_MATCHED_MESSAGE
        buffers: list[memoryview] | None
        pieces: list[Piece] | None = None
        # Log offsets grow along a queue: if any record is cold, the first one is.
        if leave_cold and runs and runs[0][0] < memory_from:
            found = [commit_log.piece(start, end - start) for start, end in runs]
            pieces = [piece for piece in found if piece is not None]
            buffers = [] if len(pieces) == len(found) else None
        else:
            buffers = commit_log.views(runs)
        if buffers is None:
            raise CorruptFile(
                f"{queue.directory} has entries that point outside the log; stop the broker and move the consumequeue "
                "directory away: it is built again from the log",
                path=str(queue.directory),
            )
        is_behind = last_offset < memory_from
        behind_bytes = written - last_offset - (last_size if last_size != FILLER_SIZE else 0)
        return GetResult(
            status, next_offset, low, high, buffers, count, body_bytes, is_behind, behind_bytes, pieces, left or ()
        )

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[QueueEntry]:
        """Entries of a queue from ``queue_offset`` on, at most ``count_max``, fewer at the end of a file."""
        data, units = self._entry_bytes(topic, queue_id, queue_offset, count_max)
        return [
            QueueEntry(log_offset, size, field if field > ADDRESS_MAX else units.tags_code(field) if units else None)
            for log_offset, size, field in _iter_entries(data)
        ]

    def raw_entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[RawEntry]:
        """The same as they stand in the file, with their units: for tools that look at a queue."""
        data, units = self._entry_bytes(topic, queue_id, queue_offset, count_max)
        return [
            RawEntry(log_offset, size, field, units.unit(field) if units and field <= ADDRESS_MAX else None)
            for log_offset, size, field in _iter_entries(data)
        ]

    def _entry_bytes(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> tuple[Buffer, UnitReader | None]:
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.next_offset:
            return b"", None
        units = UnitReader(queue.ext) if queue.ext is not None else None
        return queue.read(queue_offset, count_max), units

    # --- By time ------------------------------------------------------------------------------------------------

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """The first queue offset stored at ``time_ms`` or later; with ``upper`` the last stored then or before.

        Between the queue's min and max offset in any case; 0 without such a queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        bounds = queue.min_offset, queue.next_offset
        return search_time(queue.read, *bounds, time_ms, self._log.store_time, upper=upper)

    def time_search(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> Callable[[], int] | None:
        """The same for another thread, if records must be looked at that are not in memory; else None."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not self.has_cold:
            return None
        times = EntryTimes(self._disk, self._log, *queue.places(), file_bytes=self._queues.file_bytes)
        bounds = queue.min_offset, queue.next_offset
        return lambda: search_time(times.read, *bounds, time_ms, times.store_time, upper=upper)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored; -1 if it is not there."""
        queue = self._queues.get(topic, queue_id)
        entry = queue.entry(queue_offset) if queue is not None else None
        return -1 if entry is None or entry[1] == FILLER_SIZE else self._log.store_time(entry[0])

    # --- By log offset and by key ---------------------------------------------------------------------------------

    @property
    def has_cold(self) -> bool:
        """Whether a part of the log is probably not in memory."""
        return self._log.begin < self._log.end - self.memory_bytes

    def cold_place(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """The log offset of a message that is probably not in memory; None if it is, or not there at all."""
        queue = self._queues.get(topic, queue_id) if self.has_cold else None
        entry = queue.entry(queue_offset) if queue is not None else None
        if entry is None or entry[1] == FILLER_SIZE or entry[0] >= self._log.end - self.memory_bytes:
            return None
        return entry[0]

    def read_time(self, log_offset: int) -> int:
        """When the record at ``log_offset`` was stored, without touching a mapping; -1 if it is gone. On any thread."""
        piece = self._log.piece(log_offset, HEAD_BYTES)
        try:
            return head_store_time(self._disk.read_at(*piece)) if piece is not None else -1
        except StoreError:
            # Deleted meanwhile.
            return -1

    def cold_piece(self, log_offset: int) -> Piece | None:
        """Where a record is, and all behind it, if it is probably not in memory; None if it is, or not there at all."""
        is_cold = log_offset < min(self._log.end - self.memory_bytes, self._pending.dispatched)
        return self._log.piece(log_offset) if is_cold else None

    def record_at(self, log_offset: int, size: int | None = None) -> memoryview | None:
        """One whole record; None if none starts there, or not one of ``size`` bytes, or it is not confirmed."""
        record = self._log.record(log_offset) if log_offset < self._pending.dispatched else None
        return record if record is None or size is None or len(record) == size else None

    def by_key(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records of a topic with this key or unique key, stored in this time; the newest if there are too many.

        Too many are ``count_max`` or ``maxMsgsNumBatch``, and ``QUERY_BYTES_MAX``.
        """
        search = self.key_search(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
        log_offsets = next(search)
        while isinstance(log_offsets, list):
            log_offsets = search.send([self._log.record(log_offset) for log_offset in log_offsets])
        return log_offsets

    def key_search(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> KeySearch:
        """The same for a caller that brings the records: yields lists of log offsets, and at last the result. An empty
        list is a pause, in which the caller can give the loop back."""
        index = self._index
        if index is None or not key:
            yield QueryResult([], 0, 0)
            return
        count_max = min(count_max, self._config.max_msgs_num_batch)
        found: list[memoryview] = []
        until_ms = end_ms
        # A key whose hash many others share may hide behind them: look further back, as often as RocketMQ does.
        for _ in range(3):
            places: set[int] = set()
            left = count_max
            for log_offset in index.walk(topic, key, begin_ms=begin_ms, end_ms=until_ms):
                if left <= 0:
                    break
                if log_offset is None:
                    yield []
                else:
                    places.add(log_offset)
                    left -= 1
            records = [record for record in (yield sorted(places)) if record is not None]
            found = [record for record in records if _has_key(record, topic, key, begin_ms=begin_ms, end_ms=end_ms)]
            if found or not records:
                break
            until_ms = head_store_time(records[0])
        yield QueryResult(_newest(found), index.end_time_ms, max(index.end_offset, 0))

    def places_of_key(self, topic: str, key: str, *, count_max: int) -> Iterator[int | None]:
        """Log offsets of records that may have this key or unique key, of any time, the newest first, each once; None
        now and then: see ``Index.walk``."""
        if self._index is None or not key:
            return
        seen: set[int] = set()
        for log_offset in self._index.walk(topic, key, begin_ms=0, end_ms=_FAR_MS):
            if log_offset is None:
                yield None
            elif log_offset not in seen:
                yield log_offset
                seen.add(log_offset)
                if len(seen) >= count_max:
                    return


def _newest(records: list[memoryview]) -> list[memoryview]:
    """The last ones that fit a reply, at least one."""
    size = 0
    for at in range(len(records) - 1, -1, -1):
        size += len(records[at])
        if size > QUERY_BYTES_MAX:
            return records[min(at + 1, len(records) - 1) :]
    return records


def accepted(body: bytes, accepts: Accepts, is_over: IsOver) -> tuple[list[memoryview], int | None]:
    """Of records back to back, which ``get`` left to be read, those that a filter takes.

    If ``is_over`` says that this has taken enough time, also how many records it was asked about: one at least. Else
    None: all of them.
    """
    view = memoryview(body)
    found: list[memoryview] = []
    at = looked = count = 0
    is_late = False
    while at < len(view):
        size, _ = peek_head(view, at)
        if not RECORD_BYTES_MIN <= size <= len(view) - at:
            return [*found, view[at:]], None
        if is_late:
            return found, count
        properties = peek_properties(view, at, size)
        if properties is not None:
            looked += size + _LOOK_BYTES
            if looked >= _LOOKS_BYTES:
                looked, is_late = 0, is_over()
        if properties is None or accepts(properties):
            found.append(view[at : at + size])
        at += size
        count += 1
    return found, None


def _warm_runs(entries: Buffer, bytes_max: int, log_min: int) -> tuple[list[tuple[int, int]], int] | None:
    """What a read without a filter takes, in as few steps an entry as can be: tools read whole queues this way.

    The records that lie side by side, as log offsets of start and end, and how many there are. None, for a closer
    look, if an entry points before ``log_min``, or at nothing.
    """
    run_start, size, _ = _unpack_entry(entries)
    run_end, taken, count = run_start, 0, 0
    # The first message is taken whatever its size.
    bytes_max = max(bytes_max, size)
    limit = run_start + bytes_max
    if run_start < log_min or size == FILLER_SIZE:
        return None
    runs: list[tuple[int, int]] = []
    entries_end = len(entries)
    at = 0
    while at < entries_end:
        block_end = at + _BLOCK_BYTES
        if block_end <= entries_end:
            # Records that fill the log from the first to the last of them lie side by side: batches of one sender do.
            log_offset, size, next_log_offset = _unpack_neighbours(entries, at)
            if log_offset == run_end and log_offset + size == next_log_offset:
                log_offset, size, _ = _unpack_entry(entries, block_end - ENTRY_BYTES)
                if run_end + sum(_unpack_sizes(entries, at)) == log_offset + size <= limit:
                    run_end = log_offset + size
                    count += _BLOCK
                    at = block_end
                    continue
        for log_offset, size, _ in _iter_entries(entries[at:block_end]):
            if log_offset != run_end:
                if log_offset < log_min or size == FILLER_SIZE:
                    return None
                runs.append((run_start, run_end))
                taken += run_end - run_start
                run_start = run_end = log_offset
                limit = log_offset + bytes_max - taken
            if log_offset + size > limit:
                entries_end = at
                break
            run_end = log_offset + size
            count += 1
        at = block_end
    if run_end > run_start:
        runs.append((run_start, run_end))
    return runs, count


def _outside(queue_offset: int, low: int, high: int) -> GetResult:
    """The answer to a queue offset that the queue does not have."""
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if queue_offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)


def _has_key(data: memoryview, topic: str, key: str, *, begin_ms: int, end_ms: int) -> bool:
    try:
        record = unpack_record(data, check_crc=False)
    except CorruptRecord:
        return False
    if record.topic != topic or not begin_ms <= record.store_time_ms <= end_ms:
        return False
    if find(record.properties, Property.UNIQUE_KEY) == key:
        return True
    return key in (find(record.properties, Property.KEYS) or "").split(" ")
