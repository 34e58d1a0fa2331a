"""Choose messages by their properties: the broker evaluates an SQL expression, and sends only what it takes.

tern up &
python examples/consumer_sql.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Message, Producer, PushConsumer, StartPosition, errors


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        for amount, region in ((3, "eu"), (12, "us"), (40, "eu"), (7, "eu")):
            properties = {"amount": str(amount), "region": region}
            await producer.send(Message("payments", f"{amount} in {region}".encode(), properties=properties))

    async with PushConsumer("audit", name_servers=name_servers, start=StartPosition.FIRST) as consumer:
        try:
            consumer.subscribe("payments", sql="amount => 5")
        except errors.InvalidExpression as error:
            print("at", error.position, error.reason)
        consumer.subscribe("payments", sql="amount > 5 AND region = 'eu'")
        found = []
        async for message in consumer:
            found.append(message.body.decode())
            if len(found) == 2:
                message.ack()
                break
    print("found", ", ".join(sorted(found)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
