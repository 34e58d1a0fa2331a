"""Bodies that cannot be had: the user decides what becomes of their messages (U1; issue 13, 9)."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from ternmq import Message, MessageQueue, SyncAdmin, SyncProducer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, CorruptRecord
from ternmq.spark.source import bodies
from ternmq.spark.source.bodies import BodyReader
from ternmq.spark.source.columns import COLUMNS_AND_PROBLEM, Batches, spark_schema
from ternmq.spark.source.options import BadMessages, SourceOptions
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.reading import TopicReading, columns_of
from ternmq.spark.source.records import Records
from ternmq.wire.record import Sysflag
from tests.spark.source.test_columns import packed
from tests.spark.topics import send_undecompressable

QUEUE = MessageQueue("orders", "broker-a", 0)


def compressed(body: bytes, *, queue_offset: int = 0) -> bytes:
    return packed(body=zlib.compress(body), sysflag=Sysflag.COMPRESSED, queue_offset=queue_offset)


def damaged(*, queue_offset: int) -> bytes:
    record = bytearray(packed(body=b"damaged", queue_offset=queue_offset))
    record[record.index(b"damaged")] ^= 1
    return bytes(record)


def rows(data: bytes, bad: BadMessages = BadMessages.FAIL, *, bytes_max: int = 1_000) -> list[list[dict[str, Any]]]:
    """The rows of each batch."""
    reader = BodyReader(QUEUE, bad, bytes_max=bytes_max, decompresses=True)
    batches = Batches(spark_schema(COLUMNS_AND_PROBLEM), columns=COLUMNS_AND_PROBLEM)
    found = [batches.of(some).to_pylist() for some in reader.rows(Records(data))]
    reader.close()
    return found


#: Two that are good, and three whose bodies cannot be had.
MIXED = (
    packed(body=b"plain", queue_offset=10)
    + packed(body=b"not zlib", sysflag=Sysflag.COMPRESSED, queue_offset=11)
    + compressed(b"x" * 1_000, queue_offset=12)
    + compressed(b"x" * 1_001, queue_offset=13)
    + damaged(queue_offset=14)
)


def test_compressed_bodies_are_made_whole() -> None:
    """U1, E1"""
    (batch,) = rows(compressed(b"x" * 1_000) + packed(body=b"plain"))

    assert [(b"x" * 1_000, None), (b"plain", None)] == [(row["body"], row["problem"]) for row in batch]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (packed(body=b"not zlib", sysflag=Sysflag.COMPRESSED, queue_offset=5), "the zlib body cannot be decompressed"),
        (compressed(b"x" * 1_001, queue_offset=5), "the 1000 bytes allowed"),
        (packed(body=b"x", sysflag=Sysflag.COMPRESSED | 0x700, queue_offset=5), "the body is compressed in a"),
        (damaged(queue_offset=5), "its body does not match its CRC"),
    ],
)
def test_a_bad_message_is_named_with_its_place(data: bytes, problem: str) -> None:
    """Issue 13, 9: topic, queue and offset, and the cure."""
    with pytest.raises(CorruptRecord) as caught:
        rows(data)

    sentence = str(caught.value)
    assert sentence.startswith(f"the message at queue offset 5 of {QUEUE} cannot be read: ")
    assert problem in sentence
    assert "set the option badMessages to skip or null" in sentence


def test_bad_messages_are_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, 9"""
    with caplog.at_level(logging.WARNING):
        (batch,) = rows(MIXED, BadMessages.SKIP)

    assert [(10, b"plain"), (12, b"x" * 1_000)] == [(row["queue_offset"], row["body"]) for row in batch]
    assert f"skipped 3 messages of {QUEUE}" in caplog.text
    assert "the first: the message at queue offset 11" in caplog.text


def test_bad_messages_have_no_body_and_a_column_that_says_why() -> None:
    """Issue 13, 9"""
    (batch,) = rows(MIXED, BadMessages.NULL)

    assert [b"plain", None, b"x" * 1_000, None, None] == [row["body"] for row in batch]
    assert [True, False, True, False, False] == [row["problem"] is None for row in batch]
    assert "its body does not match its CRC" == batch[-1]["problem"]


def test_a_batch_of_bodies_that_grow_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 13, 9: a chunk of some megabytes may decompress to gigabytes."""
    monkeypatch.setattr(bodies, "BATCH_BYTES", 2_000)
    data = b"".join(compressed(b"x" * 900, queue_offset=number) for number in range(7))

    assert [[0, 1, 2], [3, 4, 5], [6]] == [[row["queue_offset"] for row in batch] for batch in rows(data)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A topic of three messages, the second of which claims to be compressed."""
    with EmbeddedCluster() as running:
        with SyncAdmin(running.name_servers) as admin:
            admin.topics.create(QUEUE.topic, queues=1)

        with SyncProducer("tests", name_servers=running.name_servers) as producer:
            producer.send(Message(QUEUE.topic, b"0"))
            send_undecompressable(running.name_servers, QUEUE.topic)
            producer.send(Message(QUEUE.topic, b"2"))
        yield running


@pytest.mark.parametrize(
    ("bad", "expected"), [("skip", [(0, b"0"), (2, b"2")]), ("null", [(0, b"0"), (1, None), (2, b"2")])]
)
def test_one_bad_message_does_not_stop_the_reads_of_its_queue(
    cluster: EmbeddedCluster, bad: str, expected: list[tuple[int, bytes | None]]
) -> None:
    """Issue 13, 9: over the wire, as a task reads it."""

    def read(bad: str) -> list[tuple[int, bytes | None]]:
        texts = {"nameServers": cluster.name_servers, "topic": QUEUE.topic, "badMessages": bad}
        options = SourceOptions.parse(texts)
        reading = TopicReading(options, spark_schema(columns_of(options)))
        batches = [batch.to_pylist() for batch in reading.read(Slice(QUEUE, 0, 3))]
        return [(row["queue_offset"], row["body"]) for batch in batches for row in batch]

    assert expected == read(bad)
    with pytest.raises(CorruptRecord, match=rf"the message at queue offset 1 of {QUEUE} cannot be read"):
        read("fail")


def test_the_column_is_there_only_if_it_is_asked_for() -> None:
    """Issue 13, 9: other reads, and the lakes made of them, keep their columns."""
    options = SourceOptions.parse({"nameServers": "a:1", "topic": "orders"})

    assert "problem" not in columns_of(options)
    with pytest.raises(ConfigError, match="there is no column 'problem'"):
        TopicReading(options, spark_schema(COLUMNS_AND_PROBLEM))
