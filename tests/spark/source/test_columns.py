"""Records to Arrow batches, many at once, against the codec that takes them one by one (U1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import ConfigError, CorruptRecord
from ternmq.message import MessageQueue
from ternmq.spark.source.bodies import BodyReader
from ternmq.spark.source.columns import Batches, Rows, spark_schema
from ternmq.spark.source.options import BadMessages
from ternmq.spark.source.records import Records
from ternmq.wire.compress import BODY_BYTES_MAX
from ternmq.wire.record import Sysflag, field_at, pack_host, pack_record, record_bytes, unpack_records
from tests.messages import to_message

QUEUE = MessageQueue("orders", "broker-a", 3)
V4, V4_OTHER, V6 = pack_host("10.1.2.3", 5678), pack_host("10.1.2.4", 1), pack_host("2001:db8::1", 77)

NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "color", "größe"])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=8)
PLAIN = st.dictionaries(NAMES, VALUES, max_size=4).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
)
#: As before RocketMQ 5.2, where the last pair has no end; and whatever else a sender may have packed.
PROPERTIES = (
    PLAIN
    | PLAIN.map(lambda text: text.removesuffix(b"\x02"))
    | st.binary(max_size=12).map(lambda text: text.translate(bytes.maketrans(b"0123", b"\x01\x02\x01\x02")))
    | st.lists(st.sampled_from([b"A", b"\x01", b"\x02", b"b", b"\xff"]), max_size=9).map(b"".join)
)


def packed(
    *,
    body: bytes = b"body",
    properties: bytes = b"",
    topic: bytes = b"orders",
    born_host: bytes = V4,
    store_host: bytes = V4,
    queue_offset: int = 7,
    sysflag: int = 0,
) -> bytes:
    """One record."""
    size = record_bytes(
        body=len(body),
        topic=len(topic),
        properties=len(properties),
        born_host=len(born_host),
        store_host=len(store_host),
    )
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=3,
        flag=0,
        queue_offset=queue_offset,
        log_offset=1_000 + queue_offset,
        sysflag=sysflag,
        born_time_ms=1_700_000_000_123,
        born_host=born_host,
        store_time_ms=1_700_000_000_456,
        store_host=store_host,
        reconsume_times=2,
        prepared_transaction_offset=0,
        body=body,
        topic=topic,
        properties=properties,
    )
    return bytes(page)


RECORDS = st.lists(
    st.builds(
        packed,
        body=st.binary(max_size=20),
        properties=PROPERTIES,
        topic=st.sampled_from([b"orders", b"o" * 200]),
        born_host=st.sampled_from([V4, V4, V4_OTHER, V6]),
        store_host=st.sampled_from([V4, V4, V6]),
        queue_offset=st.integers(0, 2**40),
    ),
    max_size=6,
)


def rows_one_by_one(data: bytes) -> list[dict[str, Any]]:
    """What the batch must be, by way of the messages that consumers get."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    rows = []
    for record in unpack_records(data):
        message = to_message(record, QUEUE.broker_name)
        if message.body_error:
            raise CorruptRecord(message.body_error)
        rows.append(
            {
                "topic": QUEUE.topic,
                "broker": QUEUE.broker_name,
                "queue_id": message.queue_id,
                "queue_offset": message.queue_offset,
                "log_offset": message.log_offset,
                "keys": message.properties.get("KEYS"),
                "tags": message.properties.get("TAGS"),
                "properties": sorted(message.properties.items()),
                "body": message.body,
                "born_time": epoch + timedelta(milliseconds=message.born_time_ms),
                "store_time": epoch + timedelta(milliseconds=message.store_time_ms),
                "born_host": message.born_host,
                "message_id": message.message_id,
                "reconsume_times": message.reconsume_times,
            }
        )
    return rows


def rows_at_once(data: bytes, *, tags: Sequence[str] = (), starts: Sequence[int] | None = None) -> list[dict[str, Any]]:
    records = Records(data, starts=None if starts is None else np.array(starts, np.int64))
    reader = BodyReader(QUEUE, BadMessages.FAIL, bytes_max=BODY_BYTES_MAX, decompresses=True)
    rows: list[dict[str, Any]] = []
    for part in reader.rows(records):
        batch = Batches(spark_schema(), tags=tags).of(part)
        batch.validate(full=True)
        rows += batch.to_pylist()
    return [{**row, "properties": sorted(row["properties"])} for row in rows]


@given(RECORDS)
def test_a_batch_has_what_the_messages_have(records: list[bytes]) -> None:
    """U1, C1: hosts of both kinds, long topics, properties of any form."""
    data = b"".join(records)

    assert rows_one_by_one(data) == rows_at_once(data)


