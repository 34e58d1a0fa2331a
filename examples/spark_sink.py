"""Write rows to topics: a table once, and streams from topic to topic in which each row arrives once.

tern up &
python examples/spark_sink.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import DataFrame

from ternmq import SyncAdmin
from ternmq.spark.session import session


def main(name_servers: str = "127.0.0.1:9876") -> None:
    with SyncAdmin(name_servers) as admin:
        for topic in ("parcels", "heavy-parcels", "express-parcels"):
            admin.topics.create(topic, queues=4)

    spark = session(name="parcels")
    parcels = spark.range(100).selectExpr(
        "to_json(named_struct('id', id, 'grams', id * 37 % 1000)) AS body",
        "concat('parcel-', id) AS keys",
        # Parcels of one customer stay in order.
        "concat('customer-', id % 9) AS sharding_key",
    )
    # With an id, a repeated job writes no row twice.
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

    def write_express(batch: DataFrame, number: int) -> None:
        # Spark may run a batch again. With an application and a version, as in Delta, it is written once.
        write = batch.where("keys LIKE '%0'").write.format("ternmq").mode("append").option("nameServers", name_servers)
        for _ in range(2):
            write.option("txnAppId", "express").option("txnVersion", number).save("express-parcels")

    with tempfile.TemporaryDirectory() as checkpoint:
        each = stream.writeStream.foreachBatch(write_express).option("checkpointLocation", checkpoint)
        each.trigger(availableNow=True).start().awaitTermination()

    read = spark.read.format("ternmq").option("nameServers", name_servers)
    heavy, express = (read.load(topic).count() for topic in ("heavy-parcels", "express-parcels"))
    print("wrote", read.load("parcels").count(), "parcels,", heavy, "of them heavy,", express, "of these by express")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
