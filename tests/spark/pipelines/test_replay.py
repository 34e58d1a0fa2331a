"""*replay*: messages of a lake into a topic (U4)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.sql import Row

from ternmq import Message, SyncProducer
from ternmq.errors import ConfigError
from ternmq.spark.lake.lake import Lake
from ternmq.spark.pipelines.archive import archive
from ternmq.spark.pipelines.replay import Replayed, Selection, preview, replay
from ternmq.spark.runtime.jobs import JobProgress, JobStopped, Watch
from tests.spark.topics import Topics, bodies_of, numbered


def fill(topics: Topics, topic: str, lake: Path, *, start: int = 0, count: int = 40) -> None:
    """Messages with all that a message can have, into a topic and on into a lake."""
    with SyncProducer("tests", name_servers=topics.name_servers) as producer:
        for number, body in enumerate(numbered(count, start=start), start):
            properties = {"region": "eu" if number % 4 else "us"}
            keys = (f"key-{number}", "all")
            producer.send(Message(topic, body, tags="A" if number % 2 else "B", keys=keys, properties=properties))
    archive(topics.spark, lake=lake, topics=[topic], name_servers=topics.name_servers, once=True)


def by_origin(rows: list[Row]) -> dict[str, list[int]]:
    """The old offsets in the order of the new ones, for each old queue, which must be in one new queue."""
    queues: dict[str, set[object]] = defaultdict(set)
    offsets: dict[str, list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["broker"], row["queue_id"], row["queue_offset"])):
        queue, _, offset = row["properties"]["REPLAYED_FROM"].rpartition(":")
        queues[queue].add((row["broker"], row["queue_id"]))
        offsets[queue].append(int(offset))
    assert {1} == {len(places) for places in queues.values()}
    return offsets


def test_a_replay_that_was_stopped_goes_on_and_sends_nothing_twice(topics: Topics, tmp_path: Path) -> None:
    """U4: in portions, in order of each old queue, with all that the messages had; also when the lake has grown."""
    lake = tmp_path / "lake"
    topics.create("played", queues=1)
    topics.create("again", queues=2)
    fill(topics, "played", lake)
    watch: Watch

    def stop_after_the_first_portion(progress: JobProgress) -> None:
        if progress.rows:
            watch.stop()

    watch = Watch(stop_after_the_first_portion)
    once_more = {"lake": lake, "to": "again", "name_servers": topics.name_servers, "rate": 4, "replay_id": "r1"}
    with pytest.raises(JobStopped, match=r"stopped after 1 of 2 portions; run it again with --id r1 to continue"):
        replay(topics.spark, **once_more, watch=watch)  # type: ignore[arg-type]
    first = topics.read("again").collect()
    assert 20 == len(first)

    fill(topics, "played", lake, start=40, count=5)
    assert Replayed(40, 2) == replay(topics.spark, **once_more)  # type: ignore[arg-type]
    rows = topics.read("again").collect()
    assert numbered(40) == bodies_of(rows)
    old = {bytes(row["body"]): row for row in topics.read("played").collect()}
    for row in rows:
        was = old[bytes(row["body"])]
        assert (was["keys"], was["tags"]) == (row["keys"], row["tags"])
        assert was["properties"]["region"] == row["properties"]["region"]
        assert was["message_id"] == row["properties"]["REPLAYED_ID"]
        assert was["message_id"] != row["message_id"]
    for offsets in by_origin(rows).values():
        assert sorted(offsets) == offsets

    with pytest.raises(ConfigError, match=r"^the replay 'r1' had other messages or another topic; "):
        replay(topics.spark, **once_more, selection=Selection(tag="A"))  # type: ignore[arg-type]


def test_messages_are_chosen_by_time_key_tag_and_sql(topics: Topics, tmp_path: Path) -> None:
    """U4: a dry run tells what would be sent; a replay without a rate sends it at once."""
    lake, spark = tmp_path / "lake", topics.spark
    topics.create("chosen-again", queues=1)
    fill(topics, "chosen", lake)
    rows = topics.read("chosen").collect()
    middle_ms = round(sorted(row["store_time"] for row in rows)[20].timestamp() * 1000)

    def chosen(**by: object) -> tuple[int, list[bytes]]:
        shown = preview(spark, lake=lake, selection=Selection(**by))  # type: ignore[arg-type]
        assert len(shown.sample) == min(5, shown.rows)
        return shown.rows, sorted(bytes(row["body"]) for row in shown.sample)

    late = [bytes(row["body"]) for row in rows if round(row["store_time"].timestamp() * 1000) >= middle_ms]
    assert 40 == chosen()[0]
    assert len(late) == chosen(since_ms=middle_ms)[0]
    assert 40 - len(late) == chosen(until_ms=middle_ms)[0]
    assert (1, [b"00017"]) == chosen(key="key-17")
    one = "properties['region'] = 'us' AND CAST(body AS STRING) = '00012'"
    assert (1, [b"00012"]) == chosen(tag="B", where=one)
    assert (0, []) == chosen(topics=["others"])
    eu = Selection(tag="A", where="properties['region'] = 'eu'")
    sent = replay(spark, lake=lake, to="chosen-again", name_servers=topics.name_servers, selection=eu)
    assert Replayed(20, 1) == sent
    assert numbered(40)[1::2] == bodies_of(topics.read("chosen-again").collect())


def test_bad_input_sends_nothing(topics: Topics, tmp_path: Path) -> None:
    """U4: one sentence each."""
    spark, at = topics.spark, topics.name_servers
    lake = tmp_path / "lake"
    with pytest.raises(ConfigError, match="there is no lake at"):
        replay(spark, lake=lake, to="x", name_servers=at)
    Lake.at(lake, make=True)
    topics.create("bad-again", queues=1)
    with pytest.raises(ConfigError, match=r"lake is empty; fill it with `tern pipeline archive`"):
        replay(spark, lake=lake, to="bad-again", name_servers=at)
    with pytest.raises(ConfigError, match=r"^there is no topic 'nowhere' at .*; create it with `tern topic create"):
        replay(spark, lake=lake, to="nowhere", name_servers=at)
    fill(topics, "bad", lake, count=2)
    with pytest.raises(ConfigError, match=r"^invalid condition 'nonsense = 1': .*nonsense"):
        preview(spark, lake=lake, selection=Selection(where="nonsense = 1"))
    assert [] == topics.read("bad-again").collect()
