"""Share a topic: any number of workers take its messages, one of them dies, and nothing is lost.

tern up &
python examples/share.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Admin, Message, Producer, ReceivedMessage, ShareConsumer, StartPosition


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Admin(name_servers) as admin:
        await admin.topics.create("scans", queues=1)

    done: set[str] = set()
    complete = asyncio.Event()

    async def on_scan(message: ReceivedMessage) -> None:
        # Returning confirms; raising has it come again later.
        done.add(message.body.decode())
        if len(done) == 30:
            complete.set()

    def worker(name: str) -> ShareConsumer:
        consumer = ShareConsumer(
            "readers", on_scan, name_servers=name_servers, start=StartPosition.FIRST, consumer=name, threads=1
        )
        consumer.subscribe("scans")
        return consumer

    async with Producer("scanner", name_servers=name_servers) as producer:
        for number in range(30):
            await producer.send(Message("scans", f"page {number}".encode()))

    # Eight workers for one queue, without a rebalance. The first one leaves at once: others get what it has in hand.
    async with worker("worker-0"):
        pass
    workers = [worker(f"worker-{number}") for number in range(1, 9)]
    for each in workers:
        await each.__aenter__()
    await complete.wait()
    async with Admin(name_servers) as admin:
        members = {member.consumer for member in await admin.clients.sharers("readers") if member.state == "online"}
    for each in workers:
        await each.__aexit__(None, None, None)
    print("read", len(done), "pages with", len(members), "workers")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
