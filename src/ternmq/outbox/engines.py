"""Databases of SQLAlchemy as the relay sees them, and the table as SQLAlchemy's ``Table`` (J3)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ternmq.conflicts import is_conflict
from ternmq.errors import ConfigError, OutboxFailed, OutboxMissing
from ternmq.outbox.entry import ERROR_LENGTH, MESSAGE_ID_LENGTH, ORDER_KEY_LENGTH, OWNER_LENGTH, TOPIC_LENGTH
from ternmq.outbox.schema import TABLE, Dialect, check_name, index_name
from ternmq.outbox.table import CHANNEL, CLOSE_S, CONFLICTS_MAX, Execute, OutboxTable, Result, Values
from ternmq.side_threads import SideThreads

try:
    from sqlalchemy import (
        BigInteger,
        Column,
        Identity,
        Index,
        Integer,
        LargeBinary,
        MetaData,
        SmallInteger,
        String,
        Table,
        Text,
        text,
    )
    from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT, VARCHAR
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import StaticPool
except ImportError as error:
    raise ImportError("the outbox needs SQLAlchemy 2; install it with `pip install ternmq[outbox]`") from error

T = TypeVar("T")

#: MariaDB and MySQL have SKIP LOCKED from these versions on.
_SKIP_LOCKED_MARIADB: Final = (10, 6)
_SKIP_LOCKED_MYSQL: Final = (8, 0, 1)
#: How a transaction begins on a connection that commits each statement by itself.
_BEGIN: Final = {
    Dialect.POSTGRESQL: "BEGIN ISOLATION LEVEL READ COMMITTED",
    Dialect.MYSQL: "START TRANSACTION",
}
#: How often a listener looks whether it shall end.
_LISTEN_S: Final = 1.0


def outbox_table(metadata: MetaData, name: str = TABLE) -> Table:
    """The outbox table as part of ``metadata``, for tools that create or migrate tables.

    ::

        class Base(DeclarativeBase): ...

        outbox_table(Base.metadata)
        Base.metadata.create_all(engine)
    """
    schema, _, bare = check_name(name).rpartition(".")
    if (known := metadata.tables.get(name)) is not None:
        return known

    def key(length: int) -> String:
        mysql = VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
        return String(length).with_variant(mysql, "mysql", "mariadb")

    content = Text().with_variant(LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
    return Table(
        bare,
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
        Column("message_id", key(MESSAGE_ID_LENGTH)),
        Column("topic", key(TOPIC_LENGTH), nullable=False),
        Column("body", LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb"), nullable=False),
        Column("message", content, nullable=False),
        Column("order_key", key(ORDER_KEY_LENGTH)),
        Column("state", SmallInteger, nullable=False, server_default=text("0")),
        Column("due_ms", BigInteger, nullable=False, server_default=text("0")),
        Column("owner", key(OWNER_LENGTH)),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("refusals", Integer, nullable=False, server_default=text("0")),
        Column("error", key(ERROR_LENGTH)),
        Column("created_ms", BigInteger, nullable=False, server_default=text("0")),
        Index(index_name(name, "message_id"), "message_id", unique=True),
        Index(index_name(name, "due"), "state", "due_ms", "id"),
        Index(index_name(name, "order"), "order_key", "id"),
        schema=schema or None,
        sqlite_autoincrement=True,
    )


def _close(connecting: Future[Any]) -> None:
    if connecting.exception() is None:
        connecting.result().close()


def executing(connection: Connection) -> Execute:
    """Statements in the transaction of a connection."""

    def execute(statement: str, values: Values | Sequence[Values] = (), /) -> Result:
        # What text() does not know as a value stays as it is; there is no other colon in the statements. Without values
        # nothing has to be understood, or remembered: lists of ids make a text that comes once.
        result = connection.execute(text(statement), values) if values else connection.exec_driver_sql(statement)
        if result.returns_rows:
            rows = [tuple(row) for row in result]
            return Result(rows, len(rows))
        return Result((), result.rowcount)

    return execute


def _gave_way(error: SQLAlchemyError) -> bool:
    return isinstance(error, DBAPIError) and is_conflict(error.orig)


class _Kept(threading.local):
    """The connection that a thread keeps: one that is stuck in it is not used by the next thread."""

    connection: Connection | None = None


class EngineDatabase:
    """A database behind an ``Engine`` or an ``AsyncEngine``. Blocking drivers run in a thread of its own."""

    def __init__(self, engine: Engine | AsyncEngine, table: str = TABLE) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"invalid engine {engine!r}: expected an Engine or AsyncEngine of SQLAlchemy")
        plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        #: What sessions are bound to, also those of an ``AsyncEngine``.
        self.engine = plain
        self.is_async = isinstance(engine, AsyncEngine)
        dialect = Dialect.of(plain.dialect.name)
        # The relay's commit would be one of the application's half transaction, too.
        in_memory = dialect is Dialect.SQLITE and plain.url.database in (None, "", ":memory:")
        if in_memory or isinstance(plain.pool, StaticPool):
            raise ConfigError(
                "an outbox needs a connection of its own, which a SQLite database in memory and a StaticPool do not "
                "give; use a file"
            )
        self.name = plain.url.render_as_string(hide_password=True)
        self.table = OutboxTable(table, dialect)
        # READ COMMITTED: a relay wants to see what is there now, and locks nothing but its rows.
        options: dict[str, Any] = {} if dialect is Dialect.SQLITE else {"isolation_level": "READ COMMITTED"}
        # Statements with ids are never the same again: they would push the application's own out of its cache.
        self._plain = plain.execution_options(compiled_cache=None, **options)
        self._async = AsyncEngine(self._plain) if self.is_async else None
        # The connection that the relay keeps commits each statement by itself, and transactions are begun and ended by
        # statements: most of the relay's work is one statement, which then is one round trip instead of two or three.
        # SQLite has no round trips.
        self._commits_itself = dialect is not Dialect.SQLITE
        kept = {"isolation_level": "AUTOCOMMIT"} if self._commits_itself else {}
        self._to_keep = plain.execution_options(compiled_cache=None, **kept)
        self._thread: SideThreads | None = None
        self._pid = os.getpid()
        self._of_thread = _Kept()

    def __repr__(self) -> str:
        return f"<EngineDatabase {self.name}>"

    async def run(self, work: Callable[[Execute], T], *, is_single: bool = False) -> T:
        """Do ``work`` in one transaction, and commit it; a single statement needs none. Raises ``OutboxFailed``."""
        if self._async is None:
            if self._thread is None or self._pid != os.getpid():
                # After a fork, the thread and its connection are the parent's.
                self._pid = os.getpid()
                self._thread = SideThreads("ternmq-outbox")
            return await self._thread.run(self._run_kept, work, is_single)
        for left in reversed(range(CONFLICTS_MAX)):
            try:
                async with self._async.begin() as connection:
                    return await connection.run_sync(lambda plain: work(self._prepared(plain)))
            except SQLAlchemyError as error:
                if left and _gave_way(error):
                    continue
                with contextlib.suppress(SQLAlchemyError):
                    async with self._async.connect() as connection:
                        await connection.run_sync(self.check_exists)
                raise self.failed(error) from error
        raise AssertionError("the last attempt returns or raises")

    def run_here(self, work: Callable[[Execute], T]) -> T:
        """The same in this thread, for an ``Engine``."""
        for left in reversed(range(CONFLICTS_MAX)):
            try:
                with self._plain.begin() as connection:
                    return work(self._prepared(connection))
            except SQLAlchemyError as error:
                if left and _gave_way(error):
                    continue
                with contextlib.suppress(SQLAlchemyError), self._plain.connect() as connection:
                    self.check_exists(connection)
                raise self.failed(error) from error
        raise AssertionError("the last attempt returns or raises")

    @property
    def _kept(self) -> Connection | None:
        return self._of_thread.connection

    @_kept.setter
    def _kept(self, connection: Connection | None) -> None:
        self._of_thread.connection = connection

    def _run_kept(self, work: Callable[[Execute], T], is_single: bool) -> T:
        """The same in the thread of this database, on a connection that it keeps: to take one from the pool for each
        transaction, with its isolation level, is several round trips on MariaDB.
        """
        for left in reversed(range(CONFLICTS_MAX)):
            try:
                if self._kept is None:
                    self._kept = self._keep()
                return self._done(self._kept, work, is_single=is_single)
            except SQLAlchemyError as error:
                is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
                if left and _gave_way(error) and self._rolled_back():
                    continue
                self._drop_kept()
                if is_lost and left == CONFLICTS_MAX - 1:
                    # It may have been idle for hours. All that is done here can be done twice.
                    continue
                with contextlib.suppress(SQLAlchemyError), self._plain.connect() as connection:
                    self.check_exists(connection)
                raise self.failed(error) from error
            except BaseException:
                self._drop_kept()
                raise
        raise AssertionError("the last attempt returns or raises")

    def _keep(self) -> Connection:
        connection = self._to_keep.connect()
        if self.table.dialect is Dialect.MYSQL:
            # For its life with us; the pool sets it back, as it does with the commits.
            connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    def _done(self, connection: Connection, work: Callable[[Execute], T], *, is_single: bool) -> T:
        execute = self._prepared(connection)
        if not self._commits_itself:
            with connection.begin():
                return work(execute)
        if is_single:
            return work(execute)
        connection.exec_driver_sql(_BEGIN[self.table.dialect])
        result = work(execute)
        connection.exec_driver_sql("COMMIT")
        return result

    def _rolled_back(self) -> bool:
        try:
            if self._kept is not None and self._commits_itself:
                self._kept.exec_driver_sql("ROLLBACK")
        except SQLAlchemyError:
            return False
        return True

    def _drop_kept(self) -> None:
        """Close the connection after an error, so that the database rolls back: a driver that commits each statement by
        itself may not know that there is a transaction.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            with contextlib.suppress(SQLAlchemyError):
                kept.invalidate()
                kept.close()

    def _give_kept_back(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            with contextlib.suppress(SQLAlchemyError):
                kept.close()

    async def create(self) -> None:
        """Create the table if it does not exist."""
        wanted = outbox_table(MetaData(), self.table.name)
        try:
            if self._async is not None:
                async with self._async.begin() as connection:
                    await connection.run_sync(lambda plain: wanted.create(plain, checkfirst=True))
            else:
                await asyncio.to_thread(wanted.create, self._plain, checkfirst=True)
        except SQLAlchemyError as error:
            raise self.failed(error) from error

    def check_exists(self, connection: Connection) -> None:
        """Raise ``OutboxMissing`` if the table does not exist. It fails no transaction of the connection."""
        if not self.table.exists(executing(connection)):
            raise OutboxMissing(
                f"the database {self.name} has no table {self.table.name!r}, which the outbox needs; create it with "
                "Outbox.create(), an Alembic migration with op.create_outbox(), or `tern outbox create`",
                database=self.name,
            )

    def failed(self, error: SQLAlchemyError) -> OutboxFailed:
        """A driver's error as a sentence."""
        reason: BaseException = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        detail = " ".join(str(reason).split())[:300]
        return OutboxFailed(f"the outbox cannot use the database {self.name}: {detail}", database=self.name)

    def _prepared(self, connection: Connection) -> Execute:
        """What is known only when a server has answered."""
        dialect = connection.dialect
        if not self.table.skip_locked and self.table.dialect is not Dialect.SQLITE:
            version = dialect.server_version_info or ()
            needed = _SKIP_LOCKED_MARIADB if getattr(dialect, "is_mariadb", False) else _SKIP_LOCKED_MYSQL
            self.table.skip_locked = self.table.dialect is Dialect.POSTGRESQL or version >= needed
        return executing(connection)

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[Callable[[], Awaitable[None]] | None]:
        """Notifications of PostgreSQL, by psycopg; None with other databases, drivers, and asynchronous engines."""
        if self.is_async or self.table.dialect is not Dialect.POSTGRESQL or self._plain.dialect.driver != "psycopg":
            yield None
            return
        thread = SideThreads("ternmq-outbox-listen")
        connecting = thread.start(self._listening)
        try:
            listening = await asyncio.shield(asyncio.wrap_future(connecting))

            async def notified() -> None:
                while not await thread.run(self._has_notified, listening):
                    pass

            yield notified
        finally:
            # What it may still be about to open is closed, too: not waited for, as a database may not answer.
            thread.start(_close, connecting)
            thread.end()

    def _listening(self) -> Any:
        """A connection of psycopg that listens, apart from the pool: it waits for ever."""
        try:
            with self._plain.connect() as connection:
                raw: Any = connection.connection.driver_connection
                # Closed after this, not given back: the pool may be disposed of meanwhile.
                connection.detach()
                copy = type(raw).connect(raw.info.dsn, password=raw.info.password, autocommit=True)
            try:
                copy.execute(f"LISTEN {CHANNEL}")
            except BaseException:
                copy.close()
                raise
            return copy
        except SQLAlchemyError as error:
            raise self.failed(error) from error
        except Exception as error:
            raise OutboxFailed(f"cannot listen to the database {self.name}: {error}", database=self.name) from error

    def _has_notified(self, connection: Any) -> bool:
        try:
            return any(True for _ in connection.notifies(timeout=_LISTEN_S, stop_after=1))
        except Exception as error:
            raise OutboxFailed(f"cannot listen to the database {self.name}: {error}", database=self.name) from error

    async def close(self) -> None:
        """Give the connection back, and end the thread; a database that does not answer is not waited for."""
        thread, self._thread = self._thread, None
        if thread is not None:
            loop, is_given = asyncio.get_running_loop(), asyncio.Event()

            def given(_: Future[None]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                    loop.call_soon_threadsafe(is_given.set)

            # Not cancelled: one that is late is given back all the same.
            thread.start(self._give_kept_back).add_done_callback(given)
            thread.end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await is_given.wait()
