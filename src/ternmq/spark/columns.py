"""The columns of a topic, and Arrow batches of them (U1, U3).

Only the columns of the schema asked for are made, each for all records at once. Variable parts (bodies, properties) are
not cut out one by one: an Arrow array is a buffer and positions in it, so the records' own buffer, with positions where
a part begins and where it ends, *is* an array, of parts and gaps in turn; ``take`` picks the parts (``parts``).

Properties are one text a record, ``name \\x01 value \\x02`` again and again. All texts of a batch together are treated
as one: NumPy finds the separators, and names and values are parts again. Where a text is not of that form (an empty
value, a name twice, a value with \\x01 in it, bytes that are not UTF-8), the batch is read text by text by
``wire.properties``, whose rules hold for both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ternmq.errors import ConfigError
from ternmq.message import MessageQueue, Property
from ternmq.spark.records import Int64s, Records
from ternmq.wire import properties as property_texts
from ternmq.wire.compress import decompress
from ternmq.wire.ids import offset_id
from ternmq.wire.record import Sysflag, unpack_host

_TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())

_NAME_END: Final = 1
_PAIR_END: Final = 2


def spark_schema(columns: Mapping[str, Column] | None = None) -> StructType:
    """All columns, in the order of the guide. Without ``columns``: those of a topic; here and below."""
    return StructType([StructField(name, column.spark_type) for name, column in (columns or COLUMNS).items()])


def check_schema(schema: StructType, whole: StructType | None = None) -> None:
    """Raise ``ConfigError`` for columns that ``whole`` does not have, or not of that type."""
    types = {field.name: field.dataType for field in (whole or spark_schema()).fields}
    for field in schema.fields:
        known = types.get(field.name)
        if known is None:
            raise ConfigError(f"there is no column {field.name!r}; there are {', '.join(types)}")
        if field.dataType != known:
            raise ConfigError(
                f"the column {field.name} is of type {known.simpleString()}, "
                f"not {field.dataType.simpleString()}; read it as it is and cast it"
            )


class Batches:
    """Makes batches of one schema. A schema without ``tags`` may still ask for ``tags`` to choose by."""

    def __init__(
        self, schema: StructType, *, tags: Sequence[str] = (), columns: Mapping[str, Column] | None = None
    ) -> None:
        columns = columns or COLUMNS
        check_schema(schema, spark_schema(columns))
        self._columns = [columns[field.name] for field in schema.fields]
        self.schema = pa.schema(
            [pa.field(field.name, columns[field.name].arrow_type, field.nullable) for field in schema.fields]
        )
        #: Brokers compare hashes of tags (K1), so the tags themselves are compared again here.
        self._tags = pa.array(tags, pa.string()) if tags else None

    def batch(self, records: Records, queue: MessageQueue) -> pa.RecordBatch:
        """The rows of these records, which came from ``queue``."""
        return self.of(Rows(records, queue))

    def of(self, rows: Rows) -> pa.RecordBatch:
        """The batch of some rows."""
        batch = pa.RecordBatch.from_arrays([column.make(rows) for column in self._columns], schema=self.schema)
        if self._tags is not None:
            batch = batch.filter(pc.is_in(rows.property(Property.TAGS), value_set=self._tags))
        return batch


class Rows:
    """The records of a batch, and what several columns are made of; each part is found when first asked for."""

    def __init__(self, records: Records, queue: MessageQueue) -> None:
        self.records = records
        self.queue = queue

    @cached_property
    def pairs(self) -> Pairs:
        texts = parts(self.records.data, self.records.properties_at, self.records.properties_bytes)
        return _regular_pairs(texts) or _parsed_pairs(texts)

    def topics(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.queue.topic), len(self.records))

    def brokers(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.queue.broker_name, pa.string()), len(self.records))

    def property(self, name: str) -> pa.Array:
        """The values of one property, null where a record has none."""
        return self.pairs.values_of(name)

    def bodies(self) -> pa.Array:
        records = self.records
        bodies = parts(records.data, records.body_at, records.body_bytes)
        packed = (records.sysflags & Sysflag.COMPRESSED) != 0
        if not packed.any():
            return bodies
        return pa.array(
            [
                decompress(body, sysflag)
                for body, sysflag in zip(bodies.to_pylist(), records.sysflags.tolist(), strict=True)
            ],
            pa.binary(),
        )

    def born_hosts(self) -> pa.Array:
        distinct = self.records.distinct_born_hosts()
        if distinct is None:
            return pa.array(list(map(_host_text, self.records.born_hosts())), pa.string())
        hosts, which = distinct
        return pa.array(list(map(_host_text, hosts)), pa.string()).take(pa.array(which))

    def message_ids(self) -> pa.Array:
        ids = self.property(Property.UNIQUE_KEY)
        if not ids.null_count:
            return ids
        stored = map(offset_id, self.records.store_hosts(), self.records.log_offsets.tolist())
        return pc.coalesce(ids, pa.array(list(stored), pa.string()))


@dataclass(slots=True, frozen=True)
class Pairs:
    """The properties of all records, one after the other. ``ends[i]`` pairs belong to records 0 … i."""

    names: pa.Array
    values: pa.Array
    ends: Int64s
    #: The names, each once, and which of them each pair has.
    distinct: Mapping[str, int]
    which: npt.NDArray[Any]
    #: The record of each pair.
    owners: Int64s

    def values_of(self, name: str) -> pa.Array:
        number = self.distinct.get(name)
        if number is None:
            return pa.nulls(len(self.ends), pa.string())
        found = np.flatnonzero(self.which == number)
        owners = self.owners[found]
        if len(found) == len(self.ends):
            return self.values.take(pa.array(found))
        places = np.zeros(len(self.ends), np.int64)
        places[owners] = found
        missing = np.ones(len(self.ends), np.bool_)
        missing[owners] = False
        return self.values.take(pa.array(places, mask=missing))

    def maps(self) -> pa.Array:
        offsets = np.zeros(len(self.ends) + 1, np.int32)
        offsets[1:] = self.ends
        return pa.MapArray.from_arrays(pa.array(offsets), self.names, self.values)


def _regular_pairs(texts: pa.Array) -> Pairs | None:
    """The pairs of all texts at once; None when one of them is not of the plain form."""
    _, offset_buffer, data = texts.buffers()
    text_ends: Int64s = np.frombuffer(offset_buffer, np.int32)[1 : len(texts) + 1].astype(np.int64)
    size = int(text_ends[-1]) if len(texts) else 0
    octets = np.frombuffer(data, np.uint8)[:size] if size else np.zeros(0, np.uint8)
    pair_ends: Int64s = np.flatnonzero(octets == _PAIR_END)
    name_ends = np.flatnonzero(octets == _NAME_END)
    # Before RocketMQ 5.2 the last pair of a text had no end of its own.
    starts = np.concatenate(([0], text_ends[:-1])) if len(texts) else text_ends
    is_open = (text_ends > starts) & (octets[text_ends - 1] != _PAIR_END) if size else np.zeros(0, np.bool_)
    if is_open.any():
        pair_ends = np.sort(np.concatenate((pair_ends, text_ends[is_open])))
    if len(name_ends) != len(pair_ends):
        return None
    closed = octets[np.minimum(pair_ends, size - 1)] == _PAIR_END if size else np.zeros(0, np.bool_)
    if is_open.any():
        closed &= ~np.isin(pair_ends, text_ends[is_open])
    pair_starts = np.concatenate(([0], (pair_ends + closed)[:-1])) if len(pair_ends) else pair_ends
    if ((name_ends <= pair_starts) | (name_ends + 1 >= pair_ends)).any():
        return None
    # name, \x01, value, \x02: four parts a pair, and one place more for the end of the last.
    places = np.zeros(4 * len(pair_ends) + 1, np.int32)
    for number, part_starts in enumerate((pair_starts, name_ends, name_ends + 1, pair_ends)):
        places[number:-1:4] = part_starts
    if len(pair_ends):
        places[-1] = pair_ends[-1] + int(closed[-1])
    pieces = pa.Array.from_buffers(pa.binary(), len(places) - 1, [None, pa.py_buffer(places), data])
    try:
        names = pieces.take(pa.array(np.arange(0, len(pieces), 4))).cast(pa.string())
        values = pieces.take(pa.array(np.arange(2, len(pieces), 4))).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    owners: Int64s = np.searchsorted(text_ends, pair_starts, side="right")
    return _pairs(names, values, owners, len(texts))


def _parsed_pairs(texts: pa.Array) -> Pairs:
    """The same, text by text."""
    parsed = [property_texts.parse(str(text, "utf-8", "replace")) for text in texts.to_pylist()]
    names = pa.array([name for pairs in parsed for name in pairs], pa.string())
    values = pa.array([value for pairs in parsed for value in pairs.values()], pa.string())
    owners = np.repeat(np.arange(len(parsed), dtype=np.int64), list(map(len, parsed)))
    made = _pairs(names, values, owners, len(parsed))
    assert made is not None, "a dict has no name twice"
    return made


def _pairs(names: pa.Array, values: pa.Array, owners: Int64s, count: int) -> Pairs | None:
    """None when a record has a name twice: then the last counts, and it takes a closer look to find it."""
    encoded = names.dictionary_encode()
    which = encoded.indices.to_numpy(zero_copy_only=False)
    distinct = {name: number for number, name in enumerate(encoded.dictionary.to_pylist())}
    if len(owners) and np.bincount(owners * len(distinct) + which).max() > 1:
        return None
    ends = np.cumsum(np.bincount(owners, minlength=count)) if count else np.zeros(0, np.int64)
    return Pairs(names, values, ends, distinct, which, owners)


def parts(data: Any, at: Int64s, sizes: Int64s) -> pa.Array:
    """The parts of a buffer that begin ``at`` some places, in growing order, as one array of bytes."""
    if not len(at):
        return pa.array([], pa.binary())
    places = np.empty(2 * len(at), np.int32)
    places[0::2] = at
    places[1::2] = at + sizes
    pieces = pa.Array.from_buffers(pa.binary(), len(places) - 1, [None, pa.py_buffer(places), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, len(pieces), 2)))


def _host_text(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}"


def _times(times_ms: Int64s) -> pa.Array:
    return pa.array(times_ms * 1000).cast(_TIME)


@dataclass(slots=True, frozen=True)
class Column:
    """One column: its types, and how it is made."""

    spark_type: DataType
    arrow_type: pa.DataType
    make: Callable[[Rows], pa.Array]


def text_column(make: Callable[[Rows], pa.Array]) -> Column:
    return Column(StringType(), pa.string(), make)


def int_column(find: Callable[[Records], Int64s]) -> Column:
    return Column(IntegerType(), pa.int32(), lambda rows: pa.array(find(rows.records).astype(np.int32)))


def long_column(find: Callable[[Records], Int64s]) -> Column:
    return Column(LongType(), pa.int64(), lambda rows: pa.array(find(rows.records)))


def _time(find: Callable[[Records], Int64s]) -> Column:
    return Column(TimestampType(), _TIME, lambda rows: _times(find(rows.records)))


COLUMNS: Final[Mapping[str, Column]] = {
    "topic": text_column(lambda rows: rows.topics()),
    "broker": text_column(lambda rows: rows.brokers()),
    "queue_id": int_column(lambda records: records.queue_ids),
    "queue_offset": long_column(lambda records: records.queue_offsets),
    "log_offset": long_column(lambda records: records.log_offsets),
    "keys": text_column(lambda rows: rows.property(Property.KEYS)),
    "tags": text_column(lambda rows: rows.property(Property.TAGS)),
    "properties": Column(MapType(StringType(), StringType()), _MAP, lambda rows: rows.pairs.maps()),
    "body": Column(BinaryType(), pa.binary(), lambda rows: rows.bodies()),
    "born_time": _time(lambda records: records.born_times_ms),
    "store_time": _time(lambda records: records.store_times_ms),
    "born_host": text_column(Rows.born_hosts),
    "message_id": text_column(Rows.message_ids),
    "reconsume_times": int_column(lambda records: records.reconsume_times),
}
