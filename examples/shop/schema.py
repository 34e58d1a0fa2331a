"""The tables, the topics, and what all parts of the shop share.

Each table belongs to one part of the shop, which a larger company would give to a team: orders and stock, the cashier's
captures, the books, the history that customers see, and the partner's parcels.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Engine, ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ternmq import TransactionTable
from ternmq.once.sqlalchemy import SqlAlchemyKeys
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.sqlalchemy import Outbox

#: What happened to an order. The steps of one order stay in order: they have its id as sharding key.
STEPS = "shop-steps"
#: Comes back after ``PAY_WITHIN``.
DEADLINES = "shop-deadlines"
#: Money that the cashier has taken; sent as transactions (half messages).
CAPTURES = "shop-captures"
#: Orders for the partner that ships.
PARCELS = "shop-parcels"
TOPICS = (STEPS, DEADLINES, CAPTURES, PARCELS)

PAY_WITHIN = timedelta(seconds=6)
#: Short, so that what a killed process was doing is soon done by another one. The defaults are 60 s.
LEASE_MS = 4_000


class Base(DeclarativeBase):
    pass


class State(enum.StrEnum):
    """Of an order. ``PLACED`` and ``PAID`` are on the way; each order ends in one of the others."""

    PLACED = "placed"
    PAID = "paid"
    SHIPPED = "shipped"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"


class Item(Base):
    """What can be bought. Always: ``initial == free + reserved + sold``."""

    __tablename__ = "items"

    name: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    initial: Mapped[int]
    free: Mapped[int]
    reserved: Mapped[int] = mapped_column(default=0)
    sold: Mapped[int] = mapped_column(default=0)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(ForeignKey("items.name"))
    quantity: Mapped[int]
    cents: Mapped[int]
    #: Who ships it.
    partner: Mapped[str]
    state: Mapped[str] = mapped_column(default=State.PLACED)
    #: How many steps it has gone.
    steps: Mapped[int] = mapped_column(default=0)


class Capture(Base):
    """Money that the cashier took for an order: once."""

    __tablename__ = "captures"

    order_id: Mapped[str] = mapped_column(ForeignKey("orders.id"), primary_key=True)
    cents: Mapped[int]


class Refund(Base):
    """Money given back. No unique index: if it happened twice, the books would show it."""

    __tablename__ = "refunds"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey("orders.id"))
    cents: Mapped[int]


class Account(Base):
    """The shop's money, as its books have it: a sum that is only ever added to."""

    __tablename__ = "accounts"

    name: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Step(Base):
    """A step of an order as customers see it, in the order of arrival."""

    __tablename__ = "history"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    number: Mapped[int]
    step: Mapped[str]


class Parcel(Base):
    """The partner's own book: it is another company, and takes part in no transaction of ours."""

    __tablename__ = "parcels"

    order_id: Mapped[str] = mapped_column(primary_key=True)
    partner: Mapped[str]
    requests: Mapped[int] = mapped_column(default=1)


class Door(Base):
    """Whether the shop is open; one row. Closed, it finishes what it has begun."""

    __tablename__ = "door"

    id: Mapped[int] = mapped_column(primary_key=True)
    is_open: Mapped[bool]


@dataclass(slots=True, frozen=True)
class Shop:
    """What a process of the shop has at hand."""

    engine: Engine
    outbox: Outbox
    #: Which messages were done.
    keys: SqlAlchemyKeys
    #: Which transactions of messages were committed.
    transactions: TransactionTable
    name_servers: str

    @classmethod
    def at(cls, database: str, name_servers: str) -> Shop:
        engine = create_engine(database, pool_pre_ping=True, pool_size=20)
        config = OutboxConfig(lease_ms=LEASE_MS, backoff_max_ms=2_000)
        return cls(
            engine=engine,
            outbox=Outbox(engine, name_servers=name_servers, config=config),
            keys=SqlAlchemyKeys(engine),
            transactions=TransactionTable(engine, patience_s=5.0),
            name_servers=name_servers,
        )

    def create(self, stock: dict[str, tuple[int, int]]) -> None:
        """Create the tables; ``stock`` has price in cents and pieces of each item."""
        Base.metadata.create_all(self.engine)
        self.outbox.create()
        self.transactions.create()
        asyncio.run(self.keys.create())
        with Session(self.engine) as session, session.begin():
            session.add_all([Account(name="shop", cents=0), Door(id=1, is_open=True)])
            for name, (cents, pieces) in stock.items():
                session.add(Item(name=name, cents=cents, initial=pieces, free=pieces))


def locked(session: Session, order_id: str) -> Order:
    """An order, and its row lock until the end of the transaction: its messages are saved in the order of its
    changes."""
    return session.get_one(Order, order_id, with_for_update=True)
