"""Send messages in every way: awaited, without waiting, one-way, in batches, in order.

tern up &
python examples/producer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Message, Producer, by_hash, split_batch


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        # Awaited: when it returns, the broker has stored the message.
        receipt = await producer.send(Message("orders", b"one book", tags="new", keys="order-1"))
        print("sent", receipt.status.value, receipt.message_id)

        # Without waiting: many sends in progress at once, each with a future.
        sent = [producer.send_nowait(Message("orders", f"book {number}".encode())) for number in range(100)]
        receipts = await asyncio.gather(*sent)
        print("sent", len(receipts), "without waiting")

        # One-way: the broker does not reply.
        await producer.send_oneway(Message("clicks", b"page 7"))

        # Many in one request; split_batch keeps each below the limit of 4 MiB.
        messages = [Message("orders", f"pen {number}".encode()) for number in range(1_000)]
        for part in split_batch(messages):
            await producer.send_batch(part)
        print("sent", len(messages), "in batches")

        # In order: all steps of one order go to one queue, by the message's key or by a selector.
        for step in ("created", "paid", "shipped"):
            by_key = await producer.send(Message("steps", step.encode(), sharding_key="order-1"))
            selected = await producer.send(Message("steps", step.encode()), selector=by_hash("order-1"))
            print(step, "in", by_key.queue, "and", selected.queue)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
