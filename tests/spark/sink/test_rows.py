"""Rows to chunks (U2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from ternmq.client.send.queue_choice import by_sharding_key
from ternmq.errors import ConfigError, InvalidMessage, RouteMissing
from ternmq.message import Message, MessageQueue
from ternmq.spark.sink.rows import (
    CHECKSUM_MODULO,
    ROW_BYTES_MAX,
    TIMED,
    Chunk,
    Packer,
    check_schema,
    place_of_key,
    row_key,
)
from ternmq.spark.source.columns import spark_schema
from ternmq.wire import properties as property_texts
from ternmq.wire.batch import unpack_messages

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(4)]


def queues_of(topic: str) -> Sequence[MessageQueue]:
    if topic == "unknown":
        raise RouteMissing("nowhere", topic=topic)
    return [queue._replace(topic=topic) for queue in QUEUES]


def packed(
    batches: pa.RecordBatch | list[pa.RecordBatch],
    *,
    topic: str = "orders",
    chunk_bytes: int = 1 << 20,
    drops_reserved: bool = False,
    namespace: str = "",
) -> list[Chunk]:
    ids = count(1)
    packer = Packer(
        topic=topic,
        namespace=namespace,
        partition=3,
        chunk_bytes=chunk_bytes,
        drops_reserved=drops_reserved,
        queues_of=queues_of,
        new_id=lambda: f"{next(ids):028X}",
    )
    batches = batches if isinstance(batches, list) else [batches]
    return [*(chunk for batch in batches for chunk in packer.add(batch)), *packer.rest()]


def rows_of(chunk: Chunk) -> list[tuple[bytes, dict[str, str]]]:
    return [(body, property_texts.parse(text.decode())) for _, body, text in unpack_messages(chunk.body)]


def test_a_row_becomes_a_message_with_all_that_its_columns_say() -> None:
    (chunk,) = packed(
        pa.record_batch(
            {
                "body": ["größe"],
                "keys": [["k1", "k2"]],
                "tags": ["A"],
                "properties": pa.array([[("color", "red"), ("none", None)]], pa.map_(pa.string(), pa.string())),
                "sharding_key": ["s"],
            }
        )
    )
    expected = {"UNIQ_KEY": f"{1:028X}0000", "color": "red", "TAGS": "A", "KEYS": "k1 k2", "__SHARDINGKEY": "s"}
    assert [("größe".encode(), expected)] == rows_of(chunk)
    assert by_sharding_key(QUEUES, Message("orders", b"", sharding_key="s")) == chunk.queue
    assert 0 == chunk.delay


def test_rows_with_a_delay_or_a_time_have_chunks_of_their_own() -> None:
    when = datetime(2026, 11, 16, 8, 30, 0, 1, tzinfo=UTC)
    chunks = packed(
        pa.record_batch(
            {
                "body": [b"a", b"b", b"c", b"d"],
                "delay_level": [None, 3, 0, 3],
                "deliver_time": pa.array([None, None, when, None], pa.timestamp("us", tz="UTC")),
            }
        )
    )
    assert [(0, 1), (3, 2), (TIMED, 1)] == [(chunk.delay, chunk.rows) for chunk in chunks]
    assert ["3", "3"] == [pairs["DELAY"] for _, pairs in rows_of(chunks[1])]
    # A microsecond past the millisecond: never early.
    assert "1794817800001" == rows_of(chunks[2])[0][1]["TIMER_DELIVER_MS"]


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=60), max_size=40),
    keys=st.lists(st.sampled_from(["", "a", "b", "ü"]), min_size=40, max_size=40),
    chunk_bytes=st.integers(100, 800),
    cut=st.integers(0, 40),
)
def test_each_row_is_in_one_chunk_and_keys_keep_their_order(
    bodies: list[bytes], keys: list[str], chunk_bytes: int, cut: int
) -> None:
    """Ids are unique, chunks fit, and rows of one key stay in one queue, in order."""
    keys = keys[: len(bodies)]
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary()), "sharding_key": pa.array(keys, pa.string())})
    chunks = packed([batch.slice(0, cut), batch.slice(cut)], chunk_bytes=chunk_bytes)
    found: dict[str, list[bytes]] = {}
    ids: list[str] = []
    for chunk in chunks:
        assert chunk.rows == 1 or len(chunk.body) <= chunk_bytes
        rows = rows_of(chunk)
        assert chunk.rows == len(rows)
        for number, (body, pairs) in enumerate(rows):
            assert (chunk.chunk_id, number) == place_of_key(pairs["UNIQ_KEY"])
            ids.append(pairs["UNIQ_KEY"])
            found.setdefault(pairs.get("__SHARDINGKEY", ""), []).append(body)
    assert len(bodies) == len(set(ids)) == len(ids)
    expected: dict[str, list[bytes]] = {}
    for body, key in zip(bodies, keys, strict=True):
        expected.setdefault(key, []).append(body)
    assert expected == found


def test_a_chunk_has_no_more_rows_than_its_ids_can_count() -> None:
    chunks = packed(pa.record_batch({"body": [b"x"] * 70_000}), chunk_bytes=3 << 20)
    assert 70_000 == sum(chunk.rows for chunk in chunks)
    assert max(chunk.rows for chunk in chunks) <= 0xFFFF


def summed(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.checksum for chunk in chunks) % CHECKSUM_MODULO


@given(st.lists(st.tuples(st.binary(min_size=1), st.sampled_from(["", "A", "B"])), min_size=1), st.randoms())
def test_rows_have_one_checksum_in_whatever_order_and_chunks(rows: list[tuple[bytes, str]], chance: Random) -> None:
    """Issue 13, point 11: how two runs of a batch are compared."""

    def of(rows: list[tuple[bytes, str]], **options: Any) -> int:
        columns = {"body": pa.array([body for body, _ in rows], pa.binary()), "tags": [tag for _, tag in rows]}
        return summed(packed(pa.record_batch(columns), **options))

    mixed = list(rows)
    chance.shuffle(mixed)
    expected = of(rows)
    assert expected == of(mixed, chunk_bytes=100)
    (body, tag), *others = rows
    assert expected != of([(body + b"!", tag), *others])
    assert expected != of([(body, tag + "C"), *others])
    assert expected != of([*rows, rows[0]])
    assert expected != of(rows, topic="bills")
    assert expected != of(rows, namespace="shop")


@pytest.mark.parametrize("form", [lambda number: b"%08d" % number, lambda number: number.to_bytes(4, "big")])
def test_batches_of_rows_that_count_up_have_different_checksums(form: Callable[[int], bytes]) -> None:
    """Issue 13, point 11: a sum of plain CRCs is the same for many of them."""
    batches = [[form(number) for number in range(first, first + 1024)] for first in range(0, 20 * 1024, 1024)]
    sums = [summed(packed(pa.record_batch({"body": pa.array(batch, pa.binary())}))) for batch in batches]
    assert len(batches) == len(set(sums))


def test_the_topic_of_a_row_counts_unless_one_is_set_for_all() -> None:
    batch = pa.record_batch({"body": [b"1", b"2", b"3"], "topic": ["a", "b", "a"]})
    assert [("a", 2), ("b", 1)] == [(chunk.topic, chunk.rows) for chunk in packed(batch, topic="")]
    assert [("orders", 3)] == [(chunk.topic, chunk.rows) for chunk in packed(batch)]


def test_a_namespace_is_before_the_topic_and_in_a_property() -> None:
    batch = pa.record_batch({"body": [b"1", b"2"], "tags": [None, "A"]})
    (chunk,) = packed(batch, namespace="shop")
    assert "shop%orders" == chunk.topic
    assert ["shop", "shop"] == [pairs["INSTANCE_ID"] for _, pairs in rows_of(chunk)]


def test_what_is_no_id_of_ours_names_no_row() -> None:
    assert None is place_of_key("")
    assert None is place_of_key("order-1")
    assert None is place_of_key("x" * 32)
    assert ("A" * 28, 255) == place_of_key(row_key("A" * 28, 255))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"body": [b"ok", None]}, r"row 1 of partition 3 \(body=None\) cannot be sent: its body is null"),
        ({"body": [b"ok", b""]}, "its body is empty"),
        ({"body": [b"x" * (ROW_BYTES_MAX + 1)]}, r"row 0 of .* \(body=b'x+…\).* is larger than the 4128768 allowed"),
        ({"body": [b"x"], "tags": ["a||b"]}, "its tag 'a||b' has"),
        ({"body": [b"x"], "tags": ["a\x02b"]}, r"\(body=b'x', tags='a\\x02b'\).*cannot be stored"),
        ({"body": [b"x"], "delay_level": [19]}, "its delay_level 19 is invalid: expected 1 to 18"),
        ({"body": [b"x"], "delay_level": [-1]}, "its delay_level -1 is invalid"),
        ({"body": [b"x"], "keys": ["k" * 40_000]}, "need 40006 bytes, at most 32255 are allowed"),
        ({"body": [b"x"], "keys": ["ü" * 20_000]}, "need 40006 bytes"),
        (
            {"body": [b"x"], "properties": pa.array([[("UNIQ_KEY", "1")]], pa.map_(pa.string(), pa.string()))},
            "its property 'UNIQ_KEY' is reserved; .* reservedProperties to drop",
        ),
        (
            {"body": [b"x"], "delay_level": [1], "deliver_time": pa.array([0], pa.timestamp("us", tz="UTC"))},
            "both a delay_level and a deliver_time",
        ),
        ({"body": [b"x"], "topic": ["no blanks"]}, "topic name 'no blanks' has characters"),
        ({"body": [b"x"], "topic": [None]}, "its topic is null"),
        ({"body": [b"x"], "topic": ["TERNMQ_SPARK_LEDGER"]}, "is a system topic"),
        ({"body": [b"x"], "topic": ["unknown"]}, "there is no topic 'unknown' .* `tern topic create unknown`"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named_with_the_cure(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidMessage, match=sentence) as caught:
        packed(pa.record_batch(columns), topic="" if "topic" in columns else "orders")
    assert len(str(caught.value)) < 500


def test_rows_are_numbered_through_all_batches_of_a_task() -> None:
    good = pa.record_batch({"body": [b"x"] * 10})
    with pytest.raises(InvalidMessage, match="row 20 of partition 3"):
        packed([good, good, pa.record_batch({"body": pa.array([None], pa.binary())})])


def test_what_was_read_can_be_written() -> None:
    """The source's columns are known, and the system's properties can be dropped."""
    check_schema(spark_schema(), topic="copy")
    names = [("KEYS", "k"), ("UNIQ_KEY", "u"), ("CLUSTER", "c"), ("mine", "1")]
    properties = pa.array([names], pa.map_(pa.string(), pa.string()))
    (chunk,) = packed(
        pa.record_batch({"body": [b"x"], "keys": ["k"], "properties": properties, "queue_id": [1]}),
        drops_reserved=True,
    )
    assert {"UNIQ_KEY": f"{1:028X}0000", "mine": "1", "KEYS": "k"} == rows_of(chunk)[0][1]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"value": BinaryType()}, "unknown column 'value'; the columns are body, topic, keys"),
        ({"keys": StringType()}, "the column body is missing"),
        ({"body": LongType()}, "the column body is of type bigint; cast it to binary or string"),
        (
            {"body": StringType(), "keys": ArrayType(LongType())},
            "type array<bigint>; cast it to string or array<string>",
        ),
        ({"body": StringType(), "deliver_time": TimestampNTZType()}, "cast it to timestamp"),
        ({"body": StringType(), "properties": MapType(StringType(), LongType())}, "cast it to map<string,string>"),
    ],
)
def test_a_schema_that_does_not_fit_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields.items()])
    with pytest.raises(ConfigError, match=sentence):
        check_schema(schema, topic="orders")


def test_without_a_topic_there_must_be_a_column_for_it() -> None:
    body = StructType([StructField("body", BinaryType())])
    with pytest.raises(ConfigError, match="no topic is given"):
        check_schema(body, topic="")
    check_schema(body.add("topic", StringType()), topic="")
