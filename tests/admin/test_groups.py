"""Groups, their members and their progress through the admin (D2, D3, D4)."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.admin import Admin
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import GroupMissing, TopicMissing
from ternmq.message import Message, MessageQueue, ReceivedMessage
from ternmq.wire.bodies.clients import RequestMode


async def consume(name_servers: str, count: int) -> None:
    async with PushConsumer("billing", name_servers=name_servers, start=StartPosition.FIRST) as consumer:
        consumer.subscribe("orders")
        left = count
        async for message in consumer:
            left -= 1
            if not left:
                message.ack()
                break


async def test_progress_is_told_by_queue(cluster: EmbeddedCluster, admin: Admin) -> None:
    """D4, issue 13.15: broker offset, consumer offset, lag, and what its members hold."""
    await admin.topics.create("orders", queues=1)
    queues = [MessageQueue("orders", broker, 0) for broker in ("broker-a", "broker-b")]
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for queue in queues:
            await producer.send(Message("orders", b"1"), queue=queue)
        await consume(cluster.name_servers, 2)
        await producer.send(Message("orders", b"2"), queue=queues[1])

    progress = await admin.groups.progress("billing", topic="orders")

    assert [(queues[0], 1, 1, 0, 0), (queues[1], 2, 1, 1, 0)] == [
        (queue.queue, queue.broker_offset, queue.consumer_offset, queue.lag, queue.in_flight) for queue in progress
    ]


async def test_progress_tells_what_members_hold(cluster: EmbeddedCluster, admin: Admin) -> None:
    """D4, issue 13.15: pulled, and not finished."""
    await admin.topics.create("orders", queues=1)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for _ in range(3):
            await producer.send(Message("orders", b"1"), queue=MessageQueue("orders", "broker-a", 0))
    begun, done = asyncio.Event(), asyncio.Event()

    async def work(_message: ReceivedMessage) -> None:
        begun.set()
        await done.wait()

    async with PushConsumer("billing", work, name_servers=cluster.name_servers, start=StartPosition.FIRST) as consumer:
        consumer.subscribe("orders")
        await begun.wait()
        progress = await admin.groups.progress("billing", topic="orders")
        done.set()

    assert [(3, 3, 0)] == [(one.lag, one.in_flight, one.consumer_offset) for one in progress if one.broker_offset]


async def test_a_group_is_listed_with_members_and_lag(cluster: EmbeddedCluster, admin: Admin) -> None:
    await admin.topics.create("orders", queues=1)
    async with PushConsumer("billing", lambda _message: None, name_servers=cluster.name_servers) as consumer:
        consumer.subscribe("orders", "new || paid")
        await consumer.ready()
        members = await admin.clients.consumers("billing")
        (group,) = await admin.groups.all(system=False)

    assert members is not None
    assert ("CLUSTERING", "new || paid") == (members.model, members.subscriptions["orders"])
    assert [("PYTHON", True)] == [(one.language, one.address.startswith("127.0.0.1:")) for one in members.members]
    assert ("billing", 1, "CLUSTERING", 0) == (group.name, group.members, group.model, group.lag)


async def test_a_group_whose_members_have_left_stays_listed(cluster: EmbeddedCluster, admin: Admin) -> None:
    await admin.topics.create("orders", queues=1)
    async with PushConsumer("billing", lambda _message: None, name_servers=cluster.name_servers) as consumer:
        consumer.subscribe("orders")
        await consumer.ready()

    assert None is await admin.clients.consumers("billing")
    assert [("billing", 0, "")] == [(g.name, g.members, g.model) for g in await admin.groups.all(system=False)]


async def test_a_group_is_made_with_its_settings(admin: Admin) -> None:
    """D2"""
    brokers = await admin.groups.create("careful", retry_max=3, broadcast=False)

    for broker in brokers:
        config = (await admin.groups.table(broker))["careful"]
        assert (3, False) == (config.retry_max_times, config.consume_broadcast_enable)
    assert ["broker-a", "broker-b"] == sorted(broker.name for broker in brokers)


async def test_an_unknown_group_is_an_error(admin: Admin) -> None:
    with pytest.raises(GroupMissing, match="group 'nobody' does not exist; see `tern group list`"):
        await admin.groups.progress("nobody")


async def test_producers_of_a_group_are_told(cluster: EmbeddedCluster, admin: Admin) -> None:
    """D3."""
    assert [] == await admin.clients.producers("shop")

    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        await producer.send(Message("orders", b"1"))
        assert ["PYTHON"] == [member.language for member in await admin.clients.producers("shop")]


async def test_a_group_is_switched_to_pop_where_the_topic_is(admin: Admin) -> None:
    """F9: on the brokers that have it; a topic that none has is refused."""
    await admin.topics.create("orders", queues=1)

    brokers = await admin.groups.set_mode("billing", "orders", RequestMode.POP, share=1)

    assert ["broker-a", "broker-b"] == sorted(broker.name for broker in brokers)
    with pytest.raises(TopicMissing):
        await admin.groups.set_mode("billing", "missing", RequestMode.POP)


async def test_a_group_is_deleted_with_its_offsets(cluster: EmbeddedCluster, admin: Admin) -> None:
    """D2: its consumers begin anew; an unknown group is an error."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        await producer.send(Message("orders", b"one"))
    await consume(cluster.name_servers, 1)

    deleted = await admin.groups.delete("billing")

    assert len(deleted) >= 1
    assert "billing" not in await admin.groups.names()
    with pytest.raises(GroupMissing):
        await admin.groups.delete("billing")
    with pytest.raises(GroupMissing):
        await admin.groups.progress("billing")


async def test_loads_tell_rates_members_and_lag(cluster: EmbeddedCluster, admin: Admin) -> None:
    """D5, T1: of brokers, topics and groups; those of the system are left out, and the number is bounded."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for body in (b"one", b"two"):
            await producer.send(Message("orders", body))
    await consume(cluster.name_servers, 1)

    brokers, topics, groups = await admin.brokers.loads(), await admin.topics.loads(), await admin.groups.loads()

    assert all(one.time_ms and one.memory_bytes and not one.trouble for one in brokers)
    assert [("orders", 2)] == [(one.topic, one.messages) for one in topics if one.topic == "orders"]
    assert [("billing", 0, 1)] == [(one.group, one.members, one.lag) for one in groups if one.group == "billing"]
    assert not await admin.topics.loads(count_max=0)
    assert not await admin.groups.loads(count_max=0)
