"""One seed, one life of an application with an outbox and of two relays, on a database and a broker that break (J3).

The database is a real one of SQLite, in memory: a transaction happens at one moment, but the call to it takes a while,
and may fail before that moment or after it. A storm (``testing.swarm``) kills and stops applications, relays and the
broker, breaks connections and moves clocks, so that leases end early, or late.

The application saves messages with and without a key, and rolls some transactions back. It tells its relay of both:
a hint may be wrong, and only the table knows.

In the end table and topic are compared as after real kills (``kills.compare``).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from ternmq import Admin, Message, PullConsumer
from ternmq.errors import OutboxFailed, TernError
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.entry import to_entry
from ternmq.outbox.schema import TABLE, Dialect, ddl
from ternmq.outbox.service import Service, unique_ids
from ternmq.outbox.spool import executing
from ternmq.outbox.table import Execute, OutboxTable
from ternmq.testing.checkers import Broken
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.swarm import Storm, Swarm
from tests.outbox.application import KEYS
from tests.outbox.kills import compare

T = TypeVar("T")

TOPIC: Final = "work"
CONFIG: Final = OutboxConfig(lease_ms=10_000, rows_max=20, backoff_max_ms=8_000, batch_bytes=2_000)
#: After the storm: clocks are right again, leases and back-offs end.
SETTLED_S: Final = 600.0
#: How often the observer reads the topic, every five seconds.
LOOKS: Final = 60


class RolledBack(Exception):
    pass


class Truth:
    """The database with the outbox, and what was committed in it."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in ddl(Dialect.SQLITE, TABLE):
            self.connection.execute(statement)
        self.committed: set[str] = set()
        self.counters = dict.fromkeys(range(KEYS), 0)
        #: How often a call fails.
        self.failing = 0.0

    def rows(self) -> int:
        return int(self.connection.execute(f"SELECT COUNT(*) FROM {TABLE}").fetchone()[0])


class Access:
    """The database as one process sees it."""

    def __init__(self, truth: Truth, random: Random) -> None:
        self.name = "memory"
        self.table = OutboxTable(TABLE, Dialect.SQLITE)
        self._truth = truth
        self._random = random

    async def run(self, work: Callable[[Execute], T], *, is_single: bool = False) -> T:
        await self._trouble()
        connection = self._truth.connection
        connection.execute("BEGIN")
        try:
            result = work(executing(connection))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        await self._trouble()
        return result

    async def _trouble(self) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.001, 0.05)))
        if self._random.random() < self._truth.failing:
            await asyncio.sleep(self._random.choice((0.0, 1.0, 15.0)))
            raise OutboxFailed("the database is gone", database=self.name)

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[Callable[[], Awaitable[None]] | None]:
        yield None


class OutboxSimulation:
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[tuple[object, ...]] = []
        self.found: list[str] = []
        self._numbers = 0
        self._is_over = False

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            self.truth = Truth()
            try:
                loop.run_until_complete(self._live())
            finally:
                self.truth.connection.close()
            loop.check()
        try:
            compare(self.truth.committed, self.found)
        except AssertionError as error:
            raise Broken(str(error)) from None

    async def _live(self) -> None:
        cluster, random = self.cluster, self.cluster.random
        self._read, self._known = asyncio.Event(), asyncio.Event()
        swarm = Swarm.choose(random)
        self.truth.failing = random.choice((0.0, 0.02, 0.2))
        broker = cluster.broker("broker-a", flushDiskType="SYNC_FLUSH")
        await cluster.start(cluster.name_server())
        await cluster.start(broker)
        observer = cluster.node("observer", self._observe)
        await cluster.start(observer)
        programs = [
            *(cluster.node(f"shop-{number}", self._sell) for number in range(2)),
            *(cluster.node(f"relay-{number}", self._relay) for number in range(random.choice((1, 2)))),
        ]
        await cluster.start(*programs)
        await Storm(cluster, swarm, servers=[broker], clients=lambda: programs).rage()
        self.truth.failing = 0.0
        self._is_over = True
        async with asyncio.timeout(SETTLED_S):
            while self.truth.rows():
                await asyncio.sleep(1.0)
        self._read.set()
        async with asyncio.timeout(SETTLED_S):
            await self._known.wait()
        for node in (*programs, observer):
            await node.stop()

    def _service(self, node: Node) -> Service:
        access = Access(self.truth, node.random)
        return Service([access], group="outbox", client=node.client_config(), config=CONFIG, env=node.env)

    async def _relay(self, node: Node) -> None:
        async with self._service(node):
            node.is_ready()
            await node.stopping.wait()

    async def _sell(self, node: Node) -> None:
        ids = unique_ids(node.env)
        async with self._service(node) as service:
            node.is_ready()
            relay, access = service.relays[0], Access(self.truth, node.random)
            while not node.stopping.is_set():
                if not self._is_over:
                    await self._transact(node, ids.next, access, relay.owner, relay.committed)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(node.random.choice((0.01, 0.1, 1.0))):
                        await node.stopping.wait()

    async def _transact(
        self,
        node: Node,
        new_id: Callable[[], str],
        access: Access,
        owner: str,
        hint: Callable[..., None],
    ) -> None:
        """One transaction, committed or rolled back; the relay hears of it in any case."""
        random = node.random
        keys = random.sample(range(KEYS), random.randrange(4))
        self._numbers += 1
        free = [f"free:{self._numbers}-{number}" for number in range(random.randrange(3))]
        commits = random.random() < 0.7
        leased = [to_entry(Message(TOPIC, one.encode()), message_id=new_id(), body_bytes_max=9_999) for one in free]
        size = random.choice((1, 1, 1_500))

        def work(execute: Execute) -> None:
            values = {key: self.truth.counters[key] + 1 for key in keys}
            ordered = [
                to_entry(
                    Message(TOPIC, f"{key}:{value}".encode(), sharding_key=str(key), properties={"size": "x" * size}),
                    message_id=new_id(),
                    body_bytes_max=9_999,
                )
                for key, value in values.items()
            ]
            now_ms = node.clock.now_ms()
            if leased:
                access.table.insert(execute, leased, now_ms=now_ms, owner=owner, due_ms=now_ms + CONFIG.lease_ms)
            if ordered:
                access.table.insert(execute, ordered, now_ms=now_ms)
            if not commits:
                raise RolledBack
            self.truth.counters.update(values)
            self.truth.committed.update(free, (f"{key}:{value}" for key, value in values.items()))

        with contextlib.suppress(RolledBack, OutboxFailed):
            await access.run(work)
        if leased:
            hint(leased)

    async def _observe(self, node: Node) -> None:
        """Makes the topic, and reads it in the end."""
        async with Admin(config=node.client_config(), env=node.env) as admin:
            await admin.topics.create(TOPIC, queues=3)
        node.is_ready()
        await self._read.wait()
        async with PullConsumer("readers", client=node.client_config(), env=node.env) as consumer:
            # A broker answers a send before readers see the message: what is missing is looked for again.
            for _ in range(LOOKS):
                with contextlib.suppress(TernError):
                    self.found = await self._all(consumer)
                if self.truth.committed <= set(self.found):
                    break
                await asyncio.sleep(5.0)
        self._known.set()
        await node.stopping.wait()

    async def _all(self, consumer: PullConsumer) -> list[str]:
        found: list[str] = []
        for queue in await consumer.queues(TOPIC):
            offset = 0
            while pulled := (await consumer.pull(queue, offset, wait=False)).messages:
                found += [message.body.decode() for message in pulled]
                offset = pulled[-1].queue_offset + 1
        return found
