"""A safety net for producers without a database (J3): what cannot be sent goes to a local file, and is sent later.

::

    async with SpoolingProducer("shop", "/var/spool/shop.db", name_servers="127.0.0.1:9876") as producer:
        if not await producer.send(Message("orders", b"paid", sharding_key="order-1")):
            ...  # in the spool

The spool is a SQLite file with an outbox table, so the relay and ``tern outbox`` work on it as on any database. The
producer relays its own spool; after its end ``tern outbox relay --spool FILE`` does.

Order: while the spool has messages of a sharding key, further ones of that key go there, too, behind them. Within one
process that is exact, as sends of one key wait for each other. Two processes with one spool have no common order.

The file is synced when a message is spooled (``synchronous=FULL``): what ``send`` accepted survives a power cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from ternmq.client.blocking.loop_thread import LoopThread, loop_thread
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.env import Env
from ternmq.errors import NotRunning, OutboxFailed, OutboxMissing
from ternmq.message import Message
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.entry import NewRow, Row, to_entry
from ternmq.outbox.relay import Counters, Relay
from ternmq.outbox.rules import Failure, failure_of
from ternmq.outbox.schema import TABLE, Dialect, ddl
from ternmq.outbox.service import Service, unique_ids
from ternmq.outbox.table import Execute, OutboxTable, Result, Values
from ternmq.side_threads import SideThreads

T = TypeVar("T")

#: How long a statement waits for another process that writes.
_BUSY_S: Final = 10.0


class SpoolFile:
    """A SQLite file with an outbox table, without SQLAlchemy. It is made when it does not exist."""

    def __init__(self, path: Path | str, *, create: bool = True) -> None:
        self.name = str(path)
        self.table = OutboxTable(TABLE, Dialect.SQLITE)
        self._create = create
        # One thread: SQLite has one writer, and its connection belongs to a thread.
        self._thread = SideThreads("ternmq-spool")
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[Execute], T], *, is_single: bool = False) -> T:  # noqa: ARG002 - all alike
        """Do ``work`` in one transaction, and commit it, also if ``is_single``. Raises ``OutboxFailed``."""
        return await self._thread.run(self._run, work)

    def _run(self, work: Callable[[Execute], T]) -> T:
        try:
            connection = self._open()
            # From the start as a writer: a reader that becomes one may have to begin again.
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(executing(connection))
                connection.execute("COMMIT")
            except BaseException:
                # A full disk has ended it already, sometimes.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result
        except sqlite3.Error as error:
            raise OutboxFailed(f"cannot use the spool {self.name}: {error}", database=self.name) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self._create and not Path(self.name).exists():
                raise OutboxMissing(f"there is no spool {self.name}; check the path", database=self.name)
            connection = sqlite3.connect(self.name, timeout=_BUSY_S, isolation_level=None)
            # One text that is not UTF-8 must not keep all rows from being read.
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                if not self.table.exists(executing(connection)):
                    connection.execute("BEGIN IMMEDIATE")
                    if not self.table.exists(executing(connection)):
                        for statement in ddl(Dialect.SQLITE, self.table.name):
                            connection.execute(statement)
                    connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[Callable[[], Awaitable[None]] | None]:
        """SQLite has no notifications."""
        yield None

    async def close(self) -> None:
        """Close the file; afterwards it can be opened again."""

        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await self._thread.run(close)
        self._thread.end()


def executing(connection: sqlite3.Connection) -> Execute:
    """Statements in the current transaction of a connection."""

    def execute(statement: str, values: Values | Sequence[Values] = (), /) -> Result:
        if isinstance(values, Sequence) and values:
            cursor = connection.executemany(statement, values)
        else:
            cursor = connection.execute(statement, values)
        with contextlib.closing(cursor):
            rows = cursor.fetchall() if cursor.description is not None else []
            return Result(rows, cursor.rowcount)

    return execute


class SpoolingProducer:
    """A producer whose messages go to a local file when they cannot be sent, and are sent later.

    ::

        async with SpoolingProducer("shop", "/var/spool/shop.db", name_servers="127.0.0.1:9876") as producer:
            sent = await producer.send(Message("orders", b"one book"))

    Call its methods on the event loop's thread; programs without asyncio use ``SyncSpoolingProducer``.

    Args:
        group: Name of the producer group.
        spool: Path of the file. Each application has its own; several processes of one machine may share it.
        name_servers: Addresses of the name servers, as for ``Producer``.
        client: Settings of the connection. If given, ``name_servers`` is ignored.
        producer: Settings of the producer.
        config: Settings of the relay.
        env: Clock and random numbers, for tests.
    """

    def __init__(
        self,
        group: str,
        spool: Path | str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        producer: ProducerConfig | None = None,
        config: OutboxConfig | None = None,
        env: Env | None = None,
    ) -> None:
        self.group = group
        self._path = spool
        self._client = client or ClientConfig(name_servers)
        self._producer = producer or ProducerConfig()
        self._config = config or OutboxConfig()
        self._env = env or Env()
        self._ids = unique_ids(self._env)
        self._file: SpoolFile | None = None
        self._service: Service | None = None
        #: One lock for each key that is being sent; those without a holder are removed.
        self._keys: dict[str, tuple[asyncio.Lock, int]] = {}
        #: Whether the spool may have messages with a key, and how many of them this process has put there.
        self._may_have_keys = True
        self._spooled = 0

    def __repr__(self) -> str:
        return f"<SpoolingProducer {self.group} {self._path}>"

    async def __aenter__(self) -> Self:
        file = SpoolFile(self._path)
        try:
            # A spool that cannot be used is an error now, not in an outage.
            self._may_have_keys = await file.run(file.table.has_key)
            service = Service(
                [file],
                group=self.group,
                client=self._client,
                producer=self._producer,
                config=self._config,
                env=self._env,
            )
            await service.__aenter__()
        except BaseException:
            await file.close()
            raise
        self._file, self._service = file, service
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, service = self._file, self._service
        self._file = self._service = None
        if service is not None and file is not None:
            await service.__aexit__(None, None, None)
            await file.close()

    @property
    def counters(self) -> Counters:
        """What the relay of the spool has done."""
        return self._open()[0].counters

    async def send(self, message: Message) -> bool:
        """Send a ``message``. True: the broker has it. False: it is in the spool, and will be sent later.

        Raises ``InvalidMessage`` and ``InvalidName``, what a broker answers that refuses it, and ``OutboxFailed`` if it
        can be neither sent nor spooled.

        ::

            if not await producer.send(Message("orders", b"one book")):
                print("it will be sent when a broker can be reached")
        """
        relay, service = self._open()
        entry = to_entry(message, message_id=self._ids.next(), body_bytes_max=self._producer.body_bytes_max)
        if entry.order_key is None:
            return await self._send_or_spool(relay, service, entry)
        async with self._turn(entry.order_key):
            if await self._must_follow(relay, entry.order_key):
                await self._spool(relay, entry)
                return False
            return await self._send_or_spool(relay, service, entry)

    async def _send_or_spool(self, relay: Relay, service: Service, entry: NewRow) -> bool:
        assert service.sending is not None
        until = self._env.clock.monotonic() + self._config.lease_ms / 1000
        results = await service.sending.send([Row.of(0, entry)], until=until)
        if results.sent:
            return True
        # None: the time was over before the first attempt.
        error = results.failed[0][1] if results.failed else None
        if error is not None and failure_of(error) is not Failure.OUTAGE:
            # Brokers will say the same later: the application should hear it.
            raise error
        await self._spool(relay, entry)
        return False

    async def _spool(self, relay: Relay, entry: NewRow) -> None:
        table, now_ms = relay.database.table, self._env.clock.now_ms()
        await relay.database.run(lambda execute: table.insert(execute, [entry], now_ms=now_ms))
        if entry.order_key is not None:
            self._may_have_keys = True
            self._spooled += 1

    async def _must_follow(self, relay: Relay, key: str) -> bool:
        """Whether messages of the key are in the spool. The file is asked only while it may have any with a key."""
        if not self._may_have_keys:
            return False
        table, spooled = relay.database.table, self._spooled
        if await relay.database.run(lambda execute: table.has_key(execute, key)):
            return True
        if not await relay.database.run(table.has_key) and self._spooled == spooled:
            self._may_have_keys = False
        return False

    @contextlib.asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """One send at a time for each key."""
        lock, users = self._keys.get(key, (asyncio.Lock(), 0))
        self._keys[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._keys.pop(key)
            if users > 1:
                self._keys[key] = lock, users - 1

    def _open(self) -> tuple[Relay, Service]:
        if self._service is None:
            raise NotRunning(f"the producer {self.group!r} is not running; send inside its `with` block")
        return self._service.relays[0], self._service


class SyncSpoolingProducer:
    """``SpoolingProducer`` for programs without asyncio; its methods may be called in any thread.

    ::

        with SyncSpoolingProducer("shop", "/var/spool/shop.db", name_servers="127.0.0.1:9876") as producer:
            sent = producer.send(Message("orders", b"one book"))

    Args:
        group: Name of the producer group.
        spool: Path of the file.
        name_servers: Addresses of the name servers, as for ``SyncProducer``.
        client: Settings of the connection. If given, ``name_servers`` is ignored.
        producer: Settings of the producer.
        config: Settings of the relay.
    """

    def __init__(
        self,
        group: str,
        spool: Path | str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        producer: ProducerConfig | None = None,
        config: OutboxConfig | None = None,
    ) -> None:
        self._async = SpoolingProducer(
            group, spool, name_servers=name_servers, client=client, producer=producer, config=config
        )
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        thread = loop_thread()
        thread.run(self._async.__aenter__())
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._async.__aexit__(kind, error, trace))

    def send(self, message: Message) -> bool:
        """Send a ``message``. True: the broker has it. False: it is in the spool, and will be sent later.

        Raises what ``SpoolingProducer.send`` raises.
        """
        if self._thread is None:
            raise NotRunning(f"the producer {self._async.group!r} is not running; send inside its `with` block")
        return self._thread.run(self._async.send(message))
