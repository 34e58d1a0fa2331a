"""The sink on Apache RocketMQ 4.9.4 and 5.2.0, which have no PySpark connector of their own (U2, V2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ternmq.errors import ConfigError
from ternmq.names import WHEEL_TOPIC
from ternmq.spark.sink.ledger_entries import SinkWork
from ternmq.spark.sink.publish import check_timed
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import OffsetReply, QueueBounds
from tests.interop.rocketmq import RocketMQ
from tests.spark.sink.test_sink_logs import Sink
from tests.spark.topics import Topics, bodies_of, numbered


class Broken(Exception):
    """The process is gone."""


def wheel_end(sink: Sink) -> int:
    """How many messages with a time a broker of RocketMQ 5 has taken."""
    instance, header = sink.cluster.instance, QueueBounds(topic=WHEEL_TOPIC, queue_id=0)
    asked = instance.ask(instance.broker_address("broker-a"), RequestCode.GET_MAX_OFFSET, header)
    return sink.cluster.run(asked).read(OffsetReply).queue_offset


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_rows_become_messages_of_rocketmq_each_once(any_rocketmq: RocketMQ, spark: SparkSession) -> None:
    """U2, V2: through Spark with keys, tags and a sharding key; then commits that break off, with rows that wait at the
    broker by level or, on RocketMQ 5, by time."""
    topics = Topics(spark, any_rocketmq.address)
    topics.create("sink-interop", queues=3)
    frame = spark.range(0, 300, 1, 2).selectExpr(
        "format_string('%05d', id) AS body", "concat('key-', id % 5) AS sharding_key", "'A' AS tags", "body AS keys"
    )
    for _ in range(2):
        writer = frame.write.format("ternmq").mode("append").option("nameServers", any_rocketmq.address)
        writer.option("writeId", "sink-interop").option("chunkBytes", 2_000).save("sink-interop")
    rows = topics.read("sink-interop", tags="A").collect()
    assert numbered(300) == bodies_of(rows)
    assert [row["keys"].encode() for row in rows] == [bytes(row["body"]) for row in rows]
    queues = {(row["properties"]["__SHARDINGKEY"], row["queue_id"]) for row in rows}
    assert 5 == len(queues)

    sink = Sink(any_rocketmq.address)
    topics.create("sink-breaks", queues=2)
    is_five = any_rocketmq.version.startswith("5")
    due = datetime.now(UTC) + timedelta(hours=1)
    batch = pa.record_batch(
        {
            "body": numbered(40),
            "delay_level": pa.array([18 if number % 4 == 1 else 0 for number in range(40)], pa.int32()),
            "deliver_time": pa.array(
                [due if is_five and number % 4 == 2 else None for number in range(40)], pa.timestamp("us", tz="UTC")
            ),
        }
    )
    readable = [body for body in numbered(40) if not is_five or int(body) % 4 != 2]
    expected: list[bytes] = sink.bodies("SCHEDULE_TOPIC_XXXX")
    # Where RocketMQ 5 keeps messages with a time cannot be read, but its end is known.
    timed = wheel_end(sink) if is_five else 0
    for number, step in enumerate(["decided", "chunk", "published"]):

        def break_off(passed: str, step: str = step) -> None:
            if passed == step:
                raise Broken

        work = SinkWork("sink-breaks", number)
        with pytest.raises(Broken):
            sink.commit(work, sink.ship(batch, "sink-breaks"), break_off)
        sink.commit(work, sink.ship(batch, "sink-breaks"))
        expected = sorted(expected + readable)
        assert expected == sink.bodies("sink-breaks", "SCHEDULE_TOPIC_XXXX"), step
        if is_five:
            timed += 10
            assert timed == wheel_end(sink), step
    if is_five:
        sink.cluster.run(check_timed(sink.logs, "sink-breaks"))
    else:
        with pytest.raises(ConfigError, match="cannot deliver at a given time"):
            sink.cluster.run(check_timed(sink.logs, "sink-breaks"))
