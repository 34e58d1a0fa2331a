"""Read queues by offset: all that a topic holds, without being a member of any group.

tern up &
python examples/consumer_pull.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Message, Producer, PullConsumer


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        for number in range(50):
            await producer.send(Message("invoices", f"invoice {number}".encode()))

    count = 0
    async with PullConsumer("audit", name_servers=name_servers) as consumer:
        for queue in await consumer.queues("invoices"):
            offset = await consumer.min_offset(queue)
            while (result := await consumer.pull(queue, offset, wait=False)).messages:
                count += len(result.messages)
                offset = result.next_offset
            await consumer.commit(queue, offset)
    print("read", count, "messages")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
