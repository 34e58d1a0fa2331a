"""Compare sent, stored and consumed orders, and list the orders that a group has given up.

pip install ternmq[spark]
tern up &
python examples/pipeline_reconcile.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import threading

from ternmq import Message, PushConfig, ReceivedMessage, StartPosition, SyncProducer, SyncPushConsumer
from ternmq.spark.pipelines.deadletters import examine, letters
from ternmq.spark.pipelines.reconcile import reconcile
from ternmq.spark.pipelines.reconcile_sides import Sides
from ternmq.spark.session import session


def trade(name_servers: str) -> list[str]:
    """Sell ten books. One order never leaves the shop, one leaves it twice, and billing gives one up."""
    sold = [f"order-{number}" for number in range(10)]
    with SyncProducer("shop", name_servers=name_servers) as producer:
        for order in [*sold[1:], sold[5]]:
            producer.send(Message("book-orders", b"one book", keys=order))

    billed: list[str] = []
    done = threading.Event()

    def bill(message: ReceivedMessage) -> None:
        billed.append(message.keys[0])
        if len(billed) == len(sold):
            done.set()
        if message.keys[0] == "order-7":
            raise ValueError("no such customer")

    config = PushConfig(start=StartPosition.FIRST, max_reconsume_times=0)
    consumer = SyncPushConsumer("book-billing", bill, name_servers=name_servers, config=config)
    consumer.subscribe("book-orders")
    with consumer:
        done.wait()
    return sold


def main(name_servers: str = "127.0.0.1:9876") -> None:
    sold = trade(name_servers)
    spark = session(name="reconcile")
    sides = Sides(spark, "book-orders", name_servers=name_servers, by="keys")
    result = reconcile(
        spark,
        "book-orders",
        sides.stored(),
        sent=sides.of_table(spark.createDataFrame([(order,) for order in sold], "id STRING")),
        consumed=sides.consumed("group:book-billing"),
    )
    for one in result.differences:
        print(one.id, "is", one.problem)
    report = examine(spark, letters(spark, ["book-billing"], name_servers=name_servers))
    print("given up:", ", ".join(f"{one.count} of {one.origin_topic}" for one in report.groups))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
