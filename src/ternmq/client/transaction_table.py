"""A ready checker: the transactions of an application, as rows of a table in its own database (J2).

For SQLAlchemy 2 (``pip install ternmq[sqlalchemy]``)::

    table = TransactionTable(engine)
    table.create()

    with SyncProducer("shop", checker=table, topics=["orders"]) as producer:
        with producer.transaction(Message("orders", b"paid")) as tx, Session(engine) as session, session.begin():
            session.add(Payment(…))
            session.execute(table.insert(tx))

The row is inserted by the same local transaction as the work, so it exists if and only if the work is committed; the
checker looks for it. When it is not there, the work may still be under way. So the checker waits for ``patience_s``,
and then inserts a row of its own that says «refused», before it answers ROLLBACK: work that comes later cannot be
committed, because its row would have the same key. In whatever order the two insert, message and work agree.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Protocol

from ternmq.env import Clock, SystemClock
from ternmq.errors import ConfigError
from ternmq.message import Outcome, ReceivedMessage

try:
    from sqlalchemy import BigInteger, Column, MetaData, SmallInteger, String, Table, delete, insert, select
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.ext.asyncio import AsyncEngine
except ImportError as error:
    raise ImportError(
        "TransactionTable needs SQLAlchemy 2; install it with `pip install ternmq[sqlalchemy]`"
    ) from error

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import Delete, Insert

#: States of a row.
_COMMITTED: Final = 1
_REFUSED: Final = 2
#: Longer than any id: those of RocketMQ's clients have 32 characters, or 56 with IPv6.
_ID_LENGTH: Final = 255


class Identified(Protocol):
    """A transaction that has begun; a ``Transaction`` or ``SyncTransaction``."""

    @property
    def id(self) -> str: ...


class TransactionTable:
    """A table of transactions, and the checker that reads it. Any number of producers can share it.

    Give it to the producer as ``checker``; execute ``insert(tx)`` in the local transaction.

    Args:
        engine: The engine of the application's database, also an ``AsyncEngine``.
        name: Name of the table.
        metadata: Where the table is added, for tools that create or migrate tables. Default: one of its own.
        patience_s: How long a transaction without a row is left open, in seconds; after that it is refused. Longer than
            local transactions usually take.
        clock: For tests.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        name: str = "ternmq_transactions",
        metadata: MetaData | None = None,
        patience_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"invalid engine {engine!r}: expected an Engine or AsyncEngine of SQLAlchemy")
        if patience_s < 0:
            raise ConfigError(f"invalid patience_s {patience_s}: expected 0 or more")
        self._engine = engine
        self._patience_ms = patience_s * 1000
        self._clock = clock or SystemClock()
        #: The table itself.
        self.table = Table(
            name,
            metadata if metadata is not None else MetaData(),
            Column("transaction_id", String(_ID_LENGTH), primary_key=True),
            Column("state", SmallInteger, nullable=False),
            Column("created_ms", BigInteger, nullable=False, index=True),
        )

    def __repr__(self) -> str:
        return f"<TransactionTable {self.table.name}>"

    def create(self) -> None:
        """Create the table if it does not exist. With an ``AsyncEngine`` use ``await create_async()``."""
        if isinstance(self._engine, AsyncEngine):
            raise ConfigError("this table has an AsyncEngine; use `await table.create_async()`")
        self.table.create(self._engine, checkfirst=True)

    async def create_async(self) -> None:
        """Create the table if it does not exist, with an ``AsyncEngine``."""
        if not isinstance(self._engine, AsyncEngine):
            raise ConfigError("this table has an Engine without asyncio; use `table.create()`")
        async with self._engine.begin() as connection:
            await connection.run_sync(lambda plain: self.table.create(plain, checkfirst=True))

    def insert(self, transaction: Identified) -> Insert:
        """The statement that notes a ``transaction``. Execute it in the local transaction, with the work.

        It raises ``IntegrityError`` when a checker has refused the transaction meanwhile.
        """
        return insert(self.table).values(
            transaction_id=transaction.id, state=_COMMITTED, created_ms=self._clock.now_ms()
        )

    def delete_older(self, age_s: float) -> Delete:
        """The statement that deletes rows that are ``age_s`` seconds old or older.

        A row must be kept as long as its transaction may be asked about: a day, or longer than the brokers'
        ``transactionWaitMax``.
        """
        return delete(self.table).where(self.table.c.created_ms <= self._clock.now_ms() - int(age_s * 1000))

    def __call__(self, message: ReceivedMessage) -> Outcome | Awaitable[Outcome]:
        """The checker: how did the transaction of ``message`` end?"""
        if isinstance(self._engine, AsyncEngine):
            return self._check_async(self._engine, message)
        try:
            with self._engine.begin() as connection:
                return self._decide(connection, message)
        except IntegrityError:
            # The local transaction was faster by a moment; its row is there when the broker asks again.
            return Outcome.UNKNOWN

    async def _check_async(self, engine: AsyncEngine, message: ReceivedMessage) -> Outcome:
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(self._decide, message)
        except IntegrityError:
            return Outcome.UNKNOWN

    def _decide(self, connection: Connection, message: ReceivedMessage) -> Outcome:
        table, transaction_id = self.table, message.message_id
        state = connection.execute(select(table.c.state).where(table.c.transaction_id == transaction_id)).scalar()
        if state is not None:
            return Outcome.COMMIT if state == _COMMITTED else Outcome.ROLLBACK
        now_ms = self._clock.now_ms()
        if now_ms - message.born_time_ms < self._patience_ms:
            return Outcome.UNKNOWN
        connection.execute(insert(table).values(transaction_id=transaction_id, state=_REFUSED, created_ms=now_ms))
        return Outcome.ROLLBACK
