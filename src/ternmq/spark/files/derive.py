"""Queue and index entries of many records at once: the folds of ``store.derived.dispatch`` in NumPy and Arrow; a core
(U4).

*Queues.* Each record has an entry of 20 bytes in its queue. The entries of a batch are sorted by queue; entries with
consecutive queue offsets are one *run*: the first queue offset, and the contiguous entries.

*Index.* Each key of a record has an entry: hash of ``topic#key``, log offset, store time. ``String.hashCode`` is a sum
over the key's characters times powers of 31, modulo 2³²; for keys of one length that is the product of a matrix and a
vector. Keys that are not ASCII are hashed one by one.

Both give what ``Dispatcher.fold`` would, which tests compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ternmq.message import Property
from ternmq.names import SCHEDULE_TOPIC
from ternmq.spark.files.columns import LogRows
from ternmq.spark.files.queues import ENTRIES
from ternmq.spark.source.records import Int64s
from ternmq.store.derived.dispatch import due_time
from ternmq.store.derived.light import OFFSETS_PROPERTY, light_places
from ternmq.store.inspect.rebuild import LeftOut
from ternmq.wire.ids import POWERS, java_hash, java_hash_append
from ternmq.wire.record import Sysflag

#: An index entry before it is written to its file.
KEYED: Final = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("store_time_ms", ">i8")])

_SIGN: Final = 0x80000000

Uint32s = npt.NDArray[np.uint32]


@dataclass(slots=True, frozen=True)
class Rules:
    """What a fold needs besides the log. Sent to executors."""

    left_out: LeftOut
    #: Topic → log offset of its deletion.
    deleted: Mapping[str, int]
    has_light: bool
    delays_ms: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Runs:
    """Entries of queues, run by run: queue, first queue offset, first log offset and entries of each."""

    topics: pa.Array
    queue_ids: pa.Array
    queue_offsets: pa.Array
    log_offsets: pa.Array
    entries: pa.Array


# --- Queues -------------------------------------------------------------------------------------------------------


def queue_runs(rows: LogRows, rules: Rules) -> Iterator[Runs]:
    """The runs of these records, in log order for each queue."""
    records = rows.records
    names = rows.topic_names.to_pylist()
    topics = rows.encoded_topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    entries = np.empty(len(records), ENTRIES)
    entries["log_offset"] = records.log_offsets
    entries["size"] = records.sizes
    entries["tags_code"] = _tags_codes(rows, names, topics, rules)
    queued = (records.sysflags & Sysflag.PREPARED) == 0
    for number, name in enumerate(names):
        end = rules.deleted.get(name, 0)
        if end:
            queued &= (topics != number) | (records.log_offsets >= end)
    if rules.has_light:
        yield from _light_runs(rows, entries, queued, rules)
    for number, name in enumerate(names):
        if name in rules.left_out:
            queued &= topics != number
    chosen = np.flatnonzero(queued)
    if not len(chosen):
        return
    # One number per queue; queue ids have 32 bits. A stable sort keeps the log's order.
    queues = (topics[chosen] << 32) + records.queue_ids[chosen]
    chosen = chosen[np.argsort(queues, kind="stable")]
    queues = (topics[chosen] << 32) + records.queue_ids[chosen]
    offsets = records.queue_offsets[chosen]
    begins = np.concatenate(([0], np.flatnonzero((np.diff(queues) != 0) | (np.diff(offsets) != 1)) + 1))
    firsts = chosen[begins]
    yield Runs(
        rows.topic_names.take(pa.array(topics[firsts])),
        pa.array(records.queue_ids[firsts].astype(np.int32)),
        pa.array(records.queue_offsets[firsts]),
        pa.array(records.log_offsets[firsts]),
        _pieces(entries[chosen], begins),
    )


def _pieces(values: npt.NDArray[Any], begins: Int64s) -> pa.Array:
    """The bytes of some values, split where pieces begin."""
    places = np.append(begins, len(values)) * values.itemsize
    buffers = [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(values.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(begins), buffers)


def _tags_codes(rows: LogRows, names: list[str], topics: Int64s, rules: Rules) -> Int64s:
    encoded = rows.property(Property.TAGS).dictionary_encode()
    codes = np.array([java_hash(tags) for tags in encoded.dictionary.to_pylist()] or [0], np.int64)
    which = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    tags_codes: Int64s = np.where(encoded.is_valid().to_numpy(zero_copy_only=False), codes[which], 0)
    if SCHEDULE_TOPIC in names:
        times_ms = rows.records.store_times_ms
        for row in np.flatnonzero(topics == names.index(SCHEDULE_TOPIC)).tolist():
            due_ms = due_time(_text(rows, row), int(times_ms[row]), rules.delays_ms)
            tags_codes[row] = due_ms or tags_codes[row]
    return tags_codes


def _text(rows: LogRows, row: int) -> str:
    records = rows.records
    at = int(records.properties_at[row])
    return str(records.data[at : at + int(records.properties_bytes[row])], "utf-8", "replace")


def _light_runs(
    rows: LogRows, entries: npt.NDArray[Any], queued: npt.NDArray[np.bool_], rules: Rules
) -> Iterator[Runs]:
    """Further queues of RocketMQ that contain the records, by their properties (``store.derived.light``)."""
    named = rows.property(OFFSETS_PROPERTY).is_valid().to_numpy(zero_copy_only=False)
    places = [
        (topic, queue_offset, row)
        for row in np.flatnonzero(named & queued).tolist()
        for topic, queue_offset in light_places(_text(rows, row))
        if topic not in rules.left_out
    ]
    if places:
        which = np.array([row for _, _, row in places])
        yield Runs(
            pa.array([topic for topic, _, _ in places]),
            pa.array(np.zeros(len(places), np.int32)),
            pa.array([queue_offset for _, queue_offset, _ in places]),
            pa.array(rows.records.log_offsets[which]),
            _pieces(entries[which], np.arange(len(which))),
        )


# --- Index --------------------------------------------------------------------------------------------------------


def index_entries(rows: LogRows) -> npt.NDArray[Any]:
    """The index entries of these records, in order: for each its unique key, then all its keys."""
    records = rows.records
    prefixes = np.array([java_hash(f"{name}#") & 0xFFFFFFFF for name in rows.topic_names.to_pylist()] or [0], np.uint32)
    prefixes = prefixes[rows.encoded_topics.indices.to_numpy(zero_copy_only=False)]
    indexed = (records.sysflags & Sysflag.TRANSACTION_MASK) != Sysflag.ROLLBACK
    owners: list[Int64s] = []
    hashes: list[Uint32s] = []
    for texts, rows_of in (_values(rows, Property.UNIQUE_KEY, indexed), _keys(rows, indexed)):
        owners.append(rows_of)
        hashes.append(_hashes(texts, prefixes[rows_of]))
    owner, hashed = np.concatenate(owners), np.concatenate(hashes).astype(np.int64)
    order = np.argsort(owner, kind="stable")
    owner, hashed = owner[order], hashed[order]
    made = np.empty(len(owner), KEYED)
    # Java's Math.abs; the smallest int, which has no positive counterpart, counts as 0.
    made["hash"] = np.where(hashed < _SIGN, hashed, np.where(hashed == _SIGN, 0, 2 * _SIGN - hashed))
    made["log_offset"] = records.log_offsets[owner]
    made["store_time_ms"] = records.store_times_ms[owner]
    return made


def _values(rows: LogRows, name: str, indexed: npt.NDArray[np.bool_]) -> tuple[pa.Array, Int64s]:
    """The values of a property, and the row of each."""
    values = rows.property(name)
    chosen = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False) & indexed)
    return values.take(pa.array(chosen)), chosen


def _keys(rows: LogRows, indexed: npt.NDArray[np.bool_]) -> tuple[pa.Array, Int64s]:
    """The keys in KEYS, which are separated by blanks, and the row of each."""
    texts, owners = _values(rows, Property.KEYS, indexed)
    if not pc.any(pc.match_substring(texts, " ")).as_py():
        return texts, owners
    split = pc.split_pattern(texts, " ")
    keys = split.flatten()
    parents = owners[pc.list_parent_indices(split).to_numpy(zero_copy_only=False)]
    some = pc.greater(pc.binary_length(keys), 0)
    return keys.filter(some), parents[some.to_numpy(zero_copy_only=False)]


def _hashes(texts: pa.Array, prefixes: Uint32s) -> Uint32s:
    """Java's hash of each text after a prefix whose hash is known, modulo 2³²."""
    made = np.zeros(len(texts), np.uint32)
    if not len(texts):
        return made
    _, offset_buffer, data = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8)
    lengths = np.diff(offsets)
    is_plain = pc.string_is_ascii(texts).to_numpy(zero_copy_only=False) & (lengths < len(POWERS))
    for length in np.unique(lengths[is_plain]).tolist():
        chosen = np.flatnonzero(is_plain & (lengths == length))
        characters = octets[offsets[chosen][:, None] + np.arange(length)].astype(np.uint32)
        powers = np.array(POWERS[length - 1 :: -1] if length else (), np.uint32)
        made[chosen] = prefixes[chosen] * np.uint32(POWERS[length]) + (characters * powers).sum(axis=1, dtype=np.uint32)
    for number in np.flatnonzero(~is_plain).tolist():
        made[number] = java_hash_append(int(prefixes[number]), texts[number].as_py()) & 0xFFFFFFFF
    return made
