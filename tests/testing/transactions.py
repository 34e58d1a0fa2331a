"""One seed, one life of a producer group whose messages are part of transactions (J1, J2).

Two or three producers work on one database. Each transaction begins, does its local work for a while, commits it or
fails, and ends. A storm (``testing.swarm``) kills producers and brokers at every step, breaks connections and stops
clocks; members that are left answer for those that died. Their checkers are slow, raise, hang, return nonsense, and in
some seeds they lie.

The database is honest: a row says that the local work was committed. A checker that rolls a transaction back leaves a
row, too, against which a late commit of the local work fails, as a unique key does it in a real one.

Always, whatever breaks:

- no consumer ever sees a message whose local work is not committed, unless a checker lied;
- in the end there is *one* record for each transaction whose local work was committed, and none for the others;
- a transaction that was committed by the API is there, one that was rolled back is not;
- none stays open, and none is discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from enum import Enum
from functools import partial
from typing import Final

from ternmq import (
    Admin,
    Message,
    Outcome,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
    names,
)
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import TernError, TransactionUncertain
from ternmq.testing.checkers import Broken
from ternmq.testing.cluster import BROKER_PORT, Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.swarm import Storm, Swarm
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.transactions import OpenTransactions
from ternmq.wire.codes import RequestCode
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import PullMessage, PullSysflag
from ternmq.wire.requests_admin import ListTransactions

TOPIC: Final = "orders"
GROUP: Final = "shop"
QUEUES: Final = 2
#: A transaction without a row that is older than this is rolled back by a checker.
PATIENCE_MS: Final = 40_000
#: After the storm: brokers and clients find each other again, then at most two checks for each transaction.
CALM_S: Final = 70.0
SETTLED_S: Final = 400.0
CHECK_TIMEOUT_MS: Final = 4_000


class Row(Enum):
    """What the database knows of a transaction."""

    COMMITTED = "committed"
    #: By a checker: the local work can no longer be committed.
    REFUSED = "refused"


class LocalFailure(Exception):
    """The local work failed."""


class TransactionSimulation:
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[tuple[object, ...]] = []
        self.rows: dict[str, Row] = {}
        #: What the API said of transactions: True committed, False rolled back.
        self.told: dict[str, bool] = {}
        #: Transactions of which a checker said what is not so.
        self.lied: set[str] = set()
        self.seen: Counter[str] = Counter()
        #: How many records of each message there are in the end, under its topic and among the discarded.
        self.stored: Counter[str] = Counter()
        self.discarded: Counter[str] = Counter()
        self._begun = 0
        self._is_over = False
        self._early = ""

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            loop.run_until_complete(self._live())
            loop.check()

    async def _live(self) -> None:
        cluster, random = self.cluster, self.cluster.random
        self._wanted, self._known = asyncio.Event(), asyncio.Event()
        swarm = Swarm.choose(random)
        self._lies = random.choice((0.0, 0.0, 0.0, 0.1))
        self._bad = random.choice((0.0, 0.2, 0.5))
        name_server = cluster.name_server()
        flush = "SYNC_FLUSH" if swarm.sync_flush else "ASYNC_FLUSH"
        self._brokers = [
            cluster.broker(f"broker-{'ab'[number]}", flushDiskType=flush, messageIndexEnable=random.random() < 0.8)
            for number in range(random.choice((1, 1, 2)))
        ]
        await cluster.start(name_server)
        await cluster.start(*self._brokers)
        observer = cluster.node("observer", self._observe)
        await cluster.start(observer)
        producers = [cluster.node(f"shop-{number}", self._sell) for number in range(random.choice((2, 3)))]
        reader = cluster.node("reader", self._read)
        await cluster.start(reader, *producers)
        storm = Storm(cluster, swarm, servers=self._brokers, clients=lambda: producers)
        await storm.rage()
        # The last ones begin when all is well; then one member alone answers for all others.
        await asyncio.sleep(CALM_S)
        self._lies = self._bad = 0.0
        for node in producers[1:]:
            if random.random() < 0.5:
                node.kill()
            else:
                await node.stop()
        self._is_over = True
        self._wanted.set()
        async with asyncio.timeout(SETTLED_S):
            await self._known.wait()
        self._check_all()
        for node in (reader, producers[0], observer):
            await node.stop()

    # --- Producers --------------------------------------------------------------------------------------------------

    async def _sell(self, node: Node) -> None:
        async with Producer(
            GROUP,
            client=node.client_config(),
            config=ProducerConfig(check_timeout_ms=CHECK_TIMEOUT_MS),
            checker=partial(self._check, node),
            topics=[TOPIC],
            env=node.env,
        ) as producer:
            node.is_ready()
            while not node.stopping.is_set():
                if not self._is_over:
                    with contextlib.suppress(TernError, LocalFailure):
                        await self._one(node, producer)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(node.random.choice((0.05, 0.5, 2.0))):
                        await node.stopping.wait()

    async def _one(self, node: Node, producer: Producer) -> None:
        self._begun += 1
        transaction = producer.transaction(Message(TOPIC, b"%d" % self._begun))
        is_explicit = node.random.random() < 0.3
        begun = ""
        try:
            async with transaction as tx:
                begun = tx.id
                await asyncio.sleep(node.random.choice((0.0, 0.01, 1.0, 8.0)))
                if node.random.random() < 0.3:
                    if is_explicit:
                        await tx.rollback()
                        self.told[begun] = False
                        return
                    raise LocalFailure
                self._commit_row(begun)
                await asyncio.sleep(node.random.choice((0.0, 0.0, 0.01, 3.0)))
                if is_explicit:
                    await tx.commit()
        except TransactionUncertain:
            raise
        except (LocalFailure, TernError):
            if begun and begun not in self.rows:
                # Its end may not have been delivered, but the row says what is right.
                self.rows.setdefault(begun, Row.REFUSED)
            raise
        self.told[begun] = True

    def _commit_row(self, transaction_id: str) -> None:
        if self.rows.get(transaction_id) is Row.REFUSED:
            raise LocalFailure
        self.rows[transaction_id] = Row.COMMITTED

    async def _check(self, node: Node, message: ReceivedMessage) -> Outcome:
        transaction_id, random = message.message_id, node.random
        await asyncio.sleep(random.choice((0.0, 0.01, 1.0)))
        if random.random() < self._bad:
            match random.randrange(4):
                case 0:
                    raise ValueError("the database is gone")
                case 1:
                    await asyncio.sleep(3600)
                case 2:
                    return "COMMIT"  # type: ignore[return-value]
                case _:
                    return Outcome.UNKNOWN
        row = self.rows.get(transaction_id)
        if row is None and node.clock.now_ms() - message.born_time_ms > PATIENCE_MS:
            row = self.rows[transaction_id] = Row.REFUSED
        if row is not None and random.random() < self._lies:
            self.lied.add(transaction_id)
            return Outcome.ROLLBACK if row is Row.COMMITTED else Outcome.COMMIT
        if row is None:
            return Outcome.UNKNOWN
        return Outcome.COMMIT if row is Row.COMMITTED else Outcome.ROLLBACK

    # --- Consumers --------------------------------------------------------------------------------------------------

    async def _read(self, node: Node) -> None:
        consumer = PushConsumer(
            "billing", self._got, client=node.client_config(), start=StartPosition.FIRST, env=node.env
        )
        consumer.subscribe(TOPIC)
        async with consumer:
            node.is_ready()
            await node.stopping.wait()

    async def _got(self, message: ReceivedMessage) -> None:
        self.seen[message.message_id] += 1
        if self.rows.get(message.message_id) is not Row.COMMITTED and message.message_id not in self.lied:
            # Not raised in a listener, which would only be called again.
            self._early = f"a consumer sees {message.message_id}, whose local work is not committed"

    # --- The end ----------------------------------------------------------------------------------------------------

    async def _observe(self, node: Node) -> None:
        async with (
            ClientInstance(node.client_config(), env=node.env) as instance,
            Admin(config=node.client_config(), env=node.env) as admin,
        ):
            await admin.topics.create(TOPIC, queues=QUEUES)
            node.is_ready()
            await self._wanted.wait()
            while await self._open_count(instance):
                await asyncio.sleep(5.0)
            # Consumers have some seconds to see the last ones.
            await asyncio.sleep(40.0)
            self.stored = await self._stored(instance, TOPIC, QUEUES)
            self.discarded = await self._stored(instance, names.CHECK_MAX_TOPIC, 1)
            self._known.set()
            await node.stopping.wait()

    async def _open_count(self, instance: ClientInstance) -> int:
        total = 0
        for broker in self._brokers:
            response = await instance.ask(
                f"{broker.ip}:{BROKER_PORT}", RequestCode.LIST_TRANSACTIONS, ListTransactions()
            )
            total += decode(response.body, OpenTransactions).open_count
        return total

    async def _stored(self, instance: ClientInstance, topic: str, queues: int) -> Counter[str]:
        """How many records of each message there are."""
        found: Counter[str] = Counter()
        for broker in self._brokers:
            for queue_id in range(queues):
                queue_offset = 0
                while True:
                    response = await instance.call(
                        f"{broker.ip}:{BROKER_PORT}",
                        RequestCode.PULL_MESSAGE,
                        PullMessage(
                            consumer_group="TOOLS_CONSUMER",
                            topic=topic,
                            queue_id=queue_id,
                            queue_offset=queue_offset,
                            count_max=32,
                            sysflag=PullSysflag.SUBSCRIPTION,
                            commit_offset=0,
                            suspend_timeout_ms=0,
                            subscription="*",
                            sub_version=0,
                        ),
                    )
                    records = unpack_records(response.body)
                    if not records:
                        break
                    for record in records:
                        queue_offset = record.queue_offset + 1
                        found[_key(record.properties)] += 1
        return found

    def _check_all(self) -> None:
        stored, discarded = self.stored, self.discarded
        if self._early:
            raise Broken(self._early)
        if discarded:
            raise Broken(f"{len(discarded)} transactions were discarded: {list(discarded)[:3]}")
        for transaction_id, count in stored.items():
            if count > 1:
                raise Broken(f"{transaction_id} is stored {count} times")
            if self.rows.get(transaction_id) is not Row.COMMITTED and transaction_id not in self.lied:
                raise Broken(f"{transaction_id} is stored, but its local work is {self.rows.get(transaction_id)}")
        for transaction_id, row in self.rows.items():
            if row is Row.COMMITTED and transaction_id not in stored and transaction_id not in self.lied:
                raise Broken(f"{transaction_id} is lost, though its local work was committed")
        for transaction_id, is_committed in self.told.items():
            if (transaction_id in stored) != is_committed:
                raise Broken(f"the API said {is_committed} for {transaction_id}")
        for transaction_id in stored:
            if not self.seen[transaction_id]:
                raise Broken(f"no consumer has seen {transaction_id}")


def _key(properties: str) -> str:
    pairs = dict(pair.split("\x01", 1) for pair in properties.split("\x02") if "\x01" in pair)
    return pairs.get("UNIQ_KEY", "")
