"""Consume lists of messages, do a part of a list, and say when the rest shall come again.

tern up &
python examples/consumer_batches.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from ternmq import ConsumeContext, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage, StartPosition

COUNT = 100


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    saved: set[str] = set()
    complete = asyncio.Event()

    async def save(messages: Sequence[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        for number, message in enumerate(messages):
            if message.reconsume_times == 0 and message.body.endswith(b"7"):
                context.done_count = number  # this one and those behind it come again
                context.delay_level = 1  # in a second
                break
            saved.add(message.body.decode())
        if len(saved) == COUNT:
            complete.set()
        return ConsumeResult.SUCCESS

    async with Producer("shop", name_servers=name_servers) as producer:
        await producer.send_batch([Message("readings", str(number).encode()) for number in range(COUNT)])
    async with PushConsumer("lake", name_servers=name_servers, start=StartPosition.FIRST, batch_max=32) as consumer:
        consumer.listener(save)
        consumer.subscribe("readings")
        await complete.wait()
    print("saved", len(saved), "messages")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
