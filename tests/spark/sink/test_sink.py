"""Rows into topics through Spark: batch and stream, and what is refused (U2)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery

from ternmq.embedded import EmbeddedCluster
from ternmq.spark.session import sentence_of
from tests.spark.topics import Topics, bodies_of, numbered


def writer(topics: Topics, frame: DataFrame, **options: object) -> DataFrameWriter:
    chosen = {name: str(value) for name, value in options.items()}
    return frame.write.format("ternmq").mode("append").option("nameServers", topics.name_servers).options(**chosen)


def start(topics: Topics, stream: DataFrame, checkpoint: Path, topic: str, **options: object) -> StreamingQuery:
    """Write what is there now, and stop."""
    chosen = {name: str(value) for name, value in options.items()}
    sink = stream.writeStream.format("ternmq").option("nameServers", topics.name_servers).options(**chosen)
    sink = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return sink.start(topic)


def rows(topics: Topics, count: int) -> DataFrame:
    return topics.spark.range(0, count, 1, 3).selectExpr("format_string('%05d', id) AS body", "id")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_columns_become_messages(topics: Topics, delivery: str) -> None:
    """Rows of one key are in one queue, in order; the rest travels as it was given."""
    topic = f"columns-{delivery}"
    topics.create(topic, queues=3)
    frame = rows(topics, 600).selectExpr(
        "body",
        "array(body, 'all') AS keys",
        "if(id % 2 = 0, 'even', 'odd') AS tags",
        "map('third', string(id % 3)) AS properties",
        "concat('key-', id % 7) AS sharding_key",
    )
    writer(topics, frame, delivery=delivery, chunkBytes=4_000, inFlightBytes=9_000).save(topic)
    read = sorted(topics.read(topic).collect(), key=lambda row: (row["broker"], row["queue_id"], row["queue_offset"]))
    assert numbered(600) == bodies_of(read)
    assert 600 == len({row["message_id"] for row in read})
    places: dict[str, set[tuple[str, int]]] = {}
    order: dict[tuple[str, int], list[int]] = {}
    for row in read:
        number = int(row["body"])
        assert (f"{number:05} all", "odd" if number % 2 else "even") == (row["keys"], row["tags"])
        assert str(number % 3) == row["properties"]["third"]
        places.setdefault(row["properties"]["__SHARDINGKEY"], set()).add((row["broker"], row["queue_id"]))
        # Spark's tasks are not ordered among each other.
        order.setdefault((row["properties"]["__SHARDINGKEY"], number // 200), []).append(number)
    assert [1] * 7 == [len(queues) for queues in places.values()]
    assert all(sorted(numbers) == numbers for numbers in order.values())


def test_a_stream_copies_a_topic_and_goes_on_from_its_checkpoint(topics: Topics, tmp_path: Path) -> None:
    """What was read can be written: the read-only columns are passed over, the system's properties dropped."""
    topics.create("from")
    topics.create("to")
    topics.send("from", numbered(60), tags=["A", "B"])
    for count in (60, 90):
        stream = topics.stream(topic="from", startingOffsets="earliest", maxMessagesPerTrigger=25).load()
        start(topics, stream, tmp_path, "to", reservedProperties="drop").awaitTermination()
        read = topics.read("to").collect()
        assert numbered(count) == bodies_of(read)
        assert {"A", "B"} == {row["tags"] for row in read}
        assert [row["keys"].encode() for row in read] == [bytes(row["body"]) for row in read]
        topics.send("from", numbered(30, start=count), tags=["A", "B"])


def test_each_row_may_have_a_topic_of_its_own(topics: Topics) -> None:
    topics.create("even")
    topics.create("odd")
    frame = rows(topics, 40).selectExpr("CAST(body AS BINARY) body", "if(id % 2 = 0, 'even', 'odd') AS topic")
    writer(topics, frame).save()
    assert numbered(40)[0::2] == bodies_of(topics.read("even").collect())
    assert numbered(40)[1::2] == bodies_of(topics.read("odd").collect())


def test_a_write_with_an_id_can_be_run_again(topics: Topics) -> None:
    """A job that is repeated writes nothing twice."""
    topics.create("again")
    for _ in range(2):
        writer(topics, rows(topics, 50).select("body"), writeId="night-2026-11-16").save("again")
    writer(topics, rows(topics, 50).select("body"), writeId="night-2026-11-17").save("again")
    assert sorted(numbered(50) * 2) == bodies_of(topics.read("again").collect())


def test_a_batch_of_foreach_batch_that_is_run_again_is_written_once(topics: Topics, tmp_path: Path) -> None:
    """Issue 13, point 11: with the two options that Delta has for it."""
    topics.create("each-from")
    topics.create("each")
    topics.send("each-from", numbered(60))

    def copy(*, fails: bool) -> StreamingQuery:
        def write(frame: DataFrame, batch: int) -> None:
            writer(topics, frame.select("body"), txnAppId="each", txnVersion=batch).save("each")
            if fails and batch == 1:
                raise RuntimeError("after the write")

        stream = topics.stream(topic="each-from", startingOffsets="earliest", maxMessagesPerTrigger=25).load()
        sink = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        return sink.trigger(availableNow=True).start()

    with pytest.raises(StreamingQueryException, match="after the write"):
        copy(fails=True).awaitTermination()
    copy(fails=False).awaitTermination()
    assert numbered(60) == bodies_of(topics.read("each").collect())


