"""Send messages that are delivered later, by one of the broker's delay levels.

tern up &
python examples/producer_delayed.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Message, Producer, PushConsumer, StartPosition


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        await producer.send(Message("reminders", b"pay now", delay_level=2))  # in 5 s
        await producer.send(Message("reminders", b"thank you", delay_level=1))  # in 1 s

    consumer = PushConsumer("mailer", name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("reminders")
    got = 0
    async with consumer:
        async for message in consumer:
            with message:
                print("came", message.body.decode())
                got += 1
            if got == 2:
                break
    print("both came")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
