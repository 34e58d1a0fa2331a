"""The columns of a topic, and Arrow batches of them (U1, U3).

Only the columns of the requested schema are built, each for all records at once. Variable parts (bodies, properties)
are not copied one by one, see ``records`` and ``properties``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
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
from ternmq.spark.source.properties import Properties
from ternmq.spark.source.records import Int64s, Records
from ternmq.wire.ids import offset_id
from ternmq.wire.record import unpack_host

_TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())


def spark_schema(columns: Mapping[str, Column] | None = None) -> StructType:
    """All columns, in the order of the guide. Without ``columns``: those of a topic; also below."""
    return StructType([StructField(name, column.spark_type) for name, column in (columns or COLUMNS).items()])


def check_schema(schema: StructType, whole: StructType | None = None) -> None:
    """Raise ``ConfigError`` for columns that ``whole`` does not have, or has with another type."""
    types = {field.name: field.dataType for field in (whole or spark_schema()).fields}
    for field in schema.fields:
        known = types.get(field.name)
        if known is None:
            raise ConfigError(f"there is no column {field.name!r}; the columns are {', '.join(types)}")
        if field.dataType != known:
            raise ConfigError(
                f"the column {field.name} is of type {known.simpleString()}, "
                f"not {field.dataType.simpleString()}; read it as it is and cast it"
            )


class Batches:
    """Builds batches of one schema. A schema without ``tags`` may still filter by ``tags``."""

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

    def of(self, rows: Rows) -> pa.RecordBatch:
        """The batch of some rows."""
        batch = pa.RecordBatch.from_arrays([column.make(rows) for column in self._columns], schema=self.schema)
        if self._tags is not None:
            batch = batch.filter(pc.is_in(rows.property(Property.TAGS), value_set=self._tags))
        return batch


class Rows:
    """The records of a batch, and values that several columns need; each is computed when first used."""

    def __init__(
        self,
        records: Records,
        queue: MessageQueue,
        *,
        bodies: pa.Array | None = None,
        problems: pa.Array | None = None,
    ) -> None:
        """``bodies`` and ``problems`` if they differ from those of the records (``bodies.BodyReader``)."""
        self.records = records
        self.queue = queue
        self._bodies = bodies
        self._problems = problems

    @cached_property
    def properties(self) -> Properties:
        return Properties(self.records)

    def topics(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.queue.topic), len(self.records))

    def brokers(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.queue.broker_name, pa.string()), len(self.records))

    def property(self, name: str) -> pa.Array:
        """The values of one property, null if a record does not have it."""
        return self.properties.values_of(name)

    def bodies(self) -> pa.Array:
        return self._bodies if self._bodies is not None else self.records.bodies

    def problems(self) -> pa.Array:
        """Why a body is null; null if it is not."""
        return self._problems if self._problems is not None else pa.nulls(len(self.records), pa.string())

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


def _host_text(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}"


def _times(times_ms: Int64s) -> pa.Array:
    return pa.array(times_ms * 1000).cast(_TIME)


@dataclass(slots=True, frozen=True)
class Column:
    """One column: its types, and how it is built."""

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
    "properties": Column(MapType(StringType(), StringType()), _MAP, lambda rows: rows.properties.maps()),
    "body": Column(BinaryType(), pa.binary(), lambda rows: rows.bodies()),
    "born_time": _time(lambda records: records.born_times_ms),
    "store_time": _time(lambda records: records.store_times_ms),
    "born_host": text_column(Rows.born_hosts),
    "message_id": text_column(Rows.message_ids),
    "reconsume_times": int_column(lambda records: records.reconsume_times),
}

#: The column with the reason why a message has no body, and all columns of a read that has it.
PROBLEM: Final = "problem"
COLUMNS_AND_PROBLEM: Final[Mapping[str, Column]] = {**COLUMNS, PROBLEM: text_column(Rows.problems)}
