"""Two slaves that are promoted at about the same moment, from seeds (O1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from ternmq.admin.admin import Admin
from ternmq.client.send.producer import Producer
from ternmq.errors import TernError
from ternmq.message import Message
from ternmq.testing.cluster import BROKER_PORT, Cluster, Node, Program
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather

MASTER, SLAVE = "SYNC_MASTER", "SLAVE"


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Story:
    """A master that is lost, and an operator at each of its slaves."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.promoted: list[str] = []
        self.roles: list[str] = []

    async def tell(self) -> None:
        cluster, chance = self.cluster, self.cluster.random
        master = cluster.broker("one", brokerName="broker-a", brokerRole=MASTER)
        slaves = [
            cluster.broker(name, brokerName="broker-a", brokerRole=SLAVE, brokerId=number)
            for number, name in ((1, "two"), (2, "three"))
        ]
        await cluster.start(cluster.name_server(), master)
        await cluster.start(*slaves)
        await asyncio.sleep(12.0)
        await cluster.start(cluster.node("shop", self._sell))
        await asyncio.sleep(5.0)
        master.kill()
        await asyncio.sleep(1.0)
        cluster.network.weather = Weather(0.000_1, chance.choice((0.002, 0.02, 0.2)), 0.0)
        operators = [cluster.node(f"operator-{slave.name}", self._operator(slave)) for slave in slaves]
        await cluster.start(*operators)
        await asyncio.sleep(60.0)
        await cluster.start(cluster.node("observer", self._observer(slaves)))
        if not self.promoted:
            # Each has seen the other: the operators talk to each other, and one tries again.
            await cluster.start(cluster.node("last operator", self._operator(slaves[0])))
            await asyncio.sleep(60.0)
            await cluster.start(cluster.node("last observer", self._observer(slaves)))

    async def _sell(self, node: Node) -> None:
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            for number in range(5):
                await producer.send(Message("orders", b"%d" % number))
        node.is_ready()
        await node.stopping.wait()

    def _operator(self, slave: Node) -> Program:
        after_s = self.cluster.random.choice((0.0, 0.01, 0.1, 0.5)) * self.cluster.random.random()

        async def work(node: Node) -> None:
            node.is_ready()
            await asyncio.sleep(after_s)
            async with Admin(config=node.client_config(), env=node.env) as admin:
                try:
                    await admin.brokers.promote(f"{slave.ip}:{BROKER_PORT}", role=MASTER)
                except TernError as error:
                    self.cluster.note("not promoted", slave.name, str(error)[:80])
                else:
                    self.cluster.note("promoted", slave.name)
                    self.promoted.append(slave.name)
            await node.stopping.wait()

        return work

    def _observer(self, slaves: list[Node]) -> Program:
        async def work(node: Node) -> None:
            async with Admin(config=node.client_config(), env=node.env) as admin:
                self.roles = [(await admin.brokers.status_of(f"{each.ip}:{BROKER_PORT}")).role for each in slaves]
            node.is_ready()
            await node.stopping.wait()

        return work


@pytest.mark.parametrize("seed", range(12))
def test_two_slaves_that_are_promoted_at_once_do_not_both_become_master(seed: int) -> None:
    """O1: one does, or the second takes over from the first, or both are refused, and the next attempt succeeds."""
    with simulated_loop() as loop:
        cluster = Cluster(loop, seed)
        story = Story(cluster)
        loop.run_until_complete(story.tell())
        loop.check()
        assert [SLAVE, MASTER] == sorted(story.roles), [line for line in cluster.trace if "promoted" in str(line)]
