"""Poison against outage: a database that is down costs no retries; a message that can never succeed dies alone.

python examples/outage.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Admin, Message, Outage, Producer, PushConfig, PushConsumer, ReceivedMessage, StartPosition


class Database:
    """It is down for the first three calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.rows: list[str] = []

    def insert(self, row: str) -> None:
        self.calls += 1
        if self.calls <= 3:
            raise ConnectionError("connection refused")
        if row == "poison":
            raise ValueError("invalid row")
        self.rows.append(row)


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    async with Producer("shop", name_servers=name_servers) as producer:
        for text in ("one", "poison", "two", "three"):
            await producer.send(Message("outage-orders", text.encode()))

    database = Database()

    async def save(message: ReceivedMessage) -> None:
        try:
            database.insert(message.body.decode())
        except ConnectionError as error:
            raise Outage(f"the database cannot be reached: {error}") from error

    config = PushConfig(start=StartPosition.FIRST, max_reconsume_times=1, outage_retry_ms=100)
    consumer = PushConsumer("outage-savers", save, name_servers=name_servers, config=config)
    consumer.subscribe("outage-orders")
    async with consumer, Admin(name_servers) as admin:
        while not (letters := await admin.dead_letters.all("outage-savers")) or len(database.rows) < 3:
            print("waiting")
            await asyncio.sleep(0.5)
        print("saved:", sorted(database.rows))
        print("dead:", [letter.message.body.decode() for letter in letters])


if __name__ == "__main__":
    # The example's own words are enough; a program would keep the log.
    import logging

    logging.getLogger("ternmq").setLevel(logging.CRITICAL)
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
