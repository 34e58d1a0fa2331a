"""Consumers of every kind read on while the leadership goes from member to member (P4).

A member that has just lost the leadership refuses reads with SERVICE_NOT_AVAILABLE. No consumer may show that to the
application, skip a message or stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

import pytest

from ternmq import (
    LitePullConfig,
    LitePullConsumer,
    PopConfig,
    PopConsumer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from ternmq.client.consume.offsets import StartPosition
from ternmq.message import ReceivedMessage
from ternmq.testing.cluster import Cluster, Node
from tests.raft.test_group_simulation import Shop, leader_of, run, until

TRANSFERS: Final = 6
FIRST: Final = StartPosition.FIRST


class Readers:
    """One consumer of each kind, with a group of its own, and how often each message came."""

    def __init__(self, cluster: Cluster) -> None:
        readers = {"push": self._push, "pop": self._pop, "lite": self._lite, "pull": self._pull}
        self.got = {kind: Counter[bytes]() for kind in readers}
        self.nodes = [cluster.node(kind, reader) for kind, reader in readers.items()]

    def _noted(self, kind: str, messages: list[ReceivedMessage]) -> None:
        self.got[kind].update(message.body for message in messages)

    async def _push(self, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> None:
            self._noted("push", [message])

        config = PushConfig(start=FIRST)
        await _listen(node, PushConsumer("push", listen, client=node.client_config(), config=config, env=node.env))

    async def _pop(self, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> None:
            self._noted("pop", [message])

        config = PopConfig(start=FIRST, invisible_ms=10_000)
        await _listen(node, PopConsumer("pop", listen, client=node.client_config(), config=config, env=node.env))

    async def _lite(self, node: Node) -> None:
        config = LitePullConfig(start=FIRST)
        consumer = LitePullConsumer("lite", client=node.client_config(), config=config, env=node.env)
        consumer.subscribe("orders")
        async with consumer:
            node.is_ready()
            while not node.stopping.is_set():
                self._noted("lite", await consumer.poll(100))
                await consumer.commit()

    async def _pull(self, node: Node) -> None:
        """Offsets by the application: nothing may come twice, either."""
        async with PullConsumer("pull", client=node.client_config(), env=node.env) as consumer:
            node.is_ready()
            next_offsets: dict[int, int] = {}
            while not node.stopping.is_set():
                for queue in await consumer.queues("orders"):
                    offset = next_offsets.get(queue.queue_id, 0)
                    end = await consumer.max_offset(queue)
                    while offset < end:
                        result = await consumer.pull(queue, offset, wait=False)
                        self._noted("pull", list(result.messages))
                        offset = next_offsets[queue.queue_id] = result.next_offset
                        await consumer.commit(queue, offset)
                        await consumer.committed(queue)
                await asyncio.sleep(0.01)


async def _listen(node: Node, consumer: PushConsumer | PopConsumer) -> None:
    consumer.subscribe("orders")
    async with consumer:
        node.is_ready()
        await node.stopping.wait()


#: With seed 3, a member that leads again has lost the mode of the group that pops.
@pytest.mark.parametrize("seed", [2, 3])
def test_a_transfer_under_readers_loses_nothing_and_raises_nothing(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        shop, readers = Shop(cluster, per_second=50), Readers(cluster)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        await cluster.start(shop.node)
        await until(lambda: shop.acknowledged)
        await cluster.start(*readers.nodes)
        for _ in range(TRANSFERS):
            sent, old = len(shop.acknowledged), leader_of(members)
            assert old is not None
            assert old.broker is not None
            assert old.broker.group is not None
            await old.broker.group.hand_over()
            await until(lambda old=old: leader_of(members) not in (None, old))  # type: ignore[misc]
            await until(lambda sent=sent: len(shop.acknowledged) > sent + 20)  # type: ignore[misc]
        await shop.node.stop()
        wanted = set(shop.acknowledged)
        await until(lambda: all(wanted <= set(got) for got in readers.got.values()))
        assert {1} == set(readers.got["pull"].values())
        for node in readers.nodes:
            await node.stop()

    with caplog.at_level(logging.ERROR):
        run(seed, story)
    assert [] == [record.getMessage() for record in caplog.records if record.name.startswith("ternmq.client")]
