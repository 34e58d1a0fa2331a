"""Keys in a database of SQLAlchemy 2, and work whose effect happens exactly once (S1).

A change of a key is a short transaction of its own: read the row with the server's time, decide, and write on condition
that the row is still as it was read; else begin again. No lock is held between statements, so it needs nothing of the
database but atomic statements.

``once_in_transaction`` gives the listener a session. What the listener does in it, and ``UPDATE … SET state = done
WHERE token = ours``, are committed together:

    committed: the effect is there and the key is done; rolled back: neither.

A consumer that lost its lease finds no such row, and its whole transaction is rolled back: the token is the fence.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

from ternmq.client.consume.listener import ConsumeContext, is_async
from ternmq.conflicts import is_conflict
from ternmq.env import Clock
from ternmq.errors import ConfigError, InvalidKey, KeyStoreFailed, KeyTableMissing
from ternmq.message import ReceivedMessage
from ternmq.once.guard import (
    Decorator,
    Guard,
    Guards,
    Held,
    KeyOf,
    checked,
    dressed,
    held_here,
    keys_of,
    outcome,
)
from ternmq.once.keystore import ABANDONED_MS, NAME_LENGTH, TOKEN_LENGTH, Decide, KeyEntry, State
from ternmq.side_threads import SideThreads

try:
    from sqlalchemy import (
        BigInteger,
        Column,
        ColumnElement,
        Connection,
        CursorResult,
        Engine,
        Index,
        Integer,
        MetaData,
        SmallInteger,
        String,
        Table,
        and_,
        delete,
        insert,
        inspect,
        literal,
        literal_column,
        or_,
        select,
        update,
    )
    from sqlalchemy.dialects.mysql import VARCHAR
    from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import StaticPool
except ImportError as error:
    raise ImportError("keys in a database need SQLAlchemy 2; install it with `pip install ternmq[once]`") from error

T = TypeVar("T")

TABLE: Final = "ternmq_once"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,50}(\.[A-Za-z_][A-Za-z0-9_]{0,50})?")
#: How many changes an ``Engine`` makes at the same time.
_THREADS_MAX: Final = 8
#: Attempts of a change that loses to others, each time.
_RACES_MAX: Final = 100
#: The server's time in ms since 1970, when the statement runs.
_NOW_MS: Final = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)",
    "mariadb": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


def once_table(metadata: MetaData, name: str = TABLE) -> Table:
    """The table of keys as part of ``metadata``, for tools that create or migrate tables."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(f"invalid name {name!r} of the key table: expected letters, digits and '_', at most 51")
    if (known := metadata.tables.get(name)) is not None:
        return known
    schema, _, bare = name.rpartition(".")
    binary = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}

    def text(length: int) -> String:
        return String(length).with_variant(VARCHAR(length, **binary), "mysql", "mariadb")

    return Table(
        bare,
        metadata,
        # The SHA-256 of the name: databases compare texts by rules of their own, such as blanks at the end.
        Column("id", text(64), primary_key=True),
        # For people.
        Column("name", text(NAME_LENGTH), nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("token", text(TOKEN_LENGTH), nullable=False),
        Column("until_ms", BigInteger, nullable=False),
        Column("lease_ms", BigInteger, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("since_ms", BigInteger, nullable=False),
        Index(f"{bare}_until", "until_ms"),
        schema=schema or None,
    )


class SqlAlchemyKeys:
    """A ``KeyStore`` in a database. ``engine`` is an ``Engine`` or an ``AsyncEngine``, which belongs to one loop.

    ``sessions`` makes the sessions of ``once_in_transaction``; default: plain ones of the engine. ``clock`` replaces
    the server's, for tests. The table must exist: see ``create``, ``once_table``.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        table: str = TABLE,
        sessions: Callable[[], Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"invalid engine {engine!r}: expected an Engine or AsyncEngine of SQLAlchemy")
        plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        dialect = plain.dialect.name
        if dialect not in _NOW_MS:
            raise ConfigError(f"keys cannot be kept in {dialect!r}; use PostgreSQL, MariaDB, MySQL or SQLite")
        is_in_memory = dialect == "sqlite" and plain.url.database in (None, "", ":memory:")
        if is_in_memory or isinstance(plain.pool, StaticPool):
            raise ConfigError("keys need several connections to one database; use a file instead of SQLite in memory")
        self.name = plain.url.render_as_string(hide_password=True)
        self.is_async = isinstance(engine, AsyncEngine)
        self._table = once_table(MetaData(), table)
        self._clock = clock
        self._server_now = literal_column(_NOW_MS[dialect], BigInteger)
        options: dict[str, Any] = {} if dialect == "sqlite" else {"isolation_level": "READ COMMITTED"}
        self._plain = plain.execution_options(**options)
        self._async = AsyncEngine(self._plain) if isinstance(engine, AsyncEngine) else None
        self._threads = SideThreads("ternmq-once", _THREADS_MAX)
        self._sessions = sessions or (
            (lambda: AsyncSession(engine)) if isinstance(engine, AsyncEngine) else (lambda: Session(engine))
        )

    # --- What a key store does -------------------------------------------------------------------------------

    async def change(self, key: str, decide: Decide[T]) -> T:
        for _ in range(_RACES_MAX):
            try:
                is_stored, result = await self._run(lambda connection: self._changed(connection, key, decide))
            except IntegrityError:
                continue  # another consumer inserted the key
            if is_stored:
                return result
        raise KeyStoreFailed(f"too many consumers change {key!r} in the key store {self.name}", store=self.name)

    async def purge(self, count_max: int) -> int:
        table = self._table

        def purged(connection: Connection) -> int:
            now_ms = int(connection.scalar(select(self._now())) or 0)
            # In this form for the index: else all keys are read, each time.
            is_over = and_(
                table.c.until_ms <= now_ms,
                or_(table.c.state != int(State.RUNNING), table.c.until_ms <= now_ms - ABANDONED_MS),
            )
            found = select(table.c.id).where(is_over).order_by(table.c.until_ms).limit(count_max)
            ids = list(connection.scalars(found))
            if not ids:
                return 0
            # The condition again: a key may have been claimed meanwhile.
            gone = delete(table).where(table.c.id.in_(ids), is_over)
            if connection.dialect.name in ("mysql", "mariadb"):
                # Else the whole table is read if it has few other keys, and the DELETE waits for the locks of their
                # work. Only a DELETE of several tables, here one, can name an index.
                named = connection.dialect.identifier_preparer.format_table(table)
                gone = gone.prefix_with(named).with_hint("FORCE INDEX (PRIMARY)")
            return connection.execute(gone).rowcount

        return await self._run(purged)

    async def create(self) -> None:
        """Create the table if it does not exist."""
        await self._run(lambda connection: self._table.create(connection, checkfirst=True))

    def _changed(self, connection: Connection, key: str, decide: Decide[T]) -> tuple[bool, T]:
        """One attempt; returns whether it succeeded, and the result."""
        table = self._table
        identity = _identity(key)
        one = select(literal(1).label("one")).subquery()
        columns = (table.c.state, table.c.token, table.c.until_ms, table.c.lease_ms, table.c.attempts, table.c.since_ms)
        row = connection.execute(
            select(self._now(), *columns).select_from(one.outerjoin(table, table.c.id == identity))
        ).one()
        now_ms = int(row[0])
        entry = None if row[1] is None else KeyEntry(State(row[1]), *row[2:])
        result, changed = decide(entry, now_ms)
        if changed is None or changed is entry:
            return True, result
        values = {
            "state": int(changed.state),
            "token": changed.token,
            "until_ms": changed.until_ms,
            "lease_ms": changed.lease_ms,
            "attempts": changed.attempts,
            "since_ms": changed.since_ms,
        }
        if entry is None:
            connection.execute(insert(table).values(id=identity, name=key, **values))
            return True, result
        as_read = (
            table.c.id == identity,
            table.c.state == int(entry.state),
            table.c.token == entry.token,
            table.c.until_ms == entry.until_ms,
        )
        return connection.execute(update(table).where(*as_read).values(**values)).rowcount == 1, result

    # --- The key in the transaction of the work --------------------------------------------------------------

    def open_session(self) -> Any:
        """A session for work, ``Session`` or ``AsyncSession`` as the engine is."""
        return self._sessions()

    def finish_in(self, session: Session, held: Held, keep_ms: int) -> None:
        """Mark a key as done in the transaction of ``session``. Raises ``LeaseLost`` if it is not ours any more."""
        table = self._table
        now = self._now()
        done = (
            update(table)
            .where(
                table.c.id == _identity(held.name),
                table.c.token == held.token,
                table.c.state == int(State.RUNNING),
            )
            .values(state=int(State.DONE), until_ms=now + keep_ms, since_ms=now)
        )
        result = session.connection().execute(done)
        assert isinstance(result, CursorResult)
        if result.rowcount != 1:
            raise held.lost()

    # --- Statements ------------------------------------------------------------------------------------------

    def _now(self) -> ColumnElement[int]:
        return self._server_now if self._clock is None else literal(self._clock.now_ms(), BigInteger)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        """Do ``work`` in one transaction. Raises ``IntegrityError``, ``InvalidKey`` and ``KeyStoreFailed``."""
        for left in reversed(range(_RACES_MAX)):
            try:
                if self._async is None:
                    return await self._threads.run(self._run_here, work)
                async with self._async.begin() as connection:
                    return await connection.run_sync(work)
            except IntegrityError:
                raise
            except (DataError, UnicodeError) as error:
                # Not an outage, which would stop all other messages, too.
                raise InvalidKey(f"the key store {self.name} cannot store the key: {_reason(error)}") from error
            except SQLAlchemyError as error:
                if not left or not (isinstance(error, DBAPIError) and is_conflict(error.orig)):
                    raise await self._failed(error) from error
            except OSError as error:  # drivers for asyncio
                raise KeyStoreFailed(f"cannot use the key store {self.name}: {error}", store=self.name) from error
        raise AssertionError("the last attempt returns or raises")

    def _run_here(self, work: Callable[[Connection], T]) -> T:
        with self._plain.begin() as connection:
            return work(connection)

    async def _failed(self, error: SQLAlchemyError) -> KeyStoreFailed:
        """A driver's error as a sentence; a table that is missing is found out afterwards."""
        missing: list[str] = []
        with contextlib.suppress(SQLAlchemyError, OSError):
            if self._async is None:
                missing = await self._threads.run(self._missing, self._plain)
            else:
                async with self._async.connect() as connection:
                    missing = await connection.run_sync(self._missing)
        if missing:
            return KeyTableMissing(
                f"the database {self.name} has no table {self._table.fullname!r} with the columns "
                f"{', '.join(missing)}, which `once` needs; create it with SqlAlchemyKeys.create() "
                "or a migration of once_table()",
                store=self.name,
            )
        return KeyStoreFailed(f"cannot use the key store {self.name}: {_reason(error)}", store=self.name)

    def _missing(self, bind: Engine | Connection) -> list[str]:
        found = inspect(bind)
        there: set[str] = set()
        if found.has_table(self._table.name, schema=self._table.schema):
            there = {column["name"] for column in found.get_columns(self._table.name, schema=self._table.schema)}
        return [column.name for column in self._table.columns if column.name not in there]


def once_in_transaction(
    store: SqlAlchemyKeys, key: KeyOf = keys_of, *, scope: str | None = None, **options: Any
) -> Decorator:
    """A decorator for a listener of a message and a session: what it does in the session happens exactly once.

    ::

        @once_in_transaction(SqlAlchemyKeys(engine))
        def on_payment(message, session):
            session.add(Payment(id=message.keys[0], cents=int(message.body)))

    The listener is plain for an ``Engine`` and gets a ``Session``, and ``async`` for an ``AsyncEngine`` with an
    ``AsyncSession``. It must not commit: that is done after it has returned, together with the key. For the other
    arguments see ``once``.
    """
    if not isinstance(store, SqlAlchemyKeys):
        raise ConfigError(f"invalid store {store!r}: work in a transaction needs SqlAlchemyKeys; use `once` for others")
    guards = Guards(store, key, scope, options)

    def decorate(listener: Callable[..., Any]) -> Callable[..., Any]:
        if is_async(listener) is not store.is_async:
            raise ConfigError(
                f"the listener {listener!r} does not fit the engine: an `async` one needs an AsyncEngine, a plain one "
                "an Engine"
            )
        if store.is_async:

            async def call_async(message: ReceivedMessage, context: ConsumeContext | None = None) -> object:
                with outcome(message) as told:
                    async with transaction(guards.of(context), message) as session:
                        if session is not None:
                            told.result = checked(await listener(message, session), context)
                return told.result

            return dressed(call_async, listener)

        def call(message: ReceivedMessage, context: ConsumeContext | None = None) -> object:
            guard = guards.of(context)
            with outcome(message) as told, held_here(guard, message) as held:
                if held is not None:
                    with store.open_session() as session, session.begin():
                        told.result = checked(listener(message, session), context)
                        session.flush()
                        held.check()
                        store.finish_in(session, held, guard.keep_ms)
                        held.is_finished = True
            return told.result

        return dressed(call, listener)

    return decorate


@contextlib.asynccontextmanager
async def transaction(guard: Guard, message: ReceivedMessage) -> AsyncIterator[AsyncSession | None]:
    """A block for work in a transaction, with a guard whose store has an ``AsyncEngine``.

    It gives the session, or None if the work was done before. Leaving the block commits the work and the key together;
    an error rolls both back. Raises what a ``Guard`` raises.
    """
    store = guard.store
    if not isinstance(store, SqlAlchemyKeys) or not store.is_async:
        raise ConfigError("work in a transaction of asyncio needs a guard with SqlAlchemyKeys of an AsyncEngine")
    async with guard.hold(message) as held:
        if held is None:
            yield None
            return
        async with store.open_session() as session, session.begin():
            yield session
            await session.flush()
            held.check()
            await session.run_sync(store.finish_in, held, guard.keep_ms)
            held.is_finished = True


def _identity(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _reason(error: Exception) -> str:
    reason: BaseException = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(reason).split())[:300]
