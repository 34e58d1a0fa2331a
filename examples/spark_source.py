"""A topic as a table: read all messages, count by tag, and read the next messages as a stream.

tern up &
python examples/spark_source.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import DataFrame

from ternmq import Message, SyncProducer
from ternmq.spark.session import session


def main(name_servers: str = "127.0.0.1:9876") -> None:
    with SyncProducer("shop", name_servers=name_servers) as producer:
        for number in range(40):
            producer.send(Message("sales", f"{number} books".encode(), tags="new" if number % 4 else "paid"))

    spark = session(name="sales")
    sales = spark.read.format("ternmq").option("nameServers", name_servers).load("sales")
    print({row["tags"]: row["count"] for row in sales.groupBy("tags").count().orderBy("tags").collect()})

    streamed: list[int] = []

    def add(batch: DataFrame, _: int) -> None:
        streamed.append(batch.count())

    stream = (
        spark.readStream.format("ternmq")
        .option("nameServers", name_servers)
        .option("startingOffsets", "earliest")
        .option("tags", "paid")
        .option("group", "sales-stream")
        .load("sales")
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        query = stream.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint)
        # Reads the present messages, then stops; a second run with the same checkpoint reads only new messages.
        query.trigger(availableNow=True).start().awaitTermination()
    print("streamed", sum(streamed), "of them")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
