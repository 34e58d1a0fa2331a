"""Send a request to another program through a topic, and wait for its reply.

tern up &
python examples/request_reply.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Admin, Message, Producer, PushConsumer, ReceivedMessage, StartPosition, errors


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Admin(name_servers) as admin:
        await admin.topics.create("prices")
    async with Producer("shop", name_servers=name_servers) as producer:

        async def on_question(message: ReceivedMessage) -> None:
            price = {b"book": b"7 EUR", b"pen": b"1 EUR"}[message.body]
            await producer.reply(message, price)

        consumer = PushConsumer("price-list", on_question, name_servers=name_servers, start=StartPosition.FIRST)
        consumer.subscribe("prices")
        async with consumer:
            wanted = (b"book", b"pen")
            replies = await asyncio.gather(
                *(producer.request(Message("prices", what), timeout_ms=10_000) for what in wanted)
            )
            for what, reply in zip(wanted, replies, strict=True):
                print(what.decode(), "costs", reply.body.decode())

        try:
            await producer.request(Message("prices", b"book"), timeout_ms=100)
        except errors.RequestTimeout as error:
            print("no answer:", error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
