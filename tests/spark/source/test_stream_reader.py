"""What a stream's planner tells Spark, without Spark: starts, ends and what brokers are told (U1; issue 13, 12)."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ternmq import Message, MessageQueue, SyncAdmin, SyncProducer
from ternmq.errors import ConfigError, MessagesLost, NetworkError
from ternmq.spark.source import columns
from ternmq.spark.source.batch import BatchReader
from ternmq.spark.source.options import SINCE, SourceOptions, checkpoint_of
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.stream import StreamReader
from tests.spark.servers import NAME_SERVER, Servers

ALL = ReadAllAvailable()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with Servers(tmp_path) as running:
        yield running


def options_of(servers: Servers, options: dict[str, object]) -> SourceOptions:
    texts = {"nameServers": servers.name_servers, "discoverIntervalMs": "1", "retryTimeoutMs": "60000"}
    return SourceOptions.parse(texts | {name: str(value) for name, value in options.items()})


def stream(servers: Servers, **options: object) -> StreamReader:
    return StreamReader(options_of(servers, options), columns.spark_schema())


def create(servers: Servers, topic: str, *, queues: int = 1) -> None:
    with SyncAdmin(servers.name_servers) as admin:
        admin.topics.create(topic, queues=queues)


def send(servers: Servers, queue: MessageQueue, count: int) -> None:
    with SyncProducer("tests", name_servers=servers.name_servers) as producer:
        for number in range(count):
            producer.send(Message(queue.topic, b"%d" % number), queue=queue)


def offsets(table: dict[str, Any]) -> dict[str, int]:
    """Offsets of a checkpoint, which is JSON to Spark."""
    return {str(queue): offset for queue, offset in checkpoint_of(json.loads(json.dumps(table)))[0].items()}


def planned(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    slices = reader.partitions(start, end)
    return [(str(one.queue), one.start, one.end) for one in slices if isinstance(one, Slice)]


A0, B0 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)


def test_a_broker_that_was_down_at_the_start_is_read_from_the_start_on_not_from_its_first_message(
    servers: Servers,
) -> None:
    """Issue 13, 12: a stream with ``latest``, one that starts at a time, and one that reads all there is."""
    for name in ("broker-a", "broker-b"):
        servers.start_broker(name)
    create(servers, "orders")
    send(servers, A0, 3)
    send(servers, B0, 5)
    servers.stop("broker-b")
    kinds: tuple[dict[str, object], ...] = (
        {"startingOffsets": "latest"},
        {"startingTimestamp": "2999-01-01"},
        {"startingOffsets": "earliest"},
    )
    readers = [stream(servers, topic="orders", **kind) for kind in kinds]
    starts = [reader.initialOffset() for reader in readers]
    assert [{str(A0): 3}, {str(A0): 3}, {str(A0): 0}] == list(map(offsets, starts))

    servers.start_broker("broker-b")
    send(servers, B0, 2)
    firsts = [reader.latestOffset(start, ALL) for reader, start in zip(readers, starts, strict=True)]
    seconds = [reader.latestOffset(first, ALL) for reader, first in zip(readers, firsts, strict=True)]

    read = [planned(*one) for one in zip(readers, firsts, seconds, strict=True)]
    assert [[(str(B0), 5, 7)], [], [(str(B0), 0, 7)]] == read


def test_a_batch_with_new_queues_that_is_done_again_reads_the_same(servers: Servers) -> None:
    """Issue 13, 12: starts of new queues are in the checkpoint, so nothing that happens meanwhile changes them."""
    servers.start_broker("broker-a")
    create(servers, "orders")
    reader = stream(servers, topic="orders", startingOffsets="earliest")
    start = reader.initialOffset()
    create(servers, "orders", queues=2)
    new = A0._replace(queue_id=1)
    send(servers, new, 4)

    first = reader.latestOffset(start, ALL)
    second = reader.latestOffset(first, ALL)

    assert ([], [(str(new), 0, 4)]) == (planned(reader, start, first), planned(reader, first, second))
    # A batch of a checkpoint that an earlier version made: it names no start, and is not lost.
    old = [{name: value for name, value in table.items() if name != SINCE} for table in (start, second)]
    assert [(str(new), 0, 4)] == planned(reader, *old)
    servers.stop("broker-a")
    hasty = stream(servers, topic="orders", startingOffsets="earliest", retryTimeoutMs=1)
    with pytest.raises(NetworkError, match=r"cannot read orders@broker-a:1 within 1 ms"):
        hasty.partitions(*old)
    # Planned again without asking any broker.
    again = stream(servers, topic="orders", startingOffsets="earliest")
    assert ([], [(str(new), 0, 4)]) == (planned(again, start, first), planned(again, first, second))


@pytest.mark.parametrize("which", [{"topicPattern": "orders|bills"}, {"topics": "orders,bills"}])
def test_a_topic_that_was_deleted_is_lost_data_and_one_whose_broker_is_away_is_not(
    servers: Servers, which: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 13, 12: as in Spark's Kafka source, ``failOnDataLoss`` decides; a broker that is down is waited for."""
    for name in ("broker-a", "broker-b"):
        servers.start_broker(name)
    for topic in ("orders", "bills"):
        create(servers, topic)
    strict = stream(servers, startingOffsets="earliest", **which)
    lenient = stream(servers, startingOffsets="earliest", failOnDataLoss="false", **which)
    start = strict.initialOffset()
    servers.stop("broker-b")

    assert offsets(start) == offsets(strict.latestOffset(start, ALL))

    with SyncAdmin(servers.name_servers) as admin:
        admin.topics.delete("bills")
    with pytest.raises(MessagesLost, match=r"bills@broker-a:0 no longer exists.*failOnDataLoss"):
        strict.latestOffset(start, ALL)
    with caplog.at_level(logging.WARNING):
        after = lenient.latestOffset(start, ALL)
    assert {"bills@broker-b:0", "orders@broker-a:0", "orders@broker-b:0"} == offsets(after).keys()
    assert "bills@broker-a:0 no longer exists" in caplog.text


