"""What runs on a leader only goes on with the next one: delays, transactions, pops, queue locks (P4)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Final

from ternmq import Outcome, PopConfig, PopConsumer, PushConfig, PushConsumer
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.send.producer import Producer
from ternmq.errors import TernError
from ternmq.message import Message, ReceivedMessage
from ternmq.testing.cluster import Cluster, Node
from tests.raft.test_group_simulation import leader_of, run, until

LEVEL_3_S: Final = 10.0
DELAY_S: Final = 20.0
#: Checks of transactions begin after 30 s or so, lost pops come back after their invisible time.
LONG_S: Final = 300.0


class World:
    """A producer of all kinds of messages, and consumers of all kinds, of which some fail at first."""

    def __init__(self, cluster: Cluster) -> None:
        self._time = cluster.loop.time
        self.shop = cluster.node("shop", self._sell)
        self.consumers = [cluster.node("pops", self._pop), cluster.node("line", self._in_order)]
        #: Body → when it may be delivered.
        self.sent: dict[bytes, float] = {}
        self.is_sent = asyncio.Event()
        #: Transactions commit when the leader that has their halves is dead.
        self.commits = asyncio.Event()
        self.popped: dict[bytes, float] = {}
        self.lined: dict[bytes, float] = {}
        self._refused: set[bytes] = set()

    async def _sell(self, node: Node) -> None:
        async def check(_message: ReceivedMessage) -> Outcome:
            return Outcome.COMMIT

        async with Producer(
            "shop", client=node.client_config(), checker=check, topics=["orders"], env=node.env
        ) as producer:
            node.is_ready()
            for number in range(10):
                plain, level, timed = (b"%s %d" % (kind, number) for kind in (b"plain", b"level", b"timed"))
                await producer.send(Message("orders", plain))
                self.sent[plain] = self._time()
                self.sent[level] = self._time() + LEVEL_3_S
                await producer.send(Message("orders", level, delay_level=3))
                # In whole seconds, by the broker's clock.
                self.sent[timed] = self._time() + DELAY_S - 1
                await producer.send(Message("orders", timed, delay=timedelta(seconds=DELAY_S)))
            ending = [asyncio.create_task(self._transact(producer, b"transaction %d" % number)) for number in range(3)]
            await asyncio.sleep(1.0)
            self.is_sent.set()
            await asyncio.gather(*ending)
            await node.stopping.wait()

    async def _transact(self, producer: Producer, body: bytes) -> None:
        # The leader that has the half is dead: the next one asks.
        with contextlib.suppress(TernError):
            async with producer.transaction(Message("orders", body)):
                self.sent[body] = self._time()
                await self.commits.wait()

    async def _pop(self, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> None:
            if message.body not in self._refused:
                self._refused.add(message.body)
                raise RuntimeError("not at the first time")
            self.popped.setdefault(message.body, self._time())

        config = PopConfig(start=StartPosition.FIRST, invisible_ms=15_000)
        consumer = PopConsumer("pops", listen, client=node.client_config(), config=config, env=node.env)
        consumer.subscribe("orders")
        async with consumer:
            node.is_ready()
            await node.stopping.wait()

    async def _in_order(self, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> None:
            self.lined.setdefault(message.body, self._time())

        config = PushConfig(start=StartPosition.FIRST, orderly=True)
        consumer = PushConsumer("line", listen, client=node.client_config(), config=config, env=node.env)
        consumer.subscribe("orders")
        async with consumer:
            node.is_ready()
            await node.stopping.wait()


def test_what_waits_on_a_leader_is_delivered_by_the_next_ones() -> None:
    """P4: delay levels, delivery times, checks of transactions, pops and orderly consumers, while two leaders die."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        world = World(cluster)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        await cluster.start(world.shop, *world.consumers)
        await until(world.is_sent.is_set)
        for _ in range(2):
            old = leader_of(members)
            assert old is not None
            old.kill()
            world.commits.set()
            await until(lambda: leader_of(members), LONG_S)
            await asyncio.sleep(4.0)
            await cluster.start(old)
        wanted = set(world.sent)
        assert 33 == len(wanted)
        await until(lambda: wanted <= set(world.popped) and wanted <= set(world.lined), LONG_S)
        for got in (world.popped, world.lined):
            assert [] == [body for body, at in got.items() if at < world.sent[body]], "too early"
        for node in (world.shop, *world.consumers):
            await node.stop()

    run(11, story)
