"""Rows into topics: a table written once, and a stream from topic to topic in which each row arrives once.

tern up &
python examples/spark_sink.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import tempfile

from ternmq import SyncAdmin
from ternmq.spark.session import session


def main(name_servers: str) -> None:
    with SyncAdmin(name_servers) as admin:
        for topic in ("parcels", "heavy-parcels"):
            admin.topics.create(topic, queues=4)

    spark = session(name="parcels")
    parcels = spark.range(100).selectExpr(
        "to_json(named_struct('id', id, 'grams', id * 37 % 1000)) AS body",
        "concat('parcel-', id) AS keys",
        # Parcels of one customer stay in order.
        "concat('customer-', id % 9) AS sharding_key",
    )
    # With an id, a job that is run again writes nothing twice.
    write = parcels.write.format("ternmq").mode("append").option("nameServers", name_servers)
    for _ in range(2):
        write.option("writeId", "parcels-of-today").save("parcels")

    stream = (
        spark.readStream.format("ternmq")
        .option("nameServers", name_servers)
        .option("startingOffsets", "earliest")
        .load("parcels")
        .selectExpr("CAST(body AS STRING) AS body", "keys", "'heavy' AS tags")
        .where("get_json_object(body, '$.grams') >= 900")
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        sink = stream.writeStream.format("ternmq").option("nameServers", name_servers)
        query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start("heavy-parcels")
        query.awaitTermination()

    read = spark.read.format("ternmq").option("nameServers", name_servers)
    print("wrote", read.load("parcels").count(), "parcels,", read.load("heavy-parcels").count(), "of them heavy")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
