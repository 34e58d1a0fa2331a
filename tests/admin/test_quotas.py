"""Quotas over all brokers of a cluster, and what clients do with them (M1)."""

from __future__ import annotations

import pytest

from ternmq import Message, Producer
from ternmq.admin import Admin
from ternmq.admin.quotas import QuotaInfo
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import GroupMissing, SystemBusy, TopicMissing


async def test_quotas_are_set_shown_and_removed_on_all_brokers(cluster: EmbeddedCluster, admin: Admin) -> None:
    """M1: nothing else of a topic or group changes."""
    await admin.topics.create("orders", queues=3, order=True)
    await admin.groups.create("billing", retry_max=7)

    on_topic = await admin.quotas.set_topic("orders", messages=10, size_bytes=1_000)
    await admin.quotas.set_group("billing", size_bytes=500)

    assert ["broker-a", "broker-b"] == sorted(broker.name for broker in on_topic)
    assert [
        *(QuotaInfo("topic", "orders", broker, 10, 1_000) for broker in ("broker-a", "broker-b")),
        *(QuotaInfo("group", "billing", broker, None, 500) for broker in ("broker-a", "broker-b")),
    ] == await admin.quotas.all()
    for master in await admin.brokers.masters():
        topic = (await admin.topics.table(master))["orders"]
        group = (await admin.groups.table(master))["billing"]
        assert (3, 3, 6, True) == (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order)
        assert 7 == group.retry_max_times

    await admin.quotas.set_topic("orders", messages=10)
    await admin.quotas.set_group("billing")
    assert {(10, None)} == {(quota.messages, quota.bytes) for quota in await admin.quotas.all()}
    await admin.quotas.set_topic("orders")
    assert [] == await admin.quotas.all()


async def test_a_producer_beyond_the_quota_gets_system_busy(cluster: EmbeddedCluster, admin: Admin) -> None:
    """M1: with the sentence of the broker."""
    await admin.topics.create("orders", queues=1)
    await admin.quotas.set_topic("orders", size_bytes=1)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        with pytest.raises(SystemBusy, match="topic orders has a quota of 1 bytes/s"):
            # A debt of hours on each broker.
            for _ in range(4):
                await producer.send(Message("orders", bytes(10_000)))


async def test_names_that_no_broker_knows_are_told(cluster: EmbeddedCluster, admin: Admin) -> None:
    """M1."""
    with pytest.raises(TopicMissing, match="no broker has topic 'nothing'"):
        await admin.quotas.set_topic("nothing", messages=1)
    with pytest.raises(GroupMissing, match="no broker has group 'nobody'"):
        await admin.quotas.set_group("nobody", messages=1)
