"""Rows to chunks: executors pack Arrow batches (U2). A core.

A *chunk* is a unit of sending: rows of one topic, and of one queue if a sharding key determines it, in the wire form of
a batch send. It is packed once, by an executor; sending it later needs no work per row. Rows with a delay cannot be in
a batch send, so they have separate chunks, which are sent message by message.

Each row has a unique id (``UNIQ_KEY``) that no other row has: the chunk's 28 digits and the row's number in the chunk
as four more. It never changes: an id that is found in a queue shows which row of which chunk was stored. It
has the form of every producer's id, address and time included, so that RocketMQ's tools find it.

Most batches have a body, and keys and tags at most: a compiled kernel packs their rows into the open chunk. The first
row of each chunk, and whatever is not plain, is packed in Python.

A row that cannot be a message raises ``InvalidMessage`` with its values, its position and the cure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from ternmq.client.connect.namespace import wrap
from ternmq.client.send.validate import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from ternmq.errors import ConfigError, InvalidMessage, RouteMissing, TernError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import RESERVED_PROPERTIES, MessageQueue, Property
from ternmq.spark.sink.options import checked_topic
from ternmq.spark.source.columns import COLUMNS
from ternmq.types import Buffer
from ternmq.wire.batch import FIXED_BYTES, pack_messages
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import join

#: The types that each column may have.
WRITTEN: Final[dict[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "keys": (StringType(), ArrayType(StringType())),
    "tags": (StringType(),),
    "properties": (MapType(StringType(), StringType()),),
    "sharding_key": (StringType(),),
    "delay_level": (IntegerType(), ByteType(), ShortType(), LongType()),
    "deliver_time": (TimestampType(),),
}
#: Columns of the source that a sender cannot set. They are ignored, so that rows that were read can be written.
READ_ONLY: Final = tuple(name for name in COLUMNS if name not in WRITTEN)

#: When a message is due, ms since 1970: RocketMQ 5's.
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
#: Names with a meaning for brokers; those of timers would delay a row that has no delay.
_RESERVED: Final = RESERVED_PROPERTIES | {
    TIMER_DELIVER_MS,
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_OUT_MS",
}

DELAY_LEVEL_MAX: Final = 18
#: The ``delay`` of a chunk whose rows have individual times; above 0 it is a level.
TIMED: Final = -1

#: A record needs room for itself and its properties beside the body.
ROW_BYTES_MAX: Final = BODY_BYTES_MAX - (64 << 10)
#: Brokers add some: the target of a delayed message, and their own name.
ROW_PROPERTIES_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 512
#: The row's number has four digits.
CHUNK_ROWS_MAX: Final = 0xFFFF
CHUNK_ID_LENGTH: Final = 28
CHECKSUM_MODULO: Final = 2**64
#: Bytes of unfinished chunks of a task: with many queues or topics, chunks become smaller.
OPEN_BYTES_MAX: Final = 32 << 20

_SHOWN_LENGTH_MAX: Final = 40
#: The unique id as a property: name, chunk, row and separators.
_UNIQUE_LENGTH: Final = len(Property.UNIQUE_KEY) + CHUNK_ID_LENGTH + 6
#: Bytes of a row besides its body and the values of its columns: lengths, flag, and the unique id.
_ROW_FIXED_BYTES: Final = FIXED_BYTES + _UNIQUE_LENGTH


@dataclass(slots=True, frozen=True)
class Chunk:
    """Rows ready to be sent."""

    chunk_id: str
    topic: str
    #: The queue of its rows; None: any queue of the topic.
    queue: MessageQueue | None
    #: 0, a level, or ``TIMED``.
    delay: int
    rows: int
    #: Packed by ``wire.batch``.
    body: bytes
    #: Of its rows, independent of their order and ids: another run has the same, in other chunks.
    checksum: int


def row_key(chunk_id: str, row: int) -> str:
    """The unique id of one row of a chunk."""
    return f"{chunk_id}{row:04X}"


def place_of_key(unique_key: str) -> tuple[str, int] | None:
    """Chunk and row of a unique id; None if it is not an id of the sink."""
    if len(unique_key) != CHUNK_ID_LENGTH + 4:
        return None
    try:
        return unique_key[:CHUNK_ID_LENGTH], int(unique_key[CHUNK_ID_LENGTH:], 16)
    except ValueError:
        return None


def check_schema(schema: StructType, *, topic: str) -> None:
    """Raise ``ConfigError`` for unknown columns, or columns with another type."""
    named = {column.name for column in schema.fields}
    for column in schema.fields:
        if column.name in READ_ONLY:
            continue
        types = WRITTEN.get(column.name)
        if types is None:
            raise ConfigError(
                f"unknown column {column.name!r}; the columns are {', '.join(WRITTEN)}; {', '.join(READ_ONLY)} "
                "are ignored. Put other values into body or properties"
            )
        if not any(_is_alike(column.dataType, one) for one in types):
            allowed = " or ".join(one.simpleString() for one in types)
            raise ConfigError(
                f"the column {column.name} is of type {column.dataType.simpleString()}; cast it to {allowed}"
            )
    if "body" not in named:
        raise ConfigError("the column body is missing; add it with type binary or string")
    if not topic and "topic" not in named:
        raise ConfigError("no topic is given; set the option topic, or add a column topic")


def _is_alike(given: DataType, wanted: DataType) -> bool:
    """Whether types are equal, ignoring nullability."""
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return given.elementType == wanted.elementType
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return given.keyType == wanted.keyType and given.valueType == wanted.valueType
    return given == wanted


class _Group(NamedTuple):
    """The common values of the rows of a chunk."""

    topic: str
    queue: MessageQueue | None
    delay: int


@dataclass(slots=True)
class _Open:
    """A chunk that is not full yet: the packed rows, and those that are not packed."""

    chunk_id: str
    packed: list[bytes] = field(default_factory=list)
    packed_rows: int = 0
    checksum: int = 0
    messages: list[tuple[int, bytes, str]] = field(default_factory=list)
    size: int = 0

    @property
    def rows(self) -> int:
        return self.packed_rows + len(self.messages)

    def pack(self, topic: str) -> None:
        """Pack the rows that are not packed."""
        if self.messages:
            self.take(pack_messages(self.messages), len(self.messages), _checksum(topic, self.messages))
            self.messages = []

    def take(self, packed: bytes, rows: int, checksum: int) -> None:
        """Add packed rows behind the others."""
        self.packed.append(packed)
        self.packed_rows += rows
        self.checksum = (self.checksum + checksum) % CHECKSUM_MODULO


class Packer:
    """Packs the rows of one task into chunks. Rows of one group stay in order, within a chunk and from chunk to chunk.

    ``topic`` overrides the column of that name; both are names without the ``namespace``. ``queues_of`` returns the
    writable queues of a topic, and ``new_id`` the digits of a new chunk.
    """

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        chunk_bytes: int,
        namespace: str = "",
        drops_reserved: bool,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        new_id: Callable[[], str],
    ) -> None:
        self._topic = topic
        self._namespace = namespace
        self._partition = partition
        self._chunk_bytes = chunk_bytes
        self._drops_reserved = drops_reserved
        self._queues_of = queues_of
        self._new_id = new_id
        #: Java's consumers remove the namespace if this property has it.
        self._always = join({Property.INSTANCE_ID: namespace})
        self._open: dict[_Group, _Open] = {}
        self._open_bytes = 0
        #: Of rows without topic, queue and time: most rows, so it is not created for each.
        self._plain: _Group | None = None
        #: Known topics with their queues, by their names without the namespace.
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Add rows; yields the chunks that are full."""
        columns = _plain_columns(batch) if HAS_NATIVE and self._topic else None
        if columns is None:
            yield from self._add(batch)
            return
        at = 0
        while at < len(batch):
            at += self._add_plain(columns, at, len(batch))
            if at < len(batch):
                # No chunk is open, or this row is not plain, or does not fit.
                yield from self._add(batch.slice(at, 1))
                at += 1

    def _add_plain(self, columns: _PlainColumns, begin: int, end: int) -> int:
        """Add rows to the open chunk, as long as they are plain and there is room; returns how many."""
        group = self._plain
        opened = self._open.get(group) if group is not None else None
        if group is None or opened is None:
            return 0
        packed, rows, checksum = native.pack_rows(
            columns["body"],
            columns.get("tags"),
            columns.get("keys"),
            begin,
            end,
            chunk_id=opened.chunk_id,
            number=opened.rows,
            always=self._always,
            topic_crc=crc32(group.topic.encode()),
            room_bytes=max(0, self._chunk_bytes - opened.size),
            body_bytes_max=ROW_BYTES_MAX,
            properties_bytes_max=ROW_PROPERTIES_BYTES_MAX,
        )
        if rows:
            opened.pack(group.topic)
            opened.take(packed, rows, checksum)
            opened.size += len(packed)
            self._open_bytes += len(packed)
            self._rows += rows
        return rows

    def _add(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        columns = _Columns(batch)
        topics = repeat(self._topic) if self._topic else columns.of("topic")
        rows = zip(
            columns.bodies(),
            topics,
            columns.of("keys"),
            columns.of("tags"),
            columns.of("properties"),
            columns.of("sharding_key"),
            columns.of("delay_level"),
            columns.times_ms(),
            strict=False,  # repeated values have no end
        )
        unique = f"{Property.UNIQUE_KEY}\x01"
        chunk_bytes, open_chunks = self._chunk_bytes, self._open
        plain = self._plain
        for at, (body, topic, keys, tags, properties, sharding_key, level, time_ms) in enumerate(rows):
            try:
                if not body or len(body) > ROW_BYTES_MAX:
                    raise _bad_body(body)
                text = self._always
                if keys or tags or properties or sharding_key or level or time_ms is not None:
                    text = self._properties(keys, tags, properties, sharding_key, level, time_ms)
                if plain is not None and not (sharding_key or level or time_ms is not None):
                    group = plain
                else:
                    group = self._group(topic, sharding_key, level, time_ms)
                    if self._topic and group.queue is None and not group.delay:
                        plain = self._plain = group
            except (InvalidMessage, ConfigError) as error:
                raise self._refused(batch, at, error) from error
            text_bytes = len(text) if text.isascii() else len(text.encode())
            row_bytes = _ROW_FIXED_BYTES + len(body) + text_bytes
            opened = open_chunks.get(group)
            if opened is not None and (
                opened.size + row_bytes > chunk_bytes or opened.packed_rows + len(opened.messages) == CHUNK_ROWS_MAX
            ):
                yield self._close(group)
                opened = None
            if opened is None:
                if self._open_bytes > OPEN_BYTES_MAX:
                    yield from self.rest()
                opened = open_chunks[group] = _Open(self._new_id())
            messages = opened.messages
            number = opened.packed_rows + len(messages)
            messages.append((0, body, f"{unique}{opened.chunk_id}{number:04X}\x02{text}"))
            opened.size += row_bytes
            self._open_bytes += row_bytes
        self._rows += len(batch)

    def rest(self) -> Iterator[Chunk]:
        """The remaining chunks, full or not."""
        for group in list(self._open):
            yield self._close(group)

    def _close(self, group: _Group) -> Chunk:
        opened = self._open.pop(group)
        self._open_bytes -= opened.size
        opened.pack(group.topic)
        return Chunk(opened.chunk_id, *group, opened.rows, b"".join(opened.packed), opened.checksum)

    # --- One row ----------------------------------------------------------------------------------------------

    def _group(self, topic: str | None, sharding_key: str | None, level: int | None, time_ms: int | None) -> _Group:
        queues = self._queues.get(topic or "")
        if queues is None:
            queues = self._look_at(topic)
        queue = queues[abs(java_hash(sharding_key)) % len(queues)] if sharding_key else None
        return _Group(queues[0].topic, queue, TIMED if time_ms is not None else level or 0)

    def _look_at(self, topic: str | None) -> Sequence[MessageQueue]:
        if not topic:
            raise InvalidMessage("its topic is null; give it one, or set the option topic for all rows")
        checked_topic(topic)
        try:
            queues = self._queues[topic] = self._queues_of(wrap(self._namespace, topic))
        except RouteMissing:
            raise InvalidMessage(
                f"there is no topic {topic!r} that can be written to; create it with `tern topic create {topic}`"
            ) from None
        return queues

    def _properties(
        self,
        keys: str | list[str] | None,
        tags: str | None,
        properties: list[tuple[str, str | None]] | None,
        sharding_key: str | None,
        level: int | None,
        time_ms: int | None,
    ) -> str:
        pairs: dict[str, str] = {}
        for name, value in properties or ():
            if name not in _RESERVED:
                pairs[name] = value or ""
            elif not self._drops_reserved:
                raise InvalidMessage(
                    f"its property {name!r} is reserved; remove it, use the column for it if there is one, or "
                    "set the option reservedProperties to drop"
                )
        if tags:
            if "||" in tags:
                raise InvalidMessage(f"its tag {tags!r} contains '||', which separates tags in subscriptions")
            pairs[Property.TAGS] = tags
        if keys:
            pairs[Property.KEYS] = keys if isinstance(keys, str) else " ".join(filter(None, keys))
        if sharding_key:
            pairs[Property.SHARDING_KEY] = sharding_key
        if time_ms is not None:
            if level:
                raise InvalidMessage("it has both a delay_level and a deliver_time; give one of them")
            pairs[TIMER_DELIVER_MS] = str(max(time_ms, 0))
        if level:
            if not 1 <= level <= DELAY_LEVEL_MAX:
                raise InvalidMessage(
                    f"its delay_level {level} is invalid: expected 1 to {DELAY_LEVEL_MAX}, or 0 for no delay"
                )
            pairs[Property.DELAY] = str(level)
        text = self._always + join(pairs)
        if len(text) > ROW_PROPERTIES_BYTES_MAX or len(text.encode()) > ROW_PROPERTIES_BYTES_MAX:
            raise InvalidMessage(
                f"its keys, tags and properties need {len(text.encode())} bytes, at most "
                f"{ROW_PROPERTIES_BYTES_MAX} are allowed; put long values into the body"
            )
        return text

    def _refused(self, batch: pa.RecordBatch, at: int, error: TernError) -> InvalidMessage:
        row = batch.slice(at, 1)
        values = ", ".join(
            f"{name}={_shown(row.column(number)[0].as_py())}"
            for number, name in enumerate(batch.schema.names)
            if name in WRITTEN
        )
        return InvalidMessage(
            f"row {self._rows + at} of partition {self._partition} ({values}) cannot be sent: {error}"
        )


def _checksum(topic: str, messages: Sequence[tuple[int, bytes, str]]) -> int:
    """A number for some rows of a topic. Those of several chunks are added, modulo ``CHECKSUM_MODULO``."""
    # The first property is the row's id, which differs in another run.
    start, of_topic = _UNIQUE_LENGTH, crc32(topic.encode())
    mixed = np.array(
        [crc32(body, crc32(text[start:].encode(), of_topic)) for _, body, text in messages], dtype=np.uint64
    )
    # CRCs are linear: the sums of 1024 rows that count up and of the next 1024 are equal. So each is mixed first, as
    # MurmurHash3 does at its end (``fmix64``).
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    return int(mixed.sum())


#: The buffers of columns, by name: offsets, data, validity bits.
_PlainColumns: TypeAlias = Mapping[str, tuple[Buffer, Buffer | None, Buffer | None]]


def _octets(buffer: pa.Buffer | None) -> memoryview | None:
    """A buffer as unsigned bytes; those of Arrow are signed."""
    return memoryview(buffer).cast("B") if buffer is not None and buffer.size else None


def _plain_columns(batch: pa.RecordBatch) -> _PlainColumns | None:
    """The columns that are written, if the kernel knows all of them."""
    found: dict[str, tuple[Buffer, Buffer | None, Buffer | None]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in WRITTEN or name == "topic":
            continue  # a topic for all rows counts more than a column
        kinds = (pa.binary(), pa.string()) if name == "body" else (pa.string(),)
        if name not in ("body", "keys", "tags") or column.type not in kinds or column.offset:
            return None
        valid, offsets, data = map(_octets, column.buffers())
        if offsets is None:
            return None
        found[name] = (offsets, data, valid)
    return found


class _Columns:
    """The columns of a batch as Python values; a missing column is always null."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._by_name = dict(zip(batch.schema.names, batch.columns, strict=True))

    def of(self, name: str) -> Sequence[Any] | repeat[Any]:
        column = self._by_name.get(name)
        return repeat(None) if column is None else column.to_pylist()

    def bodies(self) -> Sequence[bytes | None]:
        column = self._by_name["body"]
        values: list[bytes | None] = (
            column if pa.types.is_binary(column.type) else pc.cast(column, pa.binary())
        ).to_pylist()
        return values

    def times_ms(self) -> Sequence[int | None] | repeat[None]:
        column = self._by_name.get("deliver_time")
        if column is None:
            return repeat(None)
        # A broker never delivers early, so the time is rounded up.
        return [None if us is None else -(-us // 1000) for us in pc.cast(column, pa.int64()).to_pylist()]


def _bad_body(body: bytes | None) -> InvalidMessage:
    if body is None:
        return InvalidMessage("its body is null; filter out such rows, or give them a body")
    if not body:
        return InvalidMessage("its body is empty; a message has at least one byte")
    return InvalidMessage(
        f"its body of {len(body)} bytes is larger than the {ROW_BYTES_MAX} allowed; store it elsewhere and send "
        "its address"
    )


def _shown(value: object) -> str:
    # A body may have megabytes; the rest is not needed.
    text = repr(value[: _SHOWN_LENGTH_MAX + 1] if isinstance(value, (bytes, str)) else value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}…"