def test_progress_of_the_group_is_told_with_the_last_batch_too(servers: Servers) -> None:
    """Issue 13, 12: Spark calls ``commit`` only with the next batch, which never comes after ``availableNow``."""
    servers.start_broker("broker-a")
    create(servers, "orders")
    send(servers, A0, 6)
    reader = stream(servers, topic="orders", startingOffsets="earliest", group="progress")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    # Spark asks once more to learn that nothing is left.
    assert end == reader.latestOffset(end, ALL)

    with SyncAdmin(servers.name_servers) as admin:
        assert {A0: 6} == admin.offsets.of("progress", topic="orders")


def test_messages_that_come_between_the_end_and_the_start_of_a_first_run_are_not_lost(servers: Servers) -> None:
    """U1: with ``availableNow`` Spark asks for the end first, and then where a stream that is new begins."""
    servers.start_broker("broker-a")
    create(servers, "orders")
    send(servers, A0, 3)
    reader = stream(servers, topic="orders", startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    send(servers, A0, 2)

    start = reader.initialOffset()

    assert {str(A0): 5} == offsets(start) == offsets(reader.latestOffset(start, ALL))


def test_a_stream_that_ends_by_itself_does_not_end_before_it_has_read_new_queues(servers: Servers) -> None:
    """U1: their broker went away after the stream had seen their end; other streams read them when it is back."""
    servers.start_broker("broker-a")
    create(servers, "orders")
    start = stream(servers, topic="orders", startingOffsets="earliest").initialOffset()
    create(servers, "orders", queues=2)
    send(servers, A0._replace(queue_id=1), 4)
    reader = stream(servers, topic="orders", startingOffsets="earliest", retryTimeoutMs=1000)
    endless = stream(servers, topic="orders", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    endless.latestOffset(start, ALL)
    servers.stop("broker-a")

    with pytest.raises(NetworkError, match=r"cannot read orders@broker-a:1 within 1000 ms"):
        reader.latestOffset(start, ALL)
    assert offsets(start) == offsets(endless.latestOffset(start, ALL))


def test_a_stream_waits_for_a_name_server_and_for_brokers_as_long_as_it_is_allowed_to(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 13, 12: none of them answers at the start. They come back, and the stream begins."""
    servers.start_broker("broker-a")
    create(servers, "orders")
    send(servers, A0, 2)
    servers.stop("broker-a")
    servers.stop(NAME_SERVER)
    with pytest.raises(NetworkError, match=r"cannot read the topics at .* within 1 ms: .*retryTimeoutMs"):
        stream(servers, topic="orders", retryTimeoutMs=1).initialOffset()

    waiting = stream(servers, topic="orders", startingOffsets="earliest", retryTimeoutMs=0)
    found: list[dict[str, int]] = []
    thread = threading.Thread(target=lambda: found.append(offsets(waiting.initialOffset())))
    with caplog.at_level(logging.WARNING):
        thread.start()
        servers.start_name_server()
        servers.start_broker("broker-a")
        thread.join(60)

    assert [{str(A0): 0}] == found
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        stream(servers, topic="nowhere").initialOffset()


def test_a_running_stream_goes_on_without_a_name_server(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, 12: it knows its brokers."""
    servers.start_broker("broker-a")
    create(servers, "orders")
    reader = stream(servers, topic="orders", startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    send(servers, A0, 2)
    servers.stop(NAME_SERVER)

    with caplog.at_level(logging.WARNING):
        assert {str(A0): 2} == offsets(reader.latestOffset(end, ALL))
    assert "cannot search for new topics: no name server answers" in caplog.text


def test_a_batch_waits_for_enough_messages_but_not_for_ever(servers: Servers) -> None:
    """Issue 13, 12: ``minMessagesPerTrigger`` and ``maxTriggerDelayMs``, as Kafka's source has them."""
    servers.start_broker("broker-a")
    create(servers, "orders")
    send(servers, A0, 2)
    patient = stream(servers, topic="orders", startingOffsets="earliest", minMessagesPerTrigger=5)
    hasty = stream(servers, topic="orders", startingOffsets="earliest", minMessagesPerTrigger=5, maxTriggerDelayMs=1)
    bound = stream(servers, topic="orders", startingOffsets="earliest", minMessagesPerTrigger=5)
    limit = patient.getDefaultReadLimit()
    start = patient.initialOffset()
    # The first batch of a run waits for nothing.
    first = patient.latestOffset(start, limit)
    assert first == hasty.latestOffset(start, limit)
    send(servers, A0, 3)
    bound.prepareForTriggerAvailableNow()

    ends = [reader.latestOffset(first, limit) for reader in (patient, hasty, bound)]
    assert [2, 5, 5] == [offsets(end)[str(A0)] for end in ends]
    send(servers, A0, 2)
    assert 7 == offsets(patient.latestOffset(first, limit))[str(A0)]


def test_queues_that_are_not_named_are_read_from_first_to_last(servers: Servers) -> None:
    """Issue 13, 12: offsets of one queue say nothing of the others; nor do times, which a queue may have of its own."""
    servers.start_broker("broker-a")
    create(servers, "orders", queues=3)
    queues = [A0._replace(queue_id=number) for number in range(3)]
    for queue in queues:
        send(servers, queue, 4)

    def spans(**texts: object) -> list[tuple[int, int, int]]:
        reader = BatchReader(options_of(servers, {"topic": "orders", **texts}), columns.spark_schema())
        slices = [one for one in reader.partitions() if isinstance(one, Slice)]
        return sorted((one.queue.queue_id, one.start, one.end) for one in slices)

    def table(value: object) -> str:
        return json.dumps({"orders": {"broker-a": {"1": value}}})

    assert [(0, 0, 4), (1, 0, 2), (2, 0, 4)] == spans(endingOffsets=table(2))
    assert [(0, 0, 4), (2, 0, 4)] == spans(endingOffsetsByTimestamp=table(1_000))
    assert [(0, 0, 4), (2, 0, 4)] == spans(startingOffsetsByTimestamp=table("2999-01-01T00:00:00Z"))
    assert [(0, 0, 4), (1, 0, 4), (2, 0, 4)] == spans(startingOffsetsByTimestamp=table(1_000))
    with pytest.raises(ConfigError, match="there is no queue orders@broker-a:9"):
        spans(endingOffsets=json.dumps({"orders": {"broker-a": {"9": 1}}}))
