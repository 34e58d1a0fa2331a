"""Send messages that are delivered at any time, and take one of them back.

tern up &
python examples/producer_deliver_at.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from ternmq import Message, Producer, PushConsumer, StartPosition


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        # The broker counts a delay from when it gets the message; a moment must have a time zone.
        await producer.send(Message("invitations", b"the door opens", delay=timedelta(milliseconds=1500)))
        await producer.send(
            Message("invitations", b"bring a cake", deliver_at=datetime.now(UTC) + timedelta(seconds=1))
        )

        receipt = await producer.send(Message("invitations", b"the party is cancelled", delay=timedelta(hours=1)))
        await producer.recall(receipt.recall_handle)

    consumer = PushConsumer("guests", name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("invitations")
    async with consumer:
        async for message in consumer:
            with message:
                print("came", message.body.decode())
                if message.body == b"the door opens":
                    break


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
