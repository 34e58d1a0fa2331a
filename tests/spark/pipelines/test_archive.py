"""*archive* and *compact*: topics into a Parquet lake, each message once (U4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ternmq.errors import ConfigError
from ternmq.spark.lake.lake import Lake
from ternmq.spark.pipelines.archive import Archived, archive
from ternmq.spark.pipelines.compact import compact, groups_of
from ternmq.spark.runtime.jobs import JobProgress, Watch
from tests.spark.topics import Topics, bodies_of, numbered


def take(at: Topics, topic: str, lake: Path, **options: object) -> Archived:
    chosen = {"topics": [topic] if topic else [], "name_servers": at.name_servers, "once": True} | options
    return archive(at.spark, lake=lake, **chosen)  # type: ignore[arg-type]


def rows_of(topics: Topics, topic: str, lake: Path) -> tuple[list[object], list[object]]:
    """All columns of the topic as the source and as a plain reader of the lake have them."""
    source = topics.read(topic)
    columns = source.columns
    keys = ["broker", "queue_id", "queue_offset"]
    plain = topics.spark.read.parquet(str(lake)).select(*columns).orderBy(*keys).collect()
    return source.orderBy(*keys).collect(), plain  # type: ignore[return-value]


def bodies_in(lake: Path) -> list[bytes]:
    """By a reader that is not Spark."""
    return sorted(pq.read_table(lake).column("body").to_pylist())


def test_runs_of_all_kinds_add_up_to_each_message_once(topics: Topics, tmp_path: Path) -> None:
    """U4: in batches; with another checkpoint; with one that is behind the lake; and after a compaction."""
    lake = tmp_path / "lake"
    topics.create("archived", queues=2)
    topics.send("archived", numbered(50), tags=["A", "B", ""])
    assert Archived(rows=50, rows_read=50, rows_in_lake=50) == take(topics, "archived", lake, rows_per_batch=30)
    topics.send("archived", numbered(10, start=50))
    # Another checkpoint goes on where the lake ends; then the first one is behind, and reads again what the lake has.
    assert Archived(10, 10, 60) == take(topics, "archived", lake, checkpoint=tmp_path / "second")
    topics.send("archived", numbered(10, start=60))
    assert Archived(10, 20, 70) == take(topics, "archived", lake)

    hours, small = len(Lake.at(lake).hours()), sum(map(len, Lake.at(lake).hours().values()))
    assert (hours, small, hours) == astuple(compact(topics.spark, lake=lake))
    assert compact(topics.spark, lake=lake).hours == 0
    source, plain = rows_of(topics, "archived", lake)
    assert source == plain
    assert numbered(70) == bodies_in(lake)
    assert Archived(0, 0, 70) == take(topics, "archived", lake, checkpoint=tmp_path / "third")


def test_two_runs_at_once_share_a_lake(topics: Topics, tmp_path: Path) -> None:
    """U4: while the first is between two batches, the second takes what is there; the first finds it in the lake."""
    lake = tmp_path / "lake"
    topics.create("shared", queues=1)
    topics.send("shared", numbered(60))
    others: list[Archived] = []

    def second(progress: JobProgress) -> None:
        if not others:
            others.append(take(topics, "shared", lake, checkpoint=tmp_path / "second", rows_per_batch=25))

    first = take(topics, "shared", lake, rows_per_batch=20, watch=Watch(second))
    assert 60 == first.rows + others[0].rows
    assert numbered(60) == bodies_in(lake)
    assert [] == list((lake / "_ternmq" / "staging").iterdir())


def test_hours_are_those_of_the_store_time_in_utc(topics: Topics, tmp_path: Path) -> None:
    """U4: whatever the session's zone is."""
    topics.send("hours", numbered(4))
    zone = "spark.sql.session.timeZone"
    topics.spark.conf.set(zone, "Asia/Kolkata")
    try:
        take(topics, "hours", tmp_path / "lake")
    finally:
        topics.spark.conf.set(zone, "UTC")
    table = pq.read_table(tmp_path / "lake", partitioning="hive")
    expected = {(time.strftime("%Y-%m-%d"), time.hour) for time in table.column("store_time").to_pylist()}
    assert expected == set(zip(table.column("date").to_pylist(), table.column("hour").to_pylist(), strict=True))


def test_bad_input_leaves_nothing_behind(topics: Topics, tmp_path: Path) -> None:
    """U4: one sentence each."""
    topics.create("archived-a", queues=1)
    topics.create("archived-b", queues=1)
    lake = tmp_path / "lake"
    with pytest.raises(ConfigError, match=r"^there is no topic 'nowhere' at .*; see `tern topic list`$"):
        take(topics, "nowhere", lake)
    with pytest.raises(ConfigError, match=r"^no topic matches topicPattern='nowhere.*'; see `tern topic list`$"):
        take(topics, "", lake, topic_pattern="nowhere.*")
    with pytest.raises(ConfigError, match=r"^no topic is given; "):
        take(topics, "", lake)
    assert [] == list(tmp_path.iterdir())

    topics.send("archived-a", numbered(3))
    topics.send("archived-b", numbered(3))
    checkpoint = tmp_path / "checkpoint"
    take(topics, "archived-a", lake, checkpoint=checkpoint)
    with pytest.raises(ConfigError, match=r"checkpoint .* does not belong to the lake .*; give another one, or none"):
        take(topics, "archived-a", tmp_path / "other", checkpoint=checkpoint)
    with pytest.raises(Exception, match=r"^the checkpoint belongs to topic 'archived-a', but the stream reads"):
        take(topics, "archived-b", lake, checkpoint=checkpoint)
    assert numbered(3) == bodies_in(lake)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([5], []),
        ([100, 100], []),
        ([5, 100, 6], [[0, 2]]),
        ([50, 50, 50, 50, 50], [[0, 1], [2, 3]]),
        ([60, 60, 60], []),
    ],
)
def test_small_files_are_put_together_up_to_a_size(sizes: Sequence[int], groups: list[list[int]]) -> None:
    """U4"""
    paths = [Path(str(number)) for number in range(len(sizes))]
    expected = [[paths[number] for number in group] for group in groups]
    assert expected == groups_of(list(zip(paths, sizes, strict=True)), 100)


def test_bodies_of_a_lake_are_those_that_were_sent(topics: Topics, tmp_path: Path) -> None:
    """U4: several topics by pattern, each in a directory of its own, with names that paths must escape."""
    topics.send("lake-1", numbered(5))
    topics.send("lake-2%x", numbered(5, start=5))
    done = take(topics, "", tmp_path / "lake", topic_pattern="lake-.*")
    assert 10 == done.rows
    rows = topics.spark.read.parquet(str(tmp_path / "lake")).where("topic = 'lake-2%x'").collect()
    assert numbered(5, start=5) == bodies_of(rows)
    assert Archived(0, 0, 10) == take(topics, "lake-2%x", tmp_path / "lake")
