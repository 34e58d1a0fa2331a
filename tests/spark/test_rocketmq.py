"""The source on Apache RocketMQ 4.9.4 and 5.2.0, which have no PySpark connector of their own (U1, V2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.interop.conftest import any_rocketmq, rocketmq_4, rocketmq_5
from tests.interop.rocketmq import RocketMQ
from tests.spark.test_stream import Collected
from tests.spark.topics import Topics, bodies_of, numbered

__all__ = ["any_rocketmq", "rocketmq_4", "rocketmq_5"]


@pytest.mark.interop
def test_topics_of_rocketmq_are_tables(any_rocketmq: RocketMQ, spark: SparkSession, tmp_path: Path) -> None:
    """V2: batch and stream, by time, tags and SQL; more than one pull of 32 in each queue."""
    topics = Topics(spark, any_rocketmq.address)
    topics.create("spark-interop", queues=2)
    topics.send("spark-interop", numbered(300), tags=["A", "B"])

    rows = topics.read("spark-interop", sliceMessages=100).collect()
    stream = topics.stream(topic="spark-interop", startingOffsets="earliest", maxMessagesPerTrigger=200).load()
    collected = Collected()
    collected.start(stream, tmp_path).awaitTermination()

    assert numbered(300) == bodies_of(rows) == collected.bodies
    assert numbered(300)[0::2] == bodies_of(topics.read("spark-interop", tags="A").collect())
    assert numbered(300)[1::2] == bodies_of(topics.read("spark-interop", sql="TAGS = 'B'").collect())
    middle = max(row["store_time"] for row in rows if bytes(row["body"]) < b"00150")
    ms = round(middle.timestamp() * 1000)
    expected = sorted(bytes(row["body"]) for row in rows if row["store_time"] >= middle)
    assert expected == bodies_of(topics.read("spark-interop", startingTimestamp=ms).collect())