def test_a_copy_of_a_checkpoint_is_told_and_can_have_a_name_of_its_own(topics: Topics, tmp_path: Path) -> None:
    """Issue 13, point 11: it has the query id of the original, whose batches are done."""
    for topic in ("copy-from", "copy-one", "copy-two"):
        topics.create(topic)
    first, second = tmp_path / "first", tmp_path / "second"

    def run(checkpoint: Path, topic: str, **options: str) -> None:
        stream = topics.stream(topic="copy-from", startingOffsets="earliest").load().select("body")
        start(topics, stream, checkpoint, topic, **options).awaitTermination()

    topics.send("copy-from", numbered(20))
    run(first, "copy-one")
    shutil.copytree(first, second)
    topics.send("copy-from", numbered(10, start=20))
    run(first, "copy-one")
    for topic, sentence in (
        ("copy-two", "was decided for the topic 'copy-one' before, and this run writes to the topic 'copy-two'"),
        ("copy-one", f"by a query with the checkpoint {first}, and this one has {second}"),
    ):
        with pytest.raises(StreamingQueryException) as caught:
            run(second, topic)
        assert sentence in sentence_of(caught.value)
    assert numbered(30) == bodies_of(topics.read("copy-one").collect())
    run(second, "copy-two", txnAppId="copy")
    assert numbered(10, start=20) == bodies_of(topics.read("copy-two").collect())


def test_no_rows_are_no_messages(topics: Topics) -> None:
    topics.create("none")
    writer(topics, rows(topics, 10).select("body").where("body > '1'"), writeId="none").save("none")
    assert [] == topics.read("none").collect()


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (["if(id = 77, null, body) AS body"], {}, "row 11 of partition 2 (body=None) cannot be sent: its body is null"),
        (["body", "if(id = 77, 'x||y', 'x') AS tags"], {}, "(body='00077', tags='x||y') cannot be sent: its tag"),
        (["body AS value"], {}, "unknown column 'value'; the columns are body"),
        (["id AS body"], {}, "the column body is of type bigint; cast it to binary or string"),
        (["body"], {"topic": "nowhere"}, "there is no topic 'nowhere' that can be written to"),
        (["body"], {"delivry": "x"}, "the format ternmq has no option 'delivry'; did you mean 'delivery'?"),
        (["body"], {"nameServers": "127.0.0.1:1", "retryTimeoutMs": "300"}, "no name server answers at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_written_is_one_sentence_and_leaves_nothing(
    topics: Topics, columns: list[str], options: dict[str, str], sentence: str
) -> None:
    """A failed job has written no row of it."""
    topics.create("bad")
    frame = rows(topics, 100).selectExpr(*columns)
    with pytest.raises(PySparkException) as caught:
        writer(topics, frame, **({"topic": "bad", "chunkBytes": "500"} | options)).save()
    assert sentence in sentence_of(caught.value)
    assert [] == topics.read("bad").collect()


def test_a_topic_is_only_appended_to(topics: Topics, tmp_path: Path) -> None:
    frame = rows(topics, 3).select("body")
    with pytest.raises(PySparkException) as caught:
        writer(topics, frame).mode("overwrite").save("any")
    assert "a topic cannot be overwritten, only appended to" in sentence_of(caught.value)
    topics.create("counted")
    topics.send("counted", numbered(1))
    counts = topics.stream(topic="counted", startingOffsets="earliest").load().groupBy("body").count()
    with pytest.raises(PySparkException) as caught:
        sink = counts.selectExpr("body").writeStream.outputMode("complete").format("ternmq")
        sink.option("nameServers", topics.name_servers).option("checkpointLocation", str(tmp_path)).start(
            "any"
        ).awaitTermination()
    assert "only appended to" in sentence_of(caught.value)


@pytest.fixture
def delaying() -> Iterator[EmbeddedCluster]:
    """A broker whose third level is short."""
    with EmbeddedCluster(settings={"messageDelayLevel": "1h 1h 1s"}) as running:
        yield running


def test_rows_with_a_delay_come_later_each_once(delaying: EmbeddedCluster, topics: Topics) -> None:
    """Levels beyond the broker's last one mean the last one."""
    there = Topics(topics.spark, delaying.name_servers)
    there.create("later", queues=1)
    frame = rows(there, 30).selectExpr("body", "cast(if(id % 3 = 0, 3, if(id % 3 = 1, 1, 18)) AS int) AS delay_level")
    before = datetime.now(UTC)
    for _ in range(2):
        writer(there, frame, writeId="later").save("later")
    late = [body for body in numbered(30) if int(body) % 3 != 1]
    read = there.read("later").collect()
    while len(read) < len(late):
        read = there.read("later").collect()
    assert late == bodies_of(read)
    assert all((row["store_time"].replace(tzinfo=UTC) - before).total_seconds() >= 1 for row in read)
