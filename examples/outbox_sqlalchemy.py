"""Orders and their messages in one database transaction: both happen, or neither.

python examples/outbox_sqlalchemy.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import tempfile

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ternmq import Message, StartPosition, SyncLitePullConsumer
from ternmq.outbox.sqlalchemy import Outbox


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def order(session: Session, outbox: Outbox, number: int, item: str) -> None:
    session.add(Order(id=number, item=item))
    outbox.send(session, Message("outbox-orders", item.encode(), keys=str(number), sharding_key=str(number)))


def main(name_servers: str, directory: str) -> None:
    engine = create_engine(f"sqlite:///{directory}/shop.db")
    Base.metadata.create_all(engine)
    outbox = Outbox(engine, name_servers=name_servers)
    outbox.create()

    with outbox:
        with Session(engine) as session, session.begin():
            order(session, outbox, 1, "one book")
            print("saved, and not sent yet")

        with Session(engine) as session:
            order(session, outbox, 2, "never sent")
            session.rollback()
            print("rolled back: no order, no message")

        with Session(engine) as session, session.begin():
            order(session, outbox, 3, "two books")

    consumer = SyncLitePullConsumer("outbox-readers", name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("outbox-orders")
    with consumer:
        received: list[str] = []
        while len(received) < 2:
            received += [message.body.decode() for message in consumer.poll(timeout_ms=1000)]
        print("received:", sorted(received))
    engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876", directory)
