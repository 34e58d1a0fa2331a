"""Consume messages: with a listener that is called, or in a loop of your own.

tern up &
python examples/consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Message, Producer, PushConsumer, ReceivedMessage, StartPosition


async def with_a_listener(name_servers: str) -> None:
    paid = asyncio.Event()

    async def on_order(message: ReceivedMessage) -> None:
        # Returning means done; raising means «again later».
        print("listener got", message.tags, message.body.decode())
        if message.tags == "paid":
            paid.set()

    consumer = PushConsumer("billing", on_order, name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("orders", "new || paid")
    async with consumer:
        await paid.wait()


async def in_a_loop(name_servers: str) -> None:
    consumer = PushConsumer("shipping", name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("orders", "paid")
    async with consumer:
        async for message in consumer:
            with message:  # done at the end of the block, again later if it raises
                print("loop got", message.tags, message.body.decode())
            break


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        await producer.send(Message("orders", b"one book", tags="new", sharding_key="order-1"))
        await producer.send(Message("orders", b"never mind", tags="cancelled", sharding_key="order-2"))
        await producer.send(Message("orders", b"one book", tags="paid", sharding_key="order-1"))
    await with_a_listener(name_servers)
    await in_a_loop(name_servers)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
