"""Pipelines read topics in which one body does not decompress (U4; issue 13, 9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ternmq.spark.pipelines import trace_rows
from ternmq.spark.pipelines.archive import Archived, archive
from ternmq.spark.pipelines.deadletters import examine, letters
from ternmq.spark.pipelines.sql import SqlResult, run_sql
from ternmq.spark.runtime.jobs import JobFailed
from ternmq.wire.trace import BAD
from tests.spark.topics import Topics, bodies_of, numbered, send_undecompressable

WHY = "the zlib body cannot be decompressed"


def test_a_topic_is_read_without_it_or_with_a_reason(topics: Topics, tmp_path: Path) -> None:
    """Issue 13, 9: batch and stream."""
    topics.create("bad-read", queues=1)
    topics.send("bad-read", numbered(2))
    send_undecompressable(topics.name_servers, "bad-read")

    assert numbered(2) == bodies_of(topics.read("bad-read", badMessages="skip").collect())
    rows = topics.read("bad-read", badMessages="null").collect()
    (bad,) = [row for row in rows if row["problem"]]
    assert (3, None, True) == (len(rows), bad["body"], bad["problem"].startswith(WHY))
    stream = topics.stream(topic="bad-read", startingOffsets="earliest", badMessages="null").load()
    writer = stream.where("problem IS NULL").writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "out")).awaitTermination()
    assert numbered(2) == bodies_of(topics.spark.read.parquet(str(tmp_path / "out")).collect())


def test_an_archive_ends_with_its_place_or_leaves_it_out_and_counts_it(topics: Topics, tmp_path: Path) -> None:
    """Issue 13, 9"""
    topics.create("bad-archived", queues=1)
    topics.send("bad-archived", numbered(2))
    send_undecompressable(topics.name_servers, "bad-archived")

    def run(*, skip_bad: bool) -> Archived:
        return archive(
            topics.spark,
            lake=tmp_path / "lake",
            topics=["bad-archived"],
            name_servers=topics.name_servers,
            once=True,
            skip_bad=skip_bad,
        )

    with pytest.raises(JobFailed, match=rf"the message at queue offset \d of bad-archived@broker-.:0 cannot .*{WHY}"):
        run(skip_bad=False)
    assert Archived(rows=2, rows_read=3, rows_in_lake=2, rows_skipped=1) == run(skip_bad=True)


def test_a_view_leaves_it_out_with_those_that_do_not_fit(topics: Topics) -> None:
    """Issue 13, 9: of JSON and of text."""
    topics.create("bad-sql", queues=1)
    topics.send("bad-sql", [json.dumps({"id": 1}).encode()])
    send_undecompressable(topics.name_servers, "bad-sql")

    for view in ("(id INT) FROM TOPIC `bad-sql`", "FROM TOPIC `bad-sql` FORMAT TEXT"):
        done = run_sql(
            topics.spark,
            f"CREATE VIEW v {view}; SELECT * FROM v",
            name_servers=topics.name_servers,
            once=True,
            show=lambda _: None,
        )
        assert [SqlResult("console", messages=2, left_out=1)] == done


def test_a_dead_letter_shows_why_and_a_trace_counts_it_as_unreadable(topics: Topics, spark: SparkSession) -> None:
    """Issue 13, 9"""
    for topic in ("%DLQ%bad-group", "bad-trace"):
        topics.create(topic, queues=1)
        send_undecompressable(topics.name_servers, topic)

    (group,) = examine(spark, letters(spark, ["bad-group"], name_servers=topics.name_servers)).groups
    (record,) = trace_rows.read(spark, name_servers=topics.name_servers, trace_topic="bad-trace").collect()

    assert WHY in (group.why or "")
    assert (BAD, True) == (record["kind"], record["text"].startswith(WHY))
