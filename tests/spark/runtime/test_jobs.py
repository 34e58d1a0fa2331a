"""Jobs with a watch: progress, stop, errors (U5)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ternmq.errors import ConfigError
from ternmq.spark.runtime.jobs import JobFailed, JobProgress, JobStopped, Watch
from tests.spark.topics import Topics, numbered


def query(topics: Topics, topic: str, checkpoint: Path, *, now: bool = True, **options: object) -> StreamingQuery:
    stream = topics.stream(topic=topic, startingOffsets="earliest", **options).load()
    trigger = {"availableNow": True} if now else {"processingTime": "0 seconds"}
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(**trigger)
    return writer.start()


def test_a_stream_tells_rows_and_lag_of_each_batch(topics: Topics, tmp_path: Path) -> None:
    """U5."""
    topics.send("jobs-stream", numbered(100))
    told: list[JobProgress] = []
    read = Watch(told.append).follow("count", query(topics, "jobs-stream", tmp_path, maxMessagesPerTrigger=40))
    assert read == 100
    assert [(40, 60), (80, 20), (100, 0)] == [(one.rows, one.lag) for one in told[:3]]
    assert {"count"} == {one.job for one in told}
    assert {100} == {one.total for one in told}


def test_a_stream_that_is_stopped_goes_on_from_its_checkpoint(topics: Topics, tmp_path: Path) -> None:
    """U5."""
    topics.send("jobs-stopped", numbered(40))
    watch: Watch

    def stop_at_the_end(progress: JobProgress) -> None:
        if progress.rows == 40:
            watch.stop()

    watch = Watch(stop_at_the_end)
    assert watch.follow("first", query(topics, "jobs-stopped", tmp_path, now=False)) == 40
    topics.send("jobs-stopped", numbered(10))
    assert Watch().follow("second", query(topics, "jobs-stopped", tmp_path)) == 10


def test_an_action_tells_its_tasks_and_gives_its_result(spark: SparkSession) -> None:
    """U5."""
    told: list[JobProgress] = []
    watch = Watch(told.append, interval_s=0)
    assert watch.run("count", spark, lambda: spark.range(100, numPartitions=5).count()) == 100
    assert any(one.total is not None and one.total >= 5 for one in told)


def test_an_action_is_cancelled_when_stopped(spark: SparkSession) -> None:
    """U5."""
    watch = Watch(lambda _: watch.stop())

    def endless() -> int:
        return spark.sparkContext.range(0, 2, numSlices=2).map(lambda _: time.sleep(600) or 1).sum()  # type: ignore[func-returns-value]

    with pytest.raises(JobStopped, match="endless was stopped before its end"):
        watch.run("endless", spark, endless)
    with pytest.raises(JobStopped, match="next was stopped before it began"):
        watch.run("next", spark, lambda: 1)
    assert not [thread for thread in threading.enumerate() if "endless" in thread.name]


def test_a_job_that_nobody_listens_to_ends(spark: SparkSession) -> None:
    """U5: as in `tern pipeline … --json | head -1`."""

    def gone(_: JobProgress) -> None:
        raise ConfigError("nobody reads")

    def endless() -> int:
        return spark.sparkContext.range(0, 2, numSlices=2).map(lambda _: time.sleep(600) or 1).sum()  # type: ignore[func-returns-value]

    with pytest.raises(ConfigError, match="nobody reads"):
        Watch(gone).run("endless", spark, endless)


def test_an_error_is_the_sentence_of_its_cause(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    """U5: the trace is in the log, not in the sentence."""
    missing = topics.read("jobs-nothing-here")
    with pytest.raises(JobFailed, match=r"^there is no topic 'jobs-nothing-here' at .*; see `tern topic list`$"):
        Watch().run("read", spark, missing.count)

    def wrong() -> None:
        raise ConfigError("a setting is wrong; mend it")

    with pytest.raises(ConfigError, match=r"^a setting is wrong; mend it$"):
        Watch().run("set", spark, wrong)
