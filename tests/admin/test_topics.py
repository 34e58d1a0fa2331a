"""Topics through the admin (D1, A4)."""

from __future__ import annotations

import pytest

from ternmq.admin import Admin
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import InvalidName, InvalidParameter, RouteMissing
from ternmq.message import Message, MessageQueue
from tests.client.listening import Collector


async def test_a_new_topic_is_on_all_brokers_and_routed_at_once(admin: Admin) -> None:
    """A2, A4: after ``create`` every client finds the route."""
    created = await admin.topics.create("orders", queues=3)

    route = await admin.topics.route("orders")
    assert ["broker-a", "broker-b"] == [broker.name for broker in created]
    assert [("broker-a", 3, 3, 6), ("broker-b", 3, 3, 6)] == sorted(
        (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm)
        for queues in route.queue_datas
    )


async def test_creating_again_changes_the_topic(admin: Admin) -> None:
    await admin.topics.create("orders", queues=3)
    await admin.topics.create("orders", queues=4, perm=4, order=True)

    (topic,) = [topic for topic in await admin.topics.all() if topic.name == "orders"]
    assert (8, 8, 4, True) == (topic.read_queues, topic.write_queues, topic.perm, topic.is_order)


async def test_the_list_tells_topics_of_the_system_apart(admin: Admin) -> None:
    await admin.topics.create("orders", queues=1)

    topics = await admin.topics.all()

    assert ["orders"] == [topic.name for topic in topics if not topic.is_system]
    assert {"TBW102", "broker-a", "DefaultCluster"} <= {topic.name for topic in topics if topic.is_system}


async def test_status_counts_what_each_queue_holds(cluster: EmbeddedCluster, admin: Admin) -> None:
    await admin.topics.create("orders", queues=1)
    queue = MessageQueue("orders", "broker-b", 0)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for body in (b"1", b"2"):
            await producer.send(Message("orders", body), queue=queue)

    first, second = await admin.topics.status("orders")

    assert (MessageQueue("orders", "broker-a", 0), 0, 0) == (first.queue, first.messages, first.last_store_ms)
    assert (queue, 0, 2, 2) == (second.queue, second.min_offset, second.max_offset, second.messages)
    assert second.last_store_ms > 0


async def test_traffic_counts_messages_over_all_brokers(cluster: EmbeddedCluster, admin: Admin) -> None:
    """D5: in, and out to each group that reads the topic."""
    await admin.topics.create("orders", queues=1)
    seen = Collector()
    consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    async with Producer("shop", name_servers=cluster.name_servers) as producer, consumer:
        for broker in ("broker-a", "broker-b", "broker-b"):
            await producer.send(Message("orders", b"1"), queue=MessageQueue("orders", broker, 0))
        await seen.wait(3)
        into, out = await admin.topics.traffic("orders")

    assert ("", 3, 3) == (into.group, into.last_hour, into.last_day)
    assert ("billing", 3, 3) == (out.group, out.last_hour, out.last_day)
    assert min(into.rate, into.rate_bytes, out.rate, out.rate_bytes) > 0


async def test_entries_of_a_queue_say_where_messages_lie(cluster: EmbeddedCluster, admin: Admin) -> None:
    """D6"""
    await admin.topics.create("orders", queues=1)
    queue = MessageQueue("orders", "broker-b", 0)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for _ in range(3):
            await producer.send(Message("orders", b"1"), queue=queue)

    found = await admin.topics.entries(queue, 1, count_max=5)

    assert [1, 2] == [entry.queue_offset for entry in found]
    assert found[1].log_offset == found[0].log_offset + found[0].size
    assert [] == await admin.topics.entries(queue, 3)
    with pytest.raises(InvalidParameter, match="does not have topic 'orders'"):
        await admin.topics.entries(MessageQueue("orders", "broker-x", 0), 0)


async def test_a_deleted_topic_is_gone_everywhere(admin: Admin) -> None:
    await admin.topics.create("orders")

    deleted = await admin.topics.delete("orders")

    assert ["broker-a", "broker-b"] == sorted(broker.name for broker in deleted)
    assert "orders" not in [topic.name for topic in await admin.topics.all()]
    with pytest.raises(RouteMissing, match="there is no topic 'orders'; see `tern topic list`"):
        await admin.topics.route("orders")


async def test_name_servers_tell_the_queues_of_an_ordered_topic_until_it_is_deleted() -> None:
    """A5, E4: so no key moves to another queue while a broker is down."""
    settings = {"orderMessageEnable": True}
    async with EmbeddedCluster(brokers=2, settings=settings) as cluster, Admin(cluster.name_servers) as admin:
        await admin.topics.create("steps", queues=3, order=True)
        assert "broker-a:3;broker-b:3" == (await admin.topics.route("steps")).order_topic_conf

        await admin.topics.delete("steps")
        await admin.topics.create("steps", queues=1)
        assert None is (await admin.topics.route("steps")).order_topic_conf


async def test_an_unknown_topic_cannot_be_deleted_or_inspected(admin: Admin) -> None:
    for verb in (admin.topics.delete, admin.topics.status):
        with pytest.raises(RouteMissing, match="there is no topic 'nothing'"):
            await verb("nothing")


@pytest.mark.parametrize("topic", ["with blank", "", "x" * 128, "TBW102"])
async def test_a_name_that_cannot_be_is_refused_before_the_network(topic: str) -> None:
    """E2."""
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(InvalidName):
            await admin.topics.create(topic)


async def test_a_topic_of_the_system_cannot_be_deleted(admin: Admin) -> None:
    with pytest.raises(InvalidName, match="is a system topic"):
        await admin.topics.delete("TBW102")
