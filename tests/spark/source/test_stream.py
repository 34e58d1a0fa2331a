"""``spark.readStream.format("ternmq")``: micro-batches, checkpoints, what comes and goes meanwhile (U1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from ternmq import SyncAdmin
from ternmq.spark.session import sentence_of
from tests.spark.topics import Topics, bodies_of, numbered


class Collected:
    """The rows of each micro-batch, as ``foreachBatch`` saw them."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    def start(self, frame: DataFrame, checkpoint: Path, *, available_now: bool = True) -> StreamingQuery:
        def keep(batch: DataFrame, _: int) -> None:
            self.batches.append(bodies_of(batch.collect()))

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        return (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        ).start()

    @property
    def bodies(self) -> list[bytes]:
        return sorted(body for batch in self.batches for body in batch)


def test_a_stream_goes_on_where_its_checkpoint_is(topics: Topics, tmp_path: Path) -> None:
    """U1: limits for each trigger, a restart, and the lag of the group that progress is reported under."""
    topics.create("restarted", queues=1)
    topics.send("restarted", numbered(60))
    frame = topics.stream(
        topic="restarted", startingOffsets="earliest", maxMessagesPerTrigger=25, group="stream-restarted"
    ).load()

    first = Collected()
    first.start(frame, tmp_path).awaitTermination()
    topics.send("restarted", numbered(10, start=60))
    second = Collected()
    second.start(frame, tmp_path).awaitTermination()

    assert numbered(60) == first.bodies
    assert 25 >= max(map(len, first.batches))
    assert [numbered(10, start=60)] == [batch for batch in second.batches if batch]
    with SyncAdmin(topics.name_servers) as admin:
        progress = admin.groups.progress("stream-restarted")
    assert 70 == sum(one.consumer_offset for one in progress if one.queue.topic == "restarted")


def test_new_queues_and_topics_are_picked_up_while_a_stream_runs(topics: Topics, tmp_path: Path) -> None:
    """U1: by pattern; queues that came later are read from their first message on."""
    topics.create("grow-1", queues=1)
    frame = topics.stream(topicPattern="grow-.*", startingOffsets="latest", discoverIntervalMs=1).load()
    collected = Collected()
    query = collected.start(frame, tmp_path, available_now=False)
    try:
        query.processAllAvailable()
        topics.create("grow-1", queues=2)
        topics.create("grow-2", queues=1)
        topics.send("grow-1", numbered(8))
        topics.send("grow-2", numbered(8, start=8))
        query.processAllAvailable()
    finally:
        query.stop()

    assert numbered(16) == collected.bodies


def test_what_a_stream_cannot_read_is_one_sentence(topics: Topics, tmp_path: Path) -> None:
    """U1: no such topic or name server, and a topic that was made anew behind the checkpoint's back."""
    topics.create("anew", queues=1)
    topics.send("anew", numbered(4))
    checkpoint = tmp_path / "anew"
    anew = topics.stream(topic="anew", startingOffsets="earliest").load()
    Collected().start(anew, checkpoint).awaitTermination()
    with SyncAdmin(topics.name_servers) as admin:
        admin.topics.delete("anew")
    topics.create("anew", queues=1)
    cases = {
        f"there is no topic 'nowhere' at {topics.name_servers}; see `tern topic list`": (
            topics.stream(topic="nowhere").load(),
            tmp_path / "nowhere",
        ),
        "no name server answers at 127.0.0.1:1": (
            topics.stream(topic="anew", retryTimeoutMs=1_000).option("nameServers", "127.0.0.1:1").load(),
            tmp_path / "unreachable",
        ),
        "@broker-a:0 were deleted before": (anew, checkpoint),
    }
    for sentence, (frame, where) in cases.items():
        collected = Collected()
        with pytest.raises(StreamingQueryException) as caught:
            collected.start(frame, where).awaitTermination()
        assert (True, []) == (sentence in sentence_of(caught.value), collected.bodies), sentence_of(caught.value)


def test_a_checkpoint_of_another_topic_is_refused(topics: Topics, tmp_path: Path) -> None:
    """U1: one sentence, and nothing is read."""
    topics.create("mine", queues=1)
    topics.create("theirs", queues=1)
    topics.send("mine", numbered(2))
    topics.send("theirs", numbered(2))
    Collected().start(topics.stream(topic="mine", startingOffsets="earliest").load(), tmp_path).awaitTermination()

    collected = Collected()
    with pytest.raises(StreamingQueryException) as caught:
        collected.start(topics.stream(topic="theirs").load(), tmp_path).awaitTermination()

    assert "the checkpoint belongs to topic 'mine', but the stream reads 'theirs'; use another checkpointLocation" in (
        sentence_of(caught.value)
    )
    assert [] == collected.bodies
