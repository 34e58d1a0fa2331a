"""The outbox for SQLAlchemy 2: messages in an application's own transactions (J3).

::

    outbox = Outbox(engine, name_servers="127.0.0.1:9876")
    outbox.create()

    with outbox, Session(engine) as session, session.begin():
        session.add(order)
        outbox.send(session, Message("orders", b"paid", sharding_key=order.id))

How it works. ``send`` inserts a row, on the session's own connection: commit and rollback, also of savepoints, decide
about the message as they do about the work. Nothing else happens inside the transaction. After the commit, the relay of
this process sends what the transaction inserted. For that, rows are inserted as leased to it. The event of the session
is only a hint, and the relay asks the table before it sends (``relay``); if the hint never comes, because the process
died or the transaction was ended past the session, a relay finds the row when its lease ends.

Messages with a sharding key are not leased: a message of the same key may be in the table already, and only a take
keeps their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from ternmq.client.blocking.loop_thread import loop_thread
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.env import Env
from ternmq.errors import ConfigError, NotRunning
from ternmq.message import Message
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.engines import EngineDatabase, executing
from ternmq.outbox.entry import NewRow, fitting, to_entry
from ternmq.outbox.relay import Counters, Relay
from ternmq.outbox.schema import TABLE, Dialect
from ternmq.outbox.service import GROUP, Service, publish, unique_ids

try:
    from sqlalchemy import event
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.exc import SQLAlchemyError, UnboundExecutionError
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, SessionTransaction, scoped_session
except ImportError as error:
    raise ImportError("the outbox needs SQLAlchemy 2; install it with `pip install ternmq[outbox]`") from error

T = TypeVar("T")

#: Under this name ``session.info`` has what the current transaction has saved.
_SAVED: Final = "ternmq.outbox"


class Outbox:
    """Saves messages in the transactions of an application, and sends them after the commit.

    ``with outbox:`` or ``async with outbox:`` sends from this process; engines with asyncio need ``async with``.
    Without a block, messages are only saved, and ``tern outbox relay`` sends them. ``send`` may be called in any
    thread.

    Args:
        engines: The engines of the application's databases, also ``AsyncEngine``.
        name_servers: Addresses of the name servers, as for ``Producer``.
        client: Settings of the connection. If given, ``name_servers`` is ignored.
        group: Name of the producer group.
        producer: Settings of the producer: time-outs, compression, size of messages.
        config: Settings of the outbox.
        table: Name of the table.
        env: Clock and random numbers, for tests.
    """

    def __init__(
        self,
        *engines: Engine | AsyncEngine,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        group: str = GROUP,
        producer: ProducerConfig | None = None,
        config: OutboxConfig | None = None,
        table: str = TABLE,
        env: Env | None = None,
    ) -> None:
        if not engines:
            raise ConfigError("an outbox needs at least one engine: Outbox(engine)")
        databases = [EngineDatabase(engine, table) for engine in engines]
        self._databases = {database.engine: database for database in databases}
        self._client = client
        self._name_servers = name_servers
        self._group = group
        self._producer = producer or ProducerConfig()
        self._config = config or OutboxConfig()
        self._env = env or Env()
        self._ids = unique_ids(self._env)
        self._ids_pid = os.getpid()
        self._ids_lock = threading.Lock()
        self._running: _RunningOutbox | None = None
        self._relays: list[Relay] = []
        #: Databases whose table was used once.
        self._proven: set[EngineDatabase] = set()
        _listen_once()

    def __repr__(self) -> str:
        return f"<Outbox of {', '.join(database.name for database in self._databases.values())}>"

    # --- Life ------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the table in all databases that have none. With an ``AsyncEngine`` use ``await create_async()``."""
        self._check_plain("create_async")
        loop_thread().run(self.create_async())

    async def create_async(self) -> None:
        """Create the table in all databases that have none."""
        for database in self._databases.values():
            await database.create()

    def __enter__(self) -> Self:
        self._check_plain("async with")
        thread = loop_thread()
        thread.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop_thread().run(self._stop())

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        if self._running is not None and self._running.is_here:
            raise ConfigError("this outbox is running already; use one block around all of its use")
        databases = list(self._databases.values())
        service = Service(
            databases,
            group=self._group,
            client=self._client or ClientConfig(self._name_servers),
            producer=self._producer,
            config=self._config,
            env=self._env,
        )
        await service.__aenter__()
        self._relays = service.relays
        self._running = _RunningOutbox(service, asyncio.get_running_loop())

    async def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.service.__aexit__(None, None, None)
            for database in self._databases.values():
                await database.close()

    @property
    def counters(self) -> Counters:
        """What this process has done since the last block began: the sum over all engines."""
        return Counters.sum([relay.counters for relay in self._relays])

    # --- In a transaction ------------------------------------------------------------------------------------

    @overload
    def send(
        self, session: Session | scoped_session[Any], *messages: Message, engine: Engine | None = None
    ) -> list[str]: ...

    @overload
    def send(
        self,
        session: AsyncSession | async_scoped_session[Any],
        *messages: Message,
        engine: AsyncEngine | Engine | None = None,
    ) -> Awaitable[list[str]]: ...

    def send(
        self,
        session: Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any],
        *messages: Message,
        engine: Engine | AsyncEngine | None = None,
    ) -> list[str] | Awaitable[list[str]]:
        """Save ``messages`` in the transaction of ``session``; they are sent after its commit, and never after a
        rollback. Returns their ids. With an ``AsyncSession``, await it.

        The transaction begins if there is none, as with ``session.execute``, and changes are flushed first. Messages
        with a ``sharding_key`` are sent in the order in which they were saved. ``engine`` says which database to use if
        the session has several.

        Raises ``InvalidMessage``, ``InvalidName``, ``TypeError``, ``ConfigError`` for an engine that the outbox does
        not have, ``OutboxMissing`` without a table, and ``OutboxFailed``. The transaction is as it was then, unless the
        database itself has ended it.

        ::

            with Session(engine) as session, session.begin():
                session.add(order)
                outbox.send(session, Message("orders", b"paid"))

            async with AsyncSession(engine) as session, session.begin():
                session.add(order)
                await outbox.send(session, Message("orders", b"paid"))
        """
        entries = [self._entry(message) for message in messages]
        plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        if isinstance(session, async_scoped_session | scoped_session):
            session = session()
        if isinstance(session, AsyncSession):
            return _ids_after(session.run_sync(lambda inner: self._save(inner, entries, plain)))
        if not isinstance(session, Session):
            raise TypeError(
                f"invalid session of type {type(session).__name__}: expected a Session or AsyncSession of SQLAlchemy"
            )
        return self._save(session, entries, plain)

    def _save(self, session: Session, entries: Sequence[NewRow], engine: Engine | None) -> list[str]:
        if not entries:
            return []
        database = self._database_of(session, engine)
        # Changes first: they lock what orders this transaction and others, and rows are numbered when inserted.
        # In an event of a flush they have them already.
        if session.autoflush and not getattr(session, "_flushing", False):
            session.flush()
        connection = session.connection(bind_arguments={"bind": engine or session.get_bind()})
        saved: _Saved = session.info.setdefault(_SAVED, _Saved())
        relay = self._relay_of(database)
        try:
            if database in self._proven:
                self._insert(connection, database, entries, relay, saved)
            else:
                # The first time anything may be wrong with the table. A failed statement must not end the transaction.
                database.check_exists(connection)
                with _savepoint(connection, database):
                    self._insert(connection, database, entries, relay, saved)
                self._proven.add(database)
        except SQLAlchemyError as error:
            self._proven.discard(database)
            raise database.failed(error) from error
        return [entry.message_id for entry in entries]

    def _insert(
        self,
        connection: Connection,
        database: EngineDatabase,
        entries: Sequence[NewRow],
        relay: Relay | None,
        saved: _Saved,
    ) -> None:
        now_ms, table, execute = self._env.clock.now_ms(), database.table, executing(connection)
        leased: list[NewRow] = []
        if relay is not None and relay.has_room:
            leased = fitting(entries, used_bytes=saved.leased_bytes, bytes_max=self._config.direct_bytes_max)
        if relay is not None and leased:
            due_ms = now_ms + self._config.lease_ms
            table.insert(execute, leased, now_ms=now_ms, owner=relay.owner, due_ms=due_ms)
            saved.add(self._running, relay, leased)
        if len(leased) < len(entries):
            known = {entry.message_id for entry in leased}
            others = [entry for entry in entries if entry.message_id not in known]
            table.insert(execute, others, now_ms=now_ms)
            if relay is not None:
                saved.add(self._running, relay, (), wakes=True)
            elif database not in saved.notified:
                table.notify(execute)
                saved.notified.add(database)

    def _database_of(self, session: Session, engine: Engine | None) -> EngineDatabase:
        try:
            bind = engine or session.get_bind()
        except UnboundExecutionError:
            raise ConfigError(
                "the session has no single engine, so the outbox cannot choose one; name it: "
                "outbox.send(session, message, engine=engine)"
            ) from None
        # Engines with other options, and connections, are of the same pool.
        wanted = bind.engine
        for known, database in self._databases.items():
            if known is wanted or known.pool is wanted.pool:
                return database
        raise ConfigError(
            f"the engine of {wanted.url.render_as_string()} is not one of this outbox; give it to Outbox(…) as well"
        )

    # --- Outside a transaction -------------------------------------------------------------------------------

    def publish(
        self, message: Message, *, engine: Engine | AsyncEngine | None = None, even_unsaved: bool = False
    ) -> bool:
        """Save a ``message`` in a transaction of its own, send it, and wait for that. True: the broker has it. False:
        it is saved, and will be sent later.

        ``even_unsaved``: send it also if it cannot be saved. ``engine`` says which database to use if the outbox has
        several. Raises ``InvalidMessage`` and ``InvalidName``; ``OutboxFailed`` if it cannot be saved; with
        ``even_unsaved`` what ``Producer.send`` raises, if it can be neither saved nor sent.

        ::

            outbox.publish(Message("orders", b"paid"))
        """
        self._check_plain("publish_async")
        call = self.publish_async(message, engine=engine, even_unsaved=even_unsaved)
        return self._on_loop(call)

    async def publish_async(
        self, message: Message, *, engine: Engine | AsyncEngine | None = None, even_unsaved: bool = False
    ) -> bool:
        """``publish`` for programs with asyncio."""
        running = self._open()
        entry = self._entry(message)
        relay = running.service.relay_of(self._chosen(engine))
        return await publish(
            relay, running.service, entry, even_unsaved=even_unsaved, config=self._config, env=self._env
        )

    def _chosen(self, engine: Engine | AsyncEngine | None) -> EngineDatabase:
        plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        if plain is None:
            if len(self._databases) > 1:
                raise ConfigError("this outbox has several engines; name one of them: engine=…")
            return next(iter(self._databases.values()))
        if plain not in self._databases:
            raise ConfigError(f"the engine of {plain.url.render_as_string()} is not one of this outbox")
        return self._databases[plain]

    # --- Parts -----------------------------------------------------------------------------------------------

    def _entry(self, message: Message) -> NewRow:
        with self._ids_lock:
            if self._ids_pid != os.getpid():
                self._ids, self._ids_pid = unique_ids(Env()), os.getpid()
            message_id = self._ids.next()
        return to_entry(message, message_id=message_id, body_bytes_max=self._producer.body_bytes_max)

    def _relay_of(self, database: EngineDatabase) -> Relay | None:
        running = self._running
        return running.service.relay_of(database) if running is not None and running.is_here else None

    def _open(self) -> _RunningOutbox:
        if self._running is None or not self._running.is_here:
            raise NotRunning("this outbox sends nothing yet in this process; use it inside `with outbox:`")
        return self._running

    def _on_loop(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            self._open()
        except NotRunning:
            call.close()
            raise
        return loop_thread().run(call)

    def _check_plain(self, instead: str) -> None:
        if any(database.is_async for database in self._databases.values()):
            raise ConfigError(f"this outbox has an AsyncEngine; use `{instead}`")


class _RunningOutbox:
    """What an outbox has inside its block."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self._loop = loop
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process: after a fork it does not."""
        return self._pid == os.getpid() and not self._loop.is_closed()

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Call on the loop's thread, from any thread. At the end of the program nothing may be left to call."""
        if self.is_here:
            try:
                self._loop.call_soon_threadsafe(function, *args)
            except RuntimeError:
                return


class _Saved:
    """What the current transaction of a session has saved, for the relays of this process."""

    def __init__(self) -> None:
        self._leased: dict[Relay, tuple[_RunningOutbox, list[NewRow]]] = {}
        self._woken: set[Relay] = set()
        self.leased_bytes = 0
        #: Databases that wake other relays at the commit.
        self.notified: set[EngineDatabase] = set()

    def add(
        self, running: _RunningOutbox | None, relay: Relay, leased: Sequence[NewRow], *, wakes: bool = False
    ) -> None:
        """Tell ``relay`` of entries that are ``leased`` to it; or that others wait in the table."""
        if running is not None:
            self._leased.setdefault(relay, (running, []))[1].extend(leased)
            self.leased_bytes += sum(entry.size_bytes for entry in leased)
            if wakes:
                self._woken.add(relay)

    def committed(self) -> None:
        for relay, (running, entries) in self._leased.items():
            if entries and running.is_here:
                relay.committed(entries)
            if relay in self._woken:
                running.call(relay.wake)


def _savepoint(connection: Connection, database: EngineDatabase) -> contextlib.AbstractContextManager[object]:
    # SQLite needs none: a failed statement ends no transaction there. And Python's sqlite3 begins no transaction before
    # a savepoint, so that the end of the savepoint would be a commit.
    return contextlib.nullcontext() if database.table.dialect is Dialect.SQLITE else connection.begin_nested()


async def _ids_after(saved: Awaitable[list[str]]) -> list[str]:
    return await saved


def _after_commit(session: Session) -> None:
    # A savepoint that was released is part of a transaction that may still be rolled back.
    if _SAVED in session.info and session.get_nested_transaction() is None:
        session.info.pop(_SAVED).committed()


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_SAVED, None)


def _listen_once() -> None:
    """Hear of all commits of sessions; for sessions without messages that is a look into a dictionary."""
    if not event.contains(Session, "after_commit", _after_commit):
        event.listen(Session, "after_commit", _after_commit)
        event.listen(Session, "after_transaction_end", _after_end)
