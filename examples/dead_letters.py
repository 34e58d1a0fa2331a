"""Manage dead letters: messages that failed all attempts of a group.

tern up &
python examples/dead_letters.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Admin, ConsumeResult, Message, Producer, PushConfig, PushConsumer, ReceivedMessage, StartPosition


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        await producer.send(Message("bills", b"one book", keys="order-7"))

    # A consumer that gives up after the first attempt, because its database is not available.
    await work(name_servers, is_broken=True)

    async with Admin(name_servers) as admin:
        for letter in await admin.dead_letters.all("billing"):
            print("dead:", letter.origin_topic, letter.message.keys, letter.message.body, letter.attempts, "attempt")
        # The database is available again: only the group that failed gets them again.
        for resent in await admin.dead_letters.resend("billing"):
            print("sent again to", resent.topic)

    await work(name_servers, is_broken=False)
    async with Admin(name_servers) as admin:
        print("left:", len(await admin.dead_letters.all("billing")))


async def work(name_servers: str, *, is_broken: bool) -> None:
    """Consume one message."""
    seen = asyncio.Event()

    async def listener(message: ReceivedMessage) -> ConsumeResult:
        seen.set()
        if is_broken:
            return ConsumeResult.RETRY
        print("done:", message.topic, message.body)
        return ConsumeResult.SUCCESS

    config = PushConfig(start=StartPosition.FIRST, max_reconsume_times=0)
    consumer = PushConsumer("billing", listener, name_servers=name_servers, config=config)
    consumer.subscribe("bills")
    async with consumer:
        await seen.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
