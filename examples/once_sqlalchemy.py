"""Payments that are booked exactly once, though each message comes twice.

python examples/once_sqlalchemy.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ternmq import ConsumeContext, ConsumeHook, Message, Producer, PushConsumer, ReceivedMessage, StartPosition
from ternmq.once.sqlalchemy import SqlAlchemyKeys, once_in_transaction


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"

    name: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Deliveries(ConsumeHook):
    """Counts what arrives, done before or not."""

    def __init__(self) -> None:
        self.count = 0
        self.complete = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def after_consume(self, context: ConsumeContext) -> None:
        self.count += len(context.messages)
        if self.count == 4:  # a plain listener runs in a thread, and its hooks with it
            self._loop.call_soon_threadsafe(self.complete.set)


async def main(name_servers: str, directory: str) -> None:
    engine = create_engine(f"sqlite:///{directory}/bank.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Account(name="shop", cents=0))
    keys = SqlAlchemyKeys(engine)
    await keys.create()

    async with Producer("bank", name_servers=name_servers) as producer:
        for number, cents in ((1, 10), (2, 20)):
            for _ in range(2):  # as after a timeout: the sender does not know, and sends again
                await producer.send(Message("once-payments", b"%d" % cents, keys=f"payment-{number}"))

    @once_in_transaction(keys)
    def book(message: ReceivedMessage, session: Session) -> None:
        account = session.get_one(Account, "shop")
        account.cents += int(message.body)
        print("booked", *message.keys)

    deliveries = Deliveries()
    consumer = PushConsumer(
        "once-bookers", book, name_servers=name_servers, start=StartPosition.FIRST, threads=1, hooks=[deliveries]
    )
    consumer.subscribe("once-payments")
    async with consumer:
        await deliveries.complete.wait()
    with Session(engine) as session:
        print(f"balance: {session.get_one(Account, 'shop').cents}, from {deliveries.count} deliveries")
    engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876", directory))
