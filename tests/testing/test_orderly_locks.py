"""What the locks of orderly consumers are for, in stories that no seed is needed for (F2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from ternmq import Admin, Message, Producer, PushConsumer
from ternmq.client.consume.locks import BROKER_S, TRUST_S
from ternmq.client.consume.offsets import StartPosition
from ternmq.message import ReceivedMessage
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import BEGIN_S, simulated_loop

COUNT = 100
CALL_S = 2.0


class Story:
    """One queue with a hundred messages that take two seconds each, and the times of all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str, int]] = []

    def run(self, tell: Callable[[Cluster, Node, Node], object]) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, seed=1)
            loop.run_until_complete(self._live(tell))
            loop.check()

    async def _live(self, tell: Callable[[Cluster, Node, Node], object]) -> None:
        cluster = self.cluster
        await cluster.start(cluster.name_server())
        await cluster.start(cluster.broker("broker-a"))
        await cluster.start(cluster.node("shop", self._sell))
        self.first, self.second = (cluster.node(name, self._consume) for name in ("first", "second"))
        await cluster.start(self.first)
        await asyncio.sleep(10.5 * CALL_S)
        tell(cluster, cluster.nodes["broker-a"], self.first)
        self.told_at = self._now()
        await cluster.start(self.second)
        await asyncio.sleep(2 * BROKER_S)

    def of(self, name: str) -> list[tuple[float, int]]:
        return [(at, queue_offset) for at, who, queue_offset in self.calls if who == name]

    def _now(self) -> float:
        return self.cluster.loop.time() - BEGIN_S

    async def _sell(self, node: Node) -> None:
        async with Admin(config=node.client_config(), env=node.env) as admin:
            await admin.topics.create("orders", queues=1)
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            for _ in range(COUNT):
                await producer.send(Message("orders", b"order"))
            node.is_ready()
            await node.stopping.wait()

    async def _consume(self, node: Node) -> None:
        async def on_message(message: ReceivedMessage) -> None:
            self.calls.append((self._now(), node.name, message.queue_offset))
            await asyncio.sleep(CALL_S)

        consumer = PushConsumer(
            "billing",
            on_message,
            client=node.client_config(),
            orderly=True,
            start=StartPosition.FIRST,
            env=node.env,
        )
        consumer.subscribe("orders")
        async with consumer:
            node.is_ready()
            await node.stopping.wait()


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_member_that_is_cut_off_begins_nothing_more_before_another_may(story: Story) -> None:
    """F2: it trusts its lock for 30 s, the broker keeps it for 60."""

    def cut_off(cluster: Cluster, broker: Node, member: Node) -> None:
        cluster.network.partition([member.ip], [broker.ip])

    story.run(cut_off)

    last_at, last_begun = story.of("first")[-1]
    first_at, first_begun = story.of("second")[0]
    assert story.told_at < last_at < story.told_at + TRUST_S
    assert first_at > last_at + BROKER_S - TRUST_S
    assert first_begun <= last_begun + 1


def test_a_member_whose_connection_breaks_begins_nothing_more_before_it_has_asked(story: Story) -> None:
    """F2: the broker may have been started anew, and have forgotten who has which lock."""

    def break_off(cluster: Cluster, broker: Node, member: Node) -> None:
        cluster.network.reset(member.ip, broker.ip)
        cluster.network.partition([member.ip], [broker.ip])

    story.run(break_off)

    assert story.of("first")[-1][0] <= story.told_at
    assert story.of("second")[0][1] <= story.of("first")[-1][1] + 1


def test_a_member_that_was_paused_for_longer_than_its_lock_begins_no_other_call(story: Story) -> None:
    """F2: the call that it was in cannot be stopped."""

    def pause(cluster: Cluster, broker: Node, member: Node) -> None:
        member.pause()
        cluster.network.reset(member.ip, broker.ip)
        cluster.loop.call_later(1.6 * BROKER_S, member.resume)

    story.run(pause)

    later = [call for call in story.calls if call[0] > story.told_at]
    assert "second" == later[0][1]
    assert later[0][0] > story.told_at + BROKER_S - TRUST_S
    # The first member gets the queue back in the end, in good order.
    assert {"first", "second"} == {name for _, name, _ in later}
    begun = [at for at, _, _ in later]
    assert all(after - before >= CALL_S for before, after in pairwise(begun))
    offsets = [queue_offset for _, _, queue_offset in later]
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


def test_a_queue_changes_hands_between_two_calls(story: Story) -> None:
    """F2: the old owner ends its call, stores the progress, and gives the lock back."""

    def leave(cluster: Cluster, broker: Node, member: Node) -> None:
        member.stopping.set()

    story.run(leave)

    last_at, last_begun = story.of("first")[-1]
    first_at, first_begun = story.of("second")[0]
    assert last_begun + 1 == first_begun
    assert last_at + CALL_S <= first_at < last_at + CALL_S + 2