@given(RECORDS, st.data())
def test_records_may_lie_anywhere_and_in_any_order(records: list[bytes], data: st.DataObject) -> None:
    """U1: as answers fall into the buffer of a line, with frames' headers between them."""
    gaps = [b"#" * data.draw(st.integers(0, 5)) for _ in records]
    starts = [sum(map(len, records[:number] + gaps[: number + 1])) for number in range(len(records))]
    order = data.draw(st.permutations(range(len(records))))
    octets = b"".join(gap + record for gap, record in zip(gaps, records, strict=True))

    rows = rows_at_once(octets, starts=[starts[number] for number in order])

    assert rows_one_by_one(b"".join(records[number] for number in order)) == rows


@given(
    st.lists(NAMES, min_size=1, max_size=4),
    st.lists(st.lists(VALUES, min_size=4, max_size=4), min_size=1, max_size=5),
)
def test_records_with_the_same_names_in_the_same_order(names: list[str], values: list[list[str]]) -> None:
    """U1: as one program sends them; a name may stand there twice."""
    texts = [
        "".join(f"{name}\x01{value}\x02" for name, value in zip(names, some, strict=False)).encode() for some in values
    ]
    data = b"".join(packed(properties=text) for text in texts)

    assert rows_one_by_one(data) == rows_at_once(data)


def test_tags_are_compared_by_text() -> None:
    """U1, K1: «Aa» and «BB» have one hash, so a broker lets both through."""
    data = b"".join(packed(properties=f"TAGS\x01{tag}\x02".encode()) for tag in ("Aa", "BB", "Aa")) + packed()

    assert ["Aa", "Aa"] == [row["tags"] for row in rows_at_once(data, tags=["Aa"])]


def test_only_the_columns_asked_for_are_made() -> None:
    """U1"""
    schema = spark_schema()
    chosen = type(schema)([schema["body"], schema["queue_offset"]])
    # Properties that were not requested are not read.
    records = Records(packed(properties=b"\xff\xff"))

    batch = Batches(chosen).of(Rows(records, QUEUE))

    assert [{"body": b"body", "queue_offset": 7}] == batch.to_pylist()


def test_a_column_that_topics_do_not_have_is_refused() -> None:
    """U1: a schema that does not fit."""
    with pytest.raises(ConfigError, match=r"no column 'price'; the columns are topic, broker, queue_id"):
        Batches(spark_schema().add("price", "double"))
    with pytest.raises(ConfigError, match=r"the column body is of type binary, not string; read it as it is"):
        Batches(type(spark_schema())().add("body", "string"))


@given(RECORDS.filter(bool), st.data())
def test_a_flipped_byte_is_found_or_does_no_harm(records: list[bytes], data: st.DataObject) -> None:
    """U1: the same errors as the codec that takes records one by one."""
    octets = bytearray(b"".join(records))
    place = data.draw(st.integers(0, len(octets) - 1))
    octets[place] ^= data.draw(st.integers(1, 255))
    broken = bytes(octets)

    def rows_or_error(make: Any) -> Any:
        try:
            return make(broken)
        except CorruptRecord:
            return "corrupt"

    try:
        expected = rows_or_error(rows_one_by_one)
    except OverflowError:  # a time beyond the year 9999
        return
    if "not UTF-8" in str(_error(broken)):  # the topic column is the queue's, so that text is not read
        return
    actual = rows_or_error(rows_at_once)
    assert expected == actual


def _error(data: bytes) -> BaseException | None:
    try:
        unpack_records(data)
    except CorruptRecord as error:
        return error
    return None


@pytest.mark.parametrize("body", [b"", b"xyz"])
def test_a_flipped_bit_that_says_compressed_is_found(body: bytes) -> None:
    """U1, E1: the CRC is that of the body as it was sent, so only decompression finds it."""
    octets = bytearray(packed(body=body))
    octets[field_at("sysflag") + 3] ^= Sysflag.COMPRESSED

    with pytest.raises(CorruptRecord, match="zlib body"):
        rows_at_once(bytes(octets))


@given(RECORDS.filter(bool), st.data())
def test_a_cut_is_found(records: list[bytes], data: st.DataObject) -> None:
    """U1"""
    octets = b"".join(records)
    ends = np.cumsum([len(record) for record in records]).tolist()
    end = data.draw(st.integers(1, len(octets) - 1).filter(lambda end: end not in ends))

    with pytest.raises(CorruptRecord):
        Records(octets[:end])
