"""Archive orders in a Parquet lake, query it, and send one order again.

tern up &
python examples/pipeline_archive.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ternmq import Message, SyncAdmin, SyncProducer
from ternmq.spark.pipelines.archive import archive
from ternmq.spark.pipelines.replay import Selection, replay
from ternmq.spark.session import session


def main(name_servers: str = "127.0.0.1:9876") -> None:
    with SyncProducer("shop", name_servers=name_servers) as producer:
        for number in range(40):
            tags = "new" if number % 4 else "paid"
            producer.send(Message("lake-orders", f"{number} books".encode(), tags=tags, keys=f"order-{number}"))
    with SyncAdmin(name_servers) as admin:
        admin.topics.create("lake-orders-again", queues=1)

    spark = session(name="lake")
    with tempfile.TemporaryDirectory() as directory:
        lake = Path(directory) / "lake"
        done = archive(spark, lake=lake, topics=["lake-orders"], name_servers=name_servers, once=True)
        print("archived", done.rows)
        paid = spark.read.parquet(str(lake)).where("tags = 'paid'").count()
        print("paid", paid)
        chosen = Selection(key="order-17")
        sent = replay(spark, lake=lake, to="lake-orders-again", selection=chosen, name_servers=name_servers)
        print("sent again", sent.rows)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
