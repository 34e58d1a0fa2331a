"""Consume messages without asyncio: a listener in threads, or a plain loop.

tern up &
python examples/consumer_blocking.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import threading

from ternmq import Message, ReceivedMessage, StartPosition, SyncProducer, SyncPushConsumer

COUNT = 20


def with_a_listener(name_servers: str) -> None:
    seen: set[str] = set()
    complete = threading.Event()

    def on_order(message: ReceivedMessage) -> None:
        seen.add(message.message_id)
        if len(seen) == COUNT:
            complete.set()

    consumer = SyncPushConsumer("billing", on_order, name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("parcels")
    with consumer:
        complete.wait()
    print("listener got", len(seen))


def in_a_loop(name_servers: str) -> None:
    consumer = SyncPushConsumer("shipping", name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("parcels")
    count = 0
    with consumer:
        for message in consumer:  # asking for the next message says that this one is done
            count += 1
            if count == COUNT:
                message.ack()
                break
    print("loop got", count)


def main(name_servers: str = "127.0.0.1:9876") -> None:
    with SyncProducer("shop", name_servers=name_servers) as producer:
        for number in range(COUNT):
            producer.send(Message("parcels", f"parcel {number}".encode()))
    with_a_listener(name_servers)
    in_a_loop(name_servers)


if __name__ == "__main__":
    main(*sys.argv[1:])
