"""Consume by pop: brokers hand messages out one by one, to as many members as there are.

tern up &
python examples/pop.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Admin, Message, PopConsumer, Producer, ReceivedMessage, StartPosition


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Admin(name_servers) as admin:
        await admin.topics.create("thumbnails", queues=1)

    done: list[str] = []
    complete = asyncio.Event()

    async def on_picture(message: ReceivedMessage) -> None:
        # Returning acks; raising, or taking longer than the invisible time, has it come again.
        done.append(message.body.decode())
        if len(done) == 30:
            complete.set()

    # Three members for one queue: with push, two of them would be idle.
    members = [
        PopConsumer("painters", on_picture, name_servers=name_servers, start=StartPosition.FIRST, invisible_ms=30_000)
        for _ in range(3)
    ]
    for member in members:
        member.subscribe("thumbnails")
    async with members[0], members[1], members[2], Producer("shop", name_servers=name_servers) as producer:
        for number in range(30):
            await producer.send(Message("thumbnails", f"picture {number}".encode()))
        await complete.wait()
    print("painted", len(done), "pictures")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
