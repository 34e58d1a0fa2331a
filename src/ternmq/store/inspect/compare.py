"""How two store directories differ: a master and its slave, a copy and what became of it (C11).

Logs are compared where both have one, by log offset. Equal segments are seen to be equal by their bytes; others record
by record, because what lies behind a blank, or behind the log's end, means nothing. Queues are compared by queue
offset, the index by hash and log offset (its file names are times of day), tables by their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import msgspec

from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.inspect.faults import Tally, plural
from ternmq.store.inspect.index_files import IndexFiles
from ternmq.store.inspect.scan import LogScan
from ternmq.store.inspect.summary import log_summary
from ternmq.store.inspect.view import StoreView
from ternmq.wire.bodies.codec import Body
from ternmq.wire.bodies.groups import GroupTable
from ternmq.wire.bodies.stats import ConsumerOffsets, DelayOffsets
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES

#: File, its kind, and the member that holds the rows.
_TABLES: Final[tuple[tuple[str, type[Body], str], ...]] = (
    ("topics.json", TopicTable, "topic_config_table"),
    ("subscriptionGroup.json", GroupTable, "subscription_group_table"),
    ("consumerOffset.json", ConsumerOffsets, "offset_table"),
    ("delayOffset.json", DelayOffsets, "offset_table"),
)
#: Queue entries compared at a time.
_CHUNK: Final = 4096


@dataclass(slots=True, frozen=True)
class Difference:
    """One of them. ``part`` is log, queue, index or table; ``name`` says which."""

    part: str
    name: str
    what: str


def compare(
    left: StoreView, right: StoreView, *, progress: Callable[[int, int], object] | None = None
) -> Iterator[Difference]:
    """All differences, part by part."""
    yield from _logs(left, right, progress or _report_nothing)
    yield from _all_queues(left, right)
    yield from _indexes(left, right)
    yield from _tables(left, right)


# --- The log ------------------------------------------------------------------------------------------------------


def _logs(left: StoreView, right: StoreView, progress: Callable[[int, int], object]) -> Iterator[Difference]:
    ours, theirs = log_summary(left), log_summary(right)
    for end, our_offset, their_offset in (
        ("begins", ours.min_offset, theirs.min_offset),
        ("ends", ours.end_offset, theirs.end_offset),
    ):
        if our_offset != their_offset:
            yield Difference("log", "", f"{end} at {our_offset:,} and at {their_offset:,}")
    begin, end_offset = max(ours.min_offset, theirs.min_offset), min(ours.end_offset, theirs.end_offset)
    differing, position = Tally(), begin
    step = min(left.sizes.segment, right.sizes.segment)
    while position < end_offset:
        until = min(position - position % step + step, end_offset)
        if left.log.view(position, until - position) != right.log.view(position, until - position):
            _compare_records(left, right, position, until, differing)
        position = until
        progress(position - begin, end_offset - begin)
    if differing.count:
        records = plural(differing.count, "record")
        yield Difference("log", "", f"{records} differ, or only one log has them; the first at {differing.first:,}")


def _compare_records(left: StoreView, right: StoreView, begin: int, end: int, differing: Tally) -> None:
    ours, theirs = _records(left, begin, end), _records(right, begin, end)
    for log_offset in sorted(ours.keys() | theirs.keys()):
        if ours.get(log_offset) != theirs.get(log_offset):
            differing.add(log_offset)


def _records(view: StoreView, begin: int, end: int) -> dict[int, memoryview | None]:
    """Records by log offset, in one segment."""
    found: dict[int, memoryview | None] = {}
    for record in LogScan(view.log, begin, next_data=view.next_data):
        if record.log_offset >= end:
            break
        found[record.log_offset] = view.log.view(record.log_offset, record.size)
    return found


# --- What is derived ----------------------------------------------------------------------------------------------


def _all_queues(left: StoreView, right: StoreView) -> Iterator[Difference]:
    for key in sorted(left.queues.table.keys() | right.queues.table.keys()):
        name = f"{key[0]} {key[1]}"
        ours, theirs = left.queues.table.get(key), right.queues.table.get(key)
        if ours is None or theirs is None:
            present = ours or theirs
            # RocketMQ makes a directory for each queue that a client asks for.
            if present is not None and present.next_offset:
                yield Difference("queue", name, f"is only in {(left if ours is not None else right).root}")
            continue
        bounds = [(view.first_offset(queue), queue.next_offset) for view, queue in ((left, ours), (right, theirs))]
        for what, our_offset, their_offset in zip(("begins", "ends"), *bounds, strict=True):
            if our_offset != their_offset:
                yield Difference("queue", name, f"{what} at queue offset {our_offset:,} and at {their_offset:,}")
        differing = _differing(ours, theirs, max(bounds[0][0], bounds[1][0]), min(bounds[0][1], bounds[1][1]))
        if differing.count:
            entries = plural(differing.count, "entry", "entries")
            yield Difference("queue", name, f"{entries} differ, the first at queue offset {differing.first:,}")


def _differing(ours: ConsumeQueue, theirs: ConsumeQueue, begin: int, end: int) -> Tally:
    differing = Tally()
    while begin < end:
        count = min(_CHUNK, end - begin)
        our_bytes, their_bytes = ours.read(begin, count), theirs.read(begin, count)
        # Where one of the files ends, fewer come.
        length_bytes = min(len(our_bytes), len(their_bytes))
        if our_bytes[:length_bytes] != their_bytes[:length_bytes]:
            for at in range(0, length_bytes, ENTRY_BYTES):
                if our_bytes[at : at + ENTRY_BYTES] != their_bytes[at : at + ENTRY_BYTES]:
                    differing.add(begin + at // ENTRY_BYTES)
        begin += max(length_bytes // ENTRY_BYTES, 1)
    return differing


def _indexes(left: StoreView, right: StoreView) -> Iterator[Difference]:
    log_min = max(left.log.begin, right.log.begin)
    ours, theirs = ((entry for entry in IndexFiles(view) if entry[1] >= log_min) for view in (left, right))
    for number, pair in enumerate(zip_longest(ours, theirs), 1):
        if pair[0] != pair[1]:
            where = min(entry[1] for entry in pair if entry is not None)
            yield Difference("index", "", f"entries differ from the {number:,}. on, which is of log offset {where:,}")
            return


# --- Tables -------------------------------------------------------------------------------------------------------


def _tables(left: StoreView, right: StoreView) -> Iterator[Difference]:
    for file, kind, member in _TABLES:
        ours, theirs = (_rows(view.table(file, kind), member) for view in (left, right))
        for key in sorted(ours.keys() | theirs.keys(), key=str):
            name = f"{file} {key}"
            if key not in ours or key not in theirs:
                yield Difference("table", name, f"is only in {(left if key in ours else right).root}")
            elif ours[key] != theirs[key]:
                yield Difference("table", name, _changed(ours[key], theirs[key]))


def _rows(table: Body | None, member: str) -> dict[Any, Any]:
    """The rows of a table, as plain values."""
    rows: dict[Any, Any] = msgspec.to_builtins(getattr(table, member)) if table is not None else {}
    return rows


def _changed(ours: Any, theirs: Any) -> str:
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return f"{ours} and {theirs}"
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {ours.get(name, 'nothing')} and {theirs.get(name, 'nothing')}" for name in names)


def _report_nothing(_done: int, _total: int) -> None:
    """Progress is not shown."""
