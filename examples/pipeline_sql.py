"""Streaming SQL: what customers spend per minute, from a topic of orders to a topic of alerts.

tern up &
python examples/pipeline_sql.py 127.0.0.1:9876
"""

from __future__ import annotations

import json
import sys
import tempfile

from ternmq import Message, SyncProducer
from ternmq.spark.pipelines.sql import run_sql
from ternmq.spark.session import session

SCRIPT = """
CREATE VIEW orders (customer STRING NOT NULL, amount DOUBLE, at TIMESTAMP) FROM TOPIC book_orders
WATERMARK at DELAY 10 SECONDS;

INSERT INTO TOPIC book_alerts
SELECT customer AS _keys, customer, window.start AS since, sum(amount) AS spent
FROM orders GROUP BY customer, window(at, '1 minute') HAVING sum(amount) > 100;
"""


def main(name_servers: str = "127.0.0.1:9876") -> None:
    with SyncProducer("shop", name_servers=name_servers) as producer:
        # The topic of alerts is created by its first message; the pipeline writes only to an existing topic.
        producer.send(Message("book_alerts", json.dumps({"customer": "nobody", "spent": 0}).encode()))
        for number in range(60):
            order = {"customer": "ann" if number % 3 else "bob", "amount": 3, "at": f"2026-11-16T08:00:{number:02}Z"}
            producer.send(Message("book_orders", json.dumps(order).encode()))
        # A window is final when the watermark has passed it.
        last = {"customer": "eve", "amount": 1, "at": "2026-11-16T08:05:00Z"}
        producer.send(Message("book_orders", json.dumps(last).encode()))
        producer.send(Message("book_orders", b"not an order at all"))

    spark = session(name="alerts")
    with tempfile.TemporaryDirectory() as checkpoint:
        done = run_sql(spark, SCRIPT, name_servers=name_servers, checkpoint=checkpoint, once=True)
    print("read", done[0].messages, "left out", done[0].left_out)
    alerts = spark.read.format("ternmq").option("nameServers", name_servers).load("book_alerts")
    for row in alerts.filter("keys IS NOT NULL").collect():
        print(bytes(row["body"]).decode())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
