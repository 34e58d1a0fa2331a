"""Ask for messages when you want some: as a member of a group, and from queues of your choice.

tern up &
python examples/lite_pull.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import LitePullConsumer, Message, Producer, StartPosition


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        for number in range(50):
            await producer.send(Message("clicks", f"click {number}".encode()))

    # A member of the group: brokers keep the progress, and members divide the queues.
    consumer = LitePullConsumer("lake", name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("clicks")
    count = 0
    async with consumer:
        async for _ in consumer:  # a message is done when the next one is asked for, or the block ends
            count += 1
            if count == 50:
                break
    print("polled", count, "messages")

    # Queues of your choice, at a place of your choice.
    async with LitePullConsumer("audit", name_servers=name_servers, auto_commit=False) as consumer:
        first, *_ = await consumer.queues("clicks")
        await consumer.assign([first])
        await consumer.seek_to_begin(first)
        again = 0
        while messages := await consumer.poll(timeout_ms=500):
            again += len(messages)
        print("read the first queue again:", again == await consumer.max_offset(first))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
