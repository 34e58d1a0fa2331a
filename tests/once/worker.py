"""A consumer process for ``test_killed``: adds each payment to a table, and stops at a point where it is killed.

python -m tests.once.worker NAME_SERVERS URL POINT

POINT is ``working`` (in the transaction), ``worked`` (after the commit, before any progress is stored) or ``none``.
"""

from __future__ import annotations

import asyncio
import sys
import time

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from ternmq import ConsumeContext, ConsumeHook, PushConsumer, ReceivedMessage, StartPosition
from ternmq.once.sqlalchemy import SqlAlchemyKeys, once_in_transaction


def stop_at(point: str) -> None:
    sys.stdout.write(f"{point}\n")
    sys.stdout.flush()
    time.sleep(600)


class AfterWork(ConsumeHook):
    def after_consume(self, context: ConsumeContext) -> None:
        if context.error is None:
            stop_at("worked")


async def main(name_servers: str, url: str, point: str) -> None:
    engine = create_engine(url)

    @once_in_transaction(SqlAlchemyKeys(engine), lease_ms=1_000)
    def pay(message: ReceivedMessage, session: Session) -> None:
        session.execute(text("INSERT INTO payments (name) VALUES (:name)"), {"name": message.keys[0]})
        if point == "working":
            stop_at(point)

    consumer = PushConsumer(
        "payers",
        pay,
        name_servers=name_servers,
        start=StartPosition.FIRST,
        hooks=[AfterWork()] if point == "worked" else [],
    )
    consumer.subscribe("payments")
    async with consumer:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
