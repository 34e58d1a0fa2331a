"""``python -m bench.spark_sink``: rows per second from Spark into a topic, exactly once and at least once.

Generated rows of 200 bytes are written with ``local[2]`` into four queues of one broker, from two
tasks: by TernMQ's sink in both ways, and by Spark's own Kafka sink (at least once) into four partitions. *Loop* is a
plain Python program that sends the same bodies to TernMQ with ``send_batch``, one batch after the other. All on this
machine, one after the other, several rounds; the table shows medians. Each measurement begins with an empty topic, on
TernMQ with an empty log.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from bench import systems
from bench.kafka import Kafka, connector_jars, start_kafka
from ternmq import Message, SyncAdmin, SyncProducer
from ternmq.spark.session import session

BODY_BYTES: Final = 200
#: Messages of one ``send_batch``.
BATCH: Final = 1_000
QUEUES: Final = 4
TOPIC: Final = "bench"
LOOP: Final = "loop of `send_batch`"
THEIRS: Final = "Spark's Kafka sink"
OURS: Final = {"TernMQ, at least once": "at-least-once", "TernMQ, exactly once": "exactly-once"}


def send(name_servers: str, rows: int) -> None:
    """A loop of batch sends, each awaited."""
    body = b"x" * BODY_BYTES
    with SyncProducer("bench", name_servers=name_servers) as producer:
        for _ in range(rows // BATCH):
            producer.send_batch([Message(TOPIC, body) for _ in range(BATCH)])


def write(frame: DataFrame, name_servers: str, delivery: str) -> None:
    writer = frame.write.format("ternmq").mode("append").option("nameServers", name_servers)
    writer.option("delivery", delivery).save(TOPIC)


def ternmq_rate(way: str, frame: DataFrame, rows: int) -> float:
    """Rows per second, from the start of the job to its end; checks that all of them are stored."""
    with (
        tempfile.TemporaryDirectory(prefix="ternmq-bench-") as directory,
        systems.start_ternmq(Path(directory) / "ternmq") as broker,
    ):
        with SyncAdmin(broker.namesrv) as admin:
            admin.topics.create(TOPIC, queues=QUEUES)
        started = time.monotonic()
        if way == LOOP:
            send(broker.namesrv, rows)
        else:
            write(frame, broker.namesrv, OURS[way])
        took_s = time.monotonic() - started
        with SyncAdmin(broker.namesrv) as admin:
            stored = sum(queue.messages for queue in admin.topics.status(TOPIC))
    if stored < rows:
        raise SystemExit(f"{way}: {stored} of {rows} rows")
    return rows / took_s


def kafka_rate(frame: DataFrame, kafka: Kafka, topic: str, rows: int) -> float:
    kafka.create(topic, partitions=QUEUES)
    started = time.monotonic()
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic}
    frame.selectExpr("body AS value").write.format("kafka").options(**options).save()
    return rows / (time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    spark = session(master="local[2]", settings={"spark.driver.memory": "1g", "spark.jars": connector_jars()})
    frame = spark.range(0, args.rows, 1, 2).selectExpr(f"repeat('x', {BODY_BYTES}) AS body")
    rates: dict[str, list[float]] = {way: [] for way in (LOOP, THEIRS, *OURS)}
    with tempfile.TemporaryDirectory(prefix="ternmq-bench-") as directory, start_kafka(Path(directory)) as kafka:
        # The first round warms up the JVM and the workers, and does not count.
        for number in range(args.rounds + 1):
            for way, found in rates.items():
                if way == THEIRS:
                    rate = kafka_rate(frame, kafka, f"{TOPIC}-{number}", args.rows)
                else:
                    rate = ternmq_rate(way, frame, args.rows)
                if number:
                    found.append(rate)
    spark.stop()
    medians = {way: statistics.median(found) for way, found in rates.items()}
    print("| | rows/s | of the loop | of Kafka's |\n|---|--:|--:|--:|")
    for way, median in medians.items():
        print(f"| {way} | {median:,.0f} | {median / medians[LOOP]:.2f}× | {median / medians[THEIRS]:.2f}× |")


if __name__ == "__main__":
    main()
