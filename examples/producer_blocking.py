"""Send messages from threads, without asyncio.

tern up &
python examples/producer_blocking.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from ternmq import Message, SendReceipt, SyncProducer


def main(name_servers: str = "127.0.0.1:9876") -> None:
    with SyncProducer("shop", name_servers=name_servers) as producer:

        def send(number: int) -> SendReceipt:
            return producer.send(Message("orders", f"book {number}".encode()))

        with ThreadPoolExecutor(8) as threads:
            receipts = list(threads.map(send, range(100)))
        print("sent", len(receipts), "from 8 threads")

        future = producer.send_nowait(Message("orders", b"one more"))
        print("sent", future.result().status.value)


if __name__ == "__main__":
    main(*sys.argv[1:])
