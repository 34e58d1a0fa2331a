"""``spark.read.format("ternmq")`` on two brokers (U1)."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from ternmq import MessageQueue, SyncAdmin
from ternmq.spark.session import sentence_of
from tests.spark.topics import Topics, bodies_of, numbered


def test_a_topic_is_read_whole_each_message_once(topics: Topics) -> None:
    """U1: all queues of all brokers, columns as consumers know them, slices of a long queue."""
    topics.create("whole", queues=2)
    topics.send("whole", numbered(100), tags=["A", "B"])

    rows = topics.read("whole", sliceMessages=10).collect()

    assert numbered(100) == bodies_of(rows)
    places = {(row["broker"], row["queue_id"], row["queue_offset"]) for row in rows}
    assert (100, {"broker-a", "broker-b"}, {0, 1}) == (
        len(places),
        {broker for broker, _, _ in places},
        {queue_id for _, queue_id, _ in places},
    )
    with SyncAdmin(topics.name_servers) as admin:
        row = next(row for row in rows if bytes(row["body"]) == b"00042")
        (message,) = admin.messages.by_key("whole", "00042")
    assert (
        message.topic,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.log_offset,
        "00042",
        message.tags,
        message.properties,
        message.born_time_ms,
        message.store_time_ms,
        message.born_host,
        message.message_id,
        0,
    ) == (
        row["topic"],
        row["broker"],
        row["queue_id"],
        row["queue_offset"],
        row["log_offset"],
        row["keys"],
        row["tags"],
        row["properties"],
        round(row["born_time"].timestamp() * 1000),
        round(row["store_time"].timestamp() * 1000),
        row["born_host"],
        row["message_id"],
        row["reconsume_times"],
    )


def test_bounds_filters_and_schemas_choose_what_is_read(topics: Topics) -> None:
    """U1: offsets per queue, tags and SQL at the broker, pushed filters, and only the columns asked for."""
    topics.create("chosen", queues=1)
    queue = MessageQueue("chosen", "broker-a", 0)
    topics.send("chosen", numbered(50), tags=["A", "B"], queue=queue)
    start = json.dumps({"chosen": {"broker-a": {"0": 10}}})
    end = json.dumps({"chosen": {"broker-a": {"0": 20}}})

    def read(**options: object) -> list[bytes]:
        frame = topics.reader(topic="chosen", **options).schema("body BINARY").load()
        assert ["body"] == frame.columns
        return bodies_of(frame.collect())

    assert numbered(10, start=10) == read(startingOffsets=start, endingOffsets=end)
    assert numbered(50)[0::2] == read(tags="A")
    assert numbered(50)[1::2] == read(sql="TAGS = 'B'")
    rows = topics.read("chosen").collect()
    middle = rows[20]["store_time"]

    def where(condition: str) -> tuple[set[int], int]:
        """The offsets of a filtered read, and how many rows left the source for it."""
        frame = topics.read("chosen", pushDownFilters=True, sliceMessages=1).where(condition)
        return {row["queue_offset"] for row in frame.collect()}, frame.rdd.getNumPartitions()

    since = f"store_time >= TIMESTAMP '{middle.isoformat()}Z'"
    newer = {row["queue_offset"] for row in rows if row["store_time"] >= middle}
    assert (newer, len(newer)) == where(f"{since} AND broker = 'broker-a'")
    assert ({21, 23}, 4) == where("queue_offset > 20 AND queue_offset <= 24 AND tags IN ('B')")
    assert (set(), 1) == where("queue_id = 7")
    whole = topics.read("chosen")
    assert (1, 50) == (whole.where("queue_offset = 20").count(), whole.count())
    ms = round(middle.timestamp() * 1000)
    assert 50 == len(read(startingTimestamp=ms)) + len(read(endingTimestamp=ms))


def test_a_namespace_is_part_of_names_on_the_wire_only(topics: Topics) -> None:
    """U1: RocketMQ's ``NS%topic``, by name, by pattern and in offsets per queue."""
    topics.create("shop%carts", queues=1)
    topics.create("carts", queues=1)
    for topic, number in (("shop%carts", 1), ("carts", 2)):
        topics.send(topic, numbered(3, start=number * 10), queue=MessageQueue(topic, "broker-a", 0))
    start = json.dumps({"carts": {"broker-a": {"0": 1}}})

    by_name = topics.read("carts", namespace="shop", startingOffsets=start).collect()
    by_pattern = topics.reader(topicPattern="car.*", namespace="shop", pushDownFilters=True).load()

    assert (numbered(2, start=11), {"carts"}) == (bodies_of(by_name), {row["topic"] for row in by_name})
    assert numbered(3, start=10) == bodies_of(by_pattern.where("topic = 'carts'").collect())


def test_bad_input_is_one_clear_sentence(topics: Topics) -> None:
    """U1: a topic, a name server, an offset, a column that is not there."""
    topics.create("bad-input", queues=1)
    offsets = json.dumps({"bad-input": {"broker-a": {"0": 77}}})
    cases = {
        f"there is no topic 'nowhere' at {topics.name_servers}; see `tern topic list`": topics.reader(topic="nowhere"),
        "no topic matches topicPattern='nothing.*'; see `tern topic list`": topics.reader(topicPattern="nothing.*"),
        "the offset 77 of bad-input@broker-a:0 is out of range; it has no messages, and the next is 0; give one of"
        " these, or set the option failOnDataLoss to false": topics.reader(topic="bad-input", startingOffsets=offsets),
        "the column body is of type binary, not string; read it as it is and cast it": topics.reader(
            topic="bad-input"
        ).schema("body STRING"),
        "the format ternmq has no option 'maxmessages'; did you mean 'maxMessagesPerTrigger'?": topics.reader(
            topic="bad-input", maxMessages=3
        ),
        "no name server answers at 127.0.0.1:1": topics.reader(topic="bad-input", retryTimeoutMs=1_000).option(
            "nameServers", "127.0.0.1:1"
        ),
    }
    for sentence, reader in cases.items():
        with pytest.raises(PySparkException) as caught:
            reader.load().collect()
        assert sentence in sentence_of(caught.value)
