"""A producer and a relay for each database: what an application's outbox and ``tern outbox relay`` run (J3)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.send.producer import Producer
from ternmq.env import Env
from ternmq.errors import OutboxFailed
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.entry import NewRow, Row
from ternmq.outbox.relay import Database, Relay
from ternmq.outbox.sending import RowSending
from ternmq.wire.ids import UniqueIds

#: Brokers list the producer under this name, unless it is given another one.
GROUP = "ternmq_outbox"


def unique_ids(env: Env) -> UniqueIds:
    """Ids for messages that are saved before a producer has seen them. The address in an id is only informative."""
    return UniqueIds("127.0.0.1", os.getpid(), salt=env.random.getrandbits(32), clock=env.clock)


class Service:
    """Relays messages of ``databases`` inside its ``async with`` block.

    Args:
        databases: The databases.
        group: Name of the producer group.
        client: Settings of the connection.
        producer: Settings of the producer.
        config: Settings of the relays.
        sweeps: Whether the tables are searched; if not, only commits of this process are sent.
        env: Clock and random numbers.
    """

    def __init__(
        self,
        databases: Sequence[Database],
        *,
        group: str,
        client: ClientConfig,
        producer: ProducerConfig | None = None,
        config: OutboxConfig,
        sweeps: bool = True,
        env: Env | None = None,
    ) -> None:
        self._databases = list(databases)
        self.relays: list[Relay] = []
        self._client = client
        self._producer = Producer(group, client=client, config=producer, env=env)
        self._config = config
        self._sweeps = sweeps
        self._env = env or Env()
        self._ids = unique_ids(self._env)
        self._stack = AsyncExitStack()
        self.sending: RowSending | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(self._producer)
            self.sending = RowSending(
                producer,
                namespace=self._client.namespace,
                new_id=self._ids.next,
                batch_bytes=self._config.batch_bytes,
                clock=self._env.clock,
            )
            self._stack = stack.pop_all()
        try:
            for database in self._databases:
                await self.add(database)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def add(self, database: Database) -> None:
        """Relay from one more database."""
        assert self.sending is not None
        relay = Relay(database, self.sending, config=self._config, env=self._env)
        await self._stack.enter_async_context(relay.running(sweeps=self._sweeps))
        self.relays.append(relay)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def relay_of(self, database: Database) -> Relay:
        """The relay of one of the databases."""
        return next(relay for relay in self.relays if relay.database is database)


async def publish(
    relay: Relay, service: Service, entry: NewRow, *, even_unsaved: bool, config: OutboxConfig, env: Env
) -> bool:
    """Save one entry, send it, and delete it."""
    database, now_ms = relay.database, env.clock.now_ms()
    is_ordered = entry.order_key is not None
    owner, due_ms = (None, 0) if is_ordered else (relay.owner, now_ms + config.lease_ms)
    try:
        await database.run(
            lambda execute: database.table.insert(execute, [entry], now_ms=now_ms, owner=owner, due_ms=due_ms)
        )
    except OutboxFailed:
        if not even_unsaved or service.sending is None:
            raise
        results = await service.sending.send([Row.of(0, entry)], until=env.clock.monotonic() + config.lease_ms / 1000)
        if results.failed:
            raise results.failed[0][1] from None
        if not results.sent:
            raise  # the time was over before the first attempt
        return True
    if is_ordered:
        # Messages of its key may be in the table already.
        relay.wake()
        return False
    try:
        return await relay.deliver(entry)
    except OutboxFailed:
        # It is saved, and perhaps sent.
        return False
