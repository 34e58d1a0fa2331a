"""The source and pipelines on Apache RocketMQ 4.9.4 and 5.2.0, which have no PySpark connector (U1, U4, V2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ternmq import Message
from ternmq.spark.pipelines import deadletters
from ternmq.spark.pipelines.archive import archive
from ternmq.spark.pipelines.reconcile import reconcile
from ternmq.spark.pipelines.reconcile_sides import Sides
from ternmq.spark.pipelines.replay import Replayed, Selection, replay
from ternmq.spark.pipelines.trace import trace
from tests.interop.rocketmq import RocketMQ
from tests.spark.givingup import give_up
from tests.spark.pipelines.test_sql import Run, bodies, order
from tests.spark.source.test_stream import Collected
from tests.spark.topics import Topics, bodies_of, numbered
from tests.spark.traces import call, pub, send_traces


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


@pytest.mark.interop
def test_dead_letters_of_rocketmq_are_sent_again_and_its_topics_reconciled(
    any_rocketmq: RocketMQ, spark: SparkSession, tmp_path: Path
) -> None:
    """U4, V2."""
    names = any_rocketmq.address
    Topics(spark, names).create("spark-dead")
    orders = [
        Message("spark-dead", b"body", keys=key, properties={"error": f"code {key}"}) for key in ("1", "2", "2", "4")
    ]
    give_up(names, "spark-billing", "spark-dead", orders)

    report = deadletters.examine(spark, deadletters.letters(spark, ["spark-billing"], name_servers=names))
    assert [("spark-billing", "spark-dead", "code #", 4)] == [
        (one.group, one.origin_topic, one.why, one.count) for one in report.groups
    ]
    waiting = deadletters.letters(spark, ["spark-billing"], name_servers=names)
    assert 4 == len(deadletters.redrive(spark, waiting, name_servers=names, dry_run=False))
    assert 0 == deadletters.letters(spark, ["spark-billing"], name_servers=names).count()

    (tmp_path / "sent.csv").write_text("id\n1\n2\n3\n")
    sides = Sides(spark, "spark-dead", name_servers=names, by="keys")
    sent, consumed = sides.sent(str(tmp_path / "sent.csv")), sides.consumed("group:spark-billing")
    result = reconcile(spark, "spark-dead", sides.stored(), sent=sent, consumed=consumed, late_ms=0)
    assert {"missing stored": 1, "double stored": 1, "unexpected stored": 1} == result.problems


@pytest.mark.interop
def test_traces_that_rocketmq_keeps_are_read(any_rocketmq: RocketMQ, spark: SparkSession) -> None:
    """U4, V2: of nine messages the listener got eight."""
    names, topic = any_rocketmq.address, "spark-traces"
    Topics(spark, names).create(topic)
    stories = [pub(f"M{n}", at=n) + (call(f"M{n}", at=2 * n) if n != 3 else b"") for n in range(9)]
    send_traces(names, topic, stories)
    report = trace(spark, name_servers=names, trace_topic=topic, grace_ms=0)
    assert [("billing", 9, 1)] == [(one.group, one.messages, one.lost) for one in report.consuming]
    assert [("lost", "M3")] == [(one.problem, one.message_id) for one in report.findings]


@pytest.mark.interop
def test_topics_of_rocketmq_go_to_a_lake_and_back(any_rocketmq: RocketMQ, spark: SparkSession, tmp_path: Path) -> None:
    """U4, V2: in two runs, the second with a checkpoint of its own."""
    topics = Topics(spark, any_rocketmq.address)
    lake = str(tmp_path / "lake")
    for topic in ("spark-lake", "spark-lake-again"):
        topics.create(topic, queues=2)
    for start, checkpoint in ((0, "first"), (40, "second")):
        topics.send("spark-lake", numbered(40, start=start), tags=["A", "B"])
        place = tmp_path / checkpoint
        archive(spark, lake=lake, topics=["spark-lake"], name_servers=any_rocketmq.address, checkpoint=place, once=True)
    assert numbered(80) == bodies_of(spark.read.parquet(lake).collect())
    tag = Selection(tag="B")
    sent = replay(spark, lake=lake, to="spark-lake-again", selection=tag, name_servers=any_rocketmq.address)
    assert Replayed(40, 1) == sent
    assert numbered(80)[1::2] == bodies_of(topics.read("spark-lake-again").collect())


@pytest.mark.interop
def test_a_topic_of_rocketmq_becomes_another(any_rocketmq: RocketMQ, spark: SparkSession, tmp_path: Path) -> None:
    """V2: found columns, windows, and messages that are written once over a restart."""
    topics = Topics(spark, any_rocketmq.address)
    for topic in ("sql-interop", "sql-interop-out"):
        topics.create(topic, queues=2)
    script = """
        CREATE VIEW sales FROM TOPIC `sql-interop` WATERMARK at DELAY 1 SECOND;
        INSERT INTO TOPIC `sql-interop-out`
            SELECT customer AS _keys, customer, sum(amount) AS spent
            FROM sales GROUP BY customer, window(at, '1 minute')
    """
    first = [order(number, customer="ab"[number % 2], at=f"00:{number:02}") for number in range(60)]
    topics.send("sql-interop", bodies([*first, order(60, customer="c", at="02:00")]))
    Run(topics, script, checkpoint=str(tmp_path))
    topics.send("sql-interop", bodies([order(61, customer="c", at="09:00")]))
    Run(topics, script, checkpoint=str(tmp_path))
    sums = [json.loads(body) for body in bodies_of(topics.read("sql-interop-out").collect())]
    assert [("a", 300), ("b", 300), ("c", 10)] == [(row["customer"], row["spent"]) for row in sums]
