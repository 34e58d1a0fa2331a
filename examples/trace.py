"""Trace a message: who sent and consumed it, when, and with which result.

tern up &
python examples/trace.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Admin, Message, Producer, PushConsumer, ReceivedMessage, StartPosition


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    done = asyncio.Event()

    async def bill(_: ReceivedMessage) -> None:
        done.set()

    async with Producer("trace-example", name_servers=name_servers, trace=True) as producer:
        receipt = await producer.send(Message("traced", b"one book", keys="order-1"))

    consumer = PushConsumer("trace-billing", bill, name_servers=name_servers, start=StartPosition.FIRST, trace=True)
    consumer.subscribe("traced")
    async with consumer:
        await done.wait()

    # Leaving the blocks has sent the traces.
    async with Admin(name_servers) as admin:
        for step in await admin.traces.path(receipt.message_id):
            print(f"{step.group} {step.what}: {step.result}")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
