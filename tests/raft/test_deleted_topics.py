"""Topics that are deleted in a Raft group stay deleted, also under the next leader (P4, D1)."""

from __future__ import annotations

import asyncio

from ternmq.admin import Admin
from ternmq.broker.tables.tables import Tables
from ternmq.client.send.producer import Producer
from ternmq.message import Message
from ternmq.testing.cluster import Cluster, Node
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests_admin import Topic
from tests.raft.test_group_simulation import agree, bodies, leader_of, run, until


def tables_of(node: Node) -> Tables:
    assert node.broker is not None
    return next(part for part in node.broker._live._parts if isinstance(part, Tables))


def test_a_topic_that_was_deleted_while_a_member_was_away_stays_deleted() -> None:
    """Neither its messages nor the offsets of its readers come back: those would let a group skip the messages of a new
    topic of that name."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        phase: list[str] = []

        async def work(node: Node) -> None:
            async with (
                Admin(config=node.client_config(), env=node.env) as admin,
                Producer("shop", client=node.client_config(), env=node.env) as producer,
            ):
                node.is_ready()
                for number in range(10):
                    await producer.send(Message("orders", b"%d" % number))
                phase.append("sent")
                await until(lambda: "away" in phase)
                await admin.topics.delete("orders")
                phase.append("deleted")
                await node.stopping.wait()

        worker = cluster.node("worker", work)
        await cluster.start(worker)
        await until(lambda: "sent" in phase)
        await agree(members)
        leader = leader_of(members)
        assert leader is not None
        for member in members:
            tables_of(member).offsets.commit("readers", "orders", 0, 3)
            assert len(bodies(member)) == 10
        away = next(each for each in members if each is not leader)
        # Its offsets are saved, and a name server forgets it.
        await asyncio.sleep(10.0)
        away.kill()
        await asyncio.sleep(5.0)
        phase.append("away")
        await until(lambda: "deleted" in phase)
        await cluster.start(away)
        await agree(members)
        await until(lambda: all(not bodies(member) for member in members))
        await worker.stop()
        assert away.broker is not None
        assert away.broker.group is not None
        current = leader_of(members)
        assert current is not None
        assert current.broker is not None
        assert current.broker.group is not None
        assert current is not away
        assert await current.broker.group.transfer(away.broker.group.config.d_leger_self_id)
        await until(lambda: leader_of(members) is away)
        assert bodies(away) == []
        assert "orders" not in tables_of(away).topics.names()
        assert "readers" not in tables_of(away).offsets.groups_of("orders")

    run(12, story)


def test_a_deletion_takes_no_message_of_the_topic_that_is_made_after_it() -> None:
    """Tools ask all members, one after the other, while producers make the topic again: a follower must delete what its
    leader has deleted, not what it has itself when it is asked."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        done = asyncio.Event()

        async def work(node: Node) -> None:
            async with (
                Admin(config=node.client_config(), env=node.env) as admin,
                Producer("shop", client=node.client_config(), env=node.env) as producer,
            ):
                node.is_ready()
                await producer.send(Message("orders", b"old"))
                leader = leader_of(members)
                assert leader is not None
                for member in (leader, *(each for each in members if each is not leader)):
                    assert member.broker is not None
                    request = Topic(topic="orders")
                    await admin._instance.ask(member.broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, request)
                    if member is leader:
                        await producer.send(Message("orders", b"new"))
                        await agree(members)
                done.set()
                await node.stopping.wait()

        worker = cluster.node("worker", work)
        await cluster.start(worker)
        await done.wait()
        await worker.stop()
        await agree(members)
        await until(lambda: all(bodies(member) == [b"new"] for member in members))

    run(14, story)
