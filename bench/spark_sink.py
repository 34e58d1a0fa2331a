"""``python -m bench.spark_sink``: rows a second from Spark into a topic, exactly once and at least once.

Rows of 200 bytes that Spark makes up itself are written with ``local[2]`` into a topic of four queues on one TernMQ
broker, from two tasks. Beside it stands what any of that can be at most on this machine: a plain Python program that
sends the same bodies with ``send_batch``, one batch after the other. All on this machine, one after the other, several
rounds; the table shows medians.
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
from ternmq import Message, SyncAdmin, SyncProducer
from ternmq.spark.session import session

BODY_BYTES: Final = 200
BATCH: Final = 1_000
TOPIC: Final = "bench"
WAYS: Final = ("loop of send_batch", "at-least-once", "exactly-once")


def send(name_servers: str, rows: int) -> None:
    """A loop of batch sends, each awaited."""
    body = b"x" * BODY_BYTES
    with SyncProducer("bench", name_servers=name_servers) as producer:
        for _ in range(rows // BATCH):
            producer.send_batch([Message(TOPIC, body) for _ in range(BATCH)])


def write(frame: DataFrame, name_servers: str, delivery: str) -> None:
    writer = frame.write.format("ternmq").mode("append").option("nameServers", name_servers)
    writer.option("delivery", delivery).save(TOPIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    spark = session(master="local[2]", settings={"spark.driver.memory": "1g"})
    frame = spark.range(0, args.rows, 1, 2).selectExpr(f"repeat('x', {BODY_BYTES}) AS body")
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    # The first round warms up the JVM and the workers, and does not count.
    for number in range(args.rounds + 1):
        for way, found in rates.items():
            # Each way begins with an empty log.
            with (
                tempfile.TemporaryDirectory(prefix="ternmq-bench-") as directory,
                systems.start_ternmq(Path(directory) / "ternmq") as broker,
            ):
                with SyncAdmin(broker.namesrv) as admin:
                    admin.topics.create(TOPIC, queues=4)
                started = time.monotonic()
                if way == WAYS[0]:
                    send(broker.namesrv, args.rows)
                else:
                    write(frame, broker.namesrv, way)
                took_s = time.monotonic() - started
                with SyncAdmin(broker.namesrv) as admin:
                    stored = sum(queue.messages for queue in admin.topics.status(TOPIC))
            assert args.rows <= stored, f"{way}: {stored} of {args.rows} rows"
            if number:
                found.append(args.rows / took_s)
    spark.stop()
    print("| | rows/s | of the loop |\n|---|--:|--:|")
    medians = {way: statistics.median(found) for way, found in rates.items()}
    for way, median in medians.items():
        print(f"| {way} | {median:,.0f} | {median / medians[WAYS[0]]:.2f}× |")


if __name__ == "__main__":
    main()
