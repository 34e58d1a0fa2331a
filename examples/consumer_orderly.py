"""Consume in order: the steps of each order one after the other, many orders at the same time.

Messages with one sharding key go to one queue, and an orderly consumer keeps the order of each queue: a message that
fails is tried again in place, and what comes behind it waits.

tern up &
python examples/consumer_orderly.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict

from ternmq import ConsumeContext, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage, StartPosition

ORDERS = [f"order-{number}" for number in range(10)]
STEPS = ["created", "paid", "packed", "shipped"]


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    history: dict[str, list[str]] = defaultdict(list)
    complete = asyncio.Event()

    async def on_step(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        step, order = message.body.decode(), message.keys[0]
        if step == "paid" and message.reconsume_times == 0:
            context.retry_ms = 50  # instead of a second
            return ConsumeResult.RETRY
        history[order].append(step)
        if sum(map(len, history.values())) == len(ORDERS) * len(STEPS):
            complete.set()
        return ConsumeResult.SUCCESS

    async with Producer("shop", name_servers=name_servers) as producer:
        for step in STEPS:
            for order in ORDERS:
                await producer.send(Message("steps", step.encode(), keys=order, sharding_key=order))

    consumer = PushConsumer("ledger", on_step, name_servers=name_servers, start=StartPosition.FIRST, orderly=True)
    consumer.subscribe("steps")
    async with consumer:
        await complete.wait()
    print("in order:", all(history[order] == STEPS for order in ORDERS))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
