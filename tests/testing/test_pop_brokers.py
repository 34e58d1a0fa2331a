"""Pop consumers and brokers that do not answer when they start, or come later (F9, G1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from ternmq import Admin, Message, PopConsumer, Producer, StartPosition
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import is_retry_topic
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.wire.handles import ALL_QUEUES

Story = Callable[[Callable[[Cluster], Awaitable[None]]], None]
TOPIC = "orders"


@pytest.fixture
def tell() -> Iterator[Story]:
    with simulated_loop() as loop:

        async def run(story: Callable[[Cluster], Awaitable[None]]) -> None:
            await story(Cluster(loop, seed=1))

        yield lambda story: loop.run_until_complete(run(story))
        loop.check()


class Popping:
    """A member, on a machine of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.node = cluster.node("member", self._run)
        self.seen: list[bytes] = []

    async def _run(self, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> None:
            self.seen.append(message.body)

        client = node.client_config()
        self.consumer = PopConsumer("billing", listen, client=client, start=StartPosition.FIRST, env=node.env)
        self.consumer.subscribe(TOPIC)
        async with self.consumer:
            node.is_ready()
            await node.stopping.wait()

    def brokers(self) -> list[str]:
        """What it pops."""
        popped = [queue for queue in self.consumer.queues if not is_retry_topic(queue.topic)]
        assert all(queue.queue_id == ALL_QUEUES for queue in popped)
        return [queue.broker_name for queue in popped]


async def once(cluster: Cluster, do: Callable[[Node], Awaitable[None]]) -> None:
    """Have a machine of its own do something."""

    async def program(node: Node) -> None:
        await do(node)
        node.is_ready()
        await node.stopping.wait()

    node = cluster.node(f"once-{len(cluster.nodes)}", program)
    await cluster.start(node)
    await node.stop()


async def make_topic(node: Node) -> None:
    async with Admin(config=node.client_config(), env=node.env) as admin:
        await admin.topics.create(TOPIC, queues=1)


def sending(body: bytes, broker_name: str) -> Callable[[Node], Awaitable[None]]:
    async def send(node: Node) -> None:
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            await producer.send(Message(TOPIC, body), queue=MessageQueue(TOPIC, broker_name, 0))

    return send


def test_a_broker_that_does_not_answer_does_not_hold_up_the_others_at_the_start(tell: Story) -> None:
    """F9: name servers know it, the member cannot reach it; when it can, it pops it, too."""

    async def story(cluster: Cluster) -> None:
        one, other = cluster.broker("broker-a"), cluster.broker("broker-b")
        await cluster.start(cluster.name_server())
        await cluster.start(one, other)
        await once(cluster, make_topic)
        member = Popping(cluster)
        cluster.network.block(member.node.ip, other.ip)
        await cluster.start(member.node)
        await once(cluster, sending(b"1", "broker-a"))
        await once(cluster, sending(b"2", "broker-b"))
        await asyncio.sleep(5)
        assert [b"1"] == member.seen
        cluster.network.heal()
        await asyncio.sleep(30)
        assert [b"1", b"2"] == member.seen
        assert ["broker-a", "broker-b"] == member.brokers()

    tell(story)


def test_a_broker_that_comes_later_is_told_that_the_group_pops(tell: Story) -> None:
    """F9: or members that ask it for the assignment would learn that the group pulls, and pop from no broker."""

    async def story(cluster: Cluster) -> None:
        one, other = cluster.broker("broker-a"), cluster.broker("broker-b")
        await cluster.start(cluster.name_server())
        await cluster.start(one)
        await once(cluster, make_topic)
        member = Popping(cluster)
        await cluster.start(member.node)
        assert ["broker-a"] == member.brokers()
        await cluster.start(other)
        await once(cluster, make_topic)
        await asyncio.sleep(60)
        popped = []
        for _ in range(10):
            popped.append(member.brokers())
            member.consumer._running().rebalance_soon()
            await asyncio.sleep(1)
        assert [["broker-a", "broker-b"]] * 10 == popped

    tell(story)
