"""RocketMQ's own admin tool, of both versions, on TernMQ's servers (V1, D6)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, ReceivedMessage, SendStatus
from tests.client.listening import Collector
from tests.interop.java import Java

pytestmark = pytest.mark.interop


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


async def test_mqadmin_makes_shows_and_deletes_topics(cluster: EmbeddedCluster, java: Java) -> None:
    """D1, D6"""
    names = cluster.name_servers

    made = await java.admin(names, "updateTopic", "-c", "DefaultCluster", "-t", "fresh", "-r", "3", "-w", "3")
    listed, route, status = await asyncio.gather(
        java.admin(names, "topicList"),
        java.admin(names, "topicRoute", "-t", "fresh"),
        java.admin(names, "topicStatus", "-t", "fresh"),
    )
    await java.admin(names, "deleteTopic", "-c", "DefaultCluster", "-t", "fresh")
    left = await java.admin(names, "topicList")

    assert "success" in made
    assert "fresh" in listed.split()
    assert '"writeQueueNums":3' in route.replace(" ", "").replace("\n", "")
    assert 3 == sum(line.startswith("broker-a") for line in status.splitlines())
    assert "fresh" not in left.split()


async def test_mqadmin_finds_messages_and_sees_progress(cluster: EmbeddedCluster, java: Java) -> None:
    """D3-D6, L1: with a live producer and consumer of ours."""
    names = cluster.name_servers
    seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def listen(message: ReceivedMessage) -> None:
        await seen.put(message)

    async with Producer("shop", name_servers=names) as producer:
        receipt = await producer.send(Message("orders", b"hello mqadmin", keys="order-7"))
        async with PushConsumer("billing", listen, name_servers=names, start=StartPosition.FIRST) as consumer:
            consumer.subscribe("orders")
            await asyncio.wait_for(seen.get(), 30)
            clusters, by_key, by_id, members, brokers = await asyncio.gather(
                java.admin(names, "clusterList"),
                java.admin(names, "queryMsgByKey", "-t", "orders", "-k", "order-7"),
                java.admin(names, "queryMsgById", "-i", receipt.offset_id),
                java.admin(names, "consumerConnection", "-g", "billing"),
                java.admin(names, "brokerStatus", "-b", cluster.brokers[0].address),
            )
        progress = await java.admin(names, "consumerProgress", "-g", "billing")

    assert "broker-a" in clusters
    assert receipt.message_id in by_key
    assert "order-7" in by_id
    assert "orders" in members
    assert "PYTHON" in members
    assert "putTps" in brokers
    assert any(line.startswith("orders") for line in progress.splitlines())
    if java.version >= "5":
        # Without a pull offset it would count -1 of the finished message as in flight.
        assert "Consume Inflight Total: 0" in progress


async def test_mqadmin_cleans_up(cluster: EmbeddedCluster, java: Java) -> None:
    """C9, D6: what it says when a broker has carried out its orders."""
    names = cluster.name_servers
    # deleteExpiredCommitLog came with RocketMQ 5.
    orders = ["cleanExpiredCQ", "cleanUnusedTopic"] + (["deleteExpiredCommitLog"] if java.version >= "5" else [])
    for order in orders:
        assert "success" in await java.admin(names, order, "-b", cluster.brokers[0].address)


async def test_mqadmin_asks_consumers_of_both_languages(cluster: EmbeddedCluster, java: Java) -> None:
    """F10, D6: how they are, what their threads and tasks do, and to consume one message; the broker passes it on."""
    names = cluster.name_servers
    seen = Collector()

    async def our_listener(message: ReceivedMessage) -> None:
        await seen(message)
        if len(seen.messages) > 1:
            raise ValueError("once is enough")

    async with Producer("shop", name_servers=names) as producer:
        receipt = await producer.send(Message("orders", b"hello mqadmin"))
    consumer = PushConsumer("ours", our_listener, name_servers=names, start=StartPosition.FIRST, orderly=True)
    consumer.subscribe("orders")
    async with consumer, java.consumer(names, group="theirs", topic="orders") as theirs:
        await asyncio.gather(seen.wait(1), theirs.messages(1))
        async with Admin(names) as admin:
            groups = {group: await admin.clients.consumers(group) for group in ("ours", "theirs")}
        (ours_id, java_id) = [found.members[0].client_id for found in groups.values() if found is not None]
        # One after the other: each gives up after 5 s, its own warming up included.
        our_status = await java.admin(names, "consumerStatus", "-g", "ours", "-i", ours_id, "-s")
        java_status = await java.admin(names, "consumerStatus", "-g", "theirs", "-i", java_id, "-s")
        ours_said = await java.admin(names, "queryMsgById", "-i", receipt.offset_id, "-g", "ours", "-d", ours_id)
        java_said = await java.admin(names, "queryMsgById", "-i", receipt.offset_id, "-g", "theirs", "-d", java_id)
        await seen.wait(2)
        await theirs.messages(1)

    assert "#Consumer Subscription#" in our_status
    assert "PROP_CONSUMEORDERLY" in our_status
    assert "orders" in our_status
    assert "task rebalance" in our_status
    assert "ConsumeMessageThread_" in java_status
    assert "CR_THROW_EXCEPTION" in ours_said
    assert "once is enough" in ours_said
    assert "CR_SUCCESS" in java_said


async def test_mqadmin_shows_how_far_slaves_are(tmp_path: Path) -> None:
    """O1: haStatus exists from 5.x on."""
    java = Java("5.2.0", tmp_path)
    async with EmbeddedCluster(slaves=1, settings={"brokerRole": "SYNC_MASTER"}) as cluster:
        (master,), (slave,) = cluster.brokers, cluster.slaves
        async with Producer("shop", name_servers=cluster.name_servers) as producer, asyncio.timeout(60):
            while (await producer.send(Message("orders", b"hello"))).status is not SendStatus.OK:
                await asyncio.sleep(0.05)
        assert master.replicating is not None
        told = await java.admin(cluster.name_servers, "haStatus", "-b", master.address)
        assert f"#MasterCommitLogMaxOffset\t{master.replicating.log_end}" in told
        assert "#SlaveNum\t1" in told
        assert "OK" in told
        told = await java.admin(cluster.name_servers, "haStatus", "-b", slave.address)
        assert f"#CommitLogMaxOffset\t{master.replicating.log_end}" in told


@pytest.mark.parametrize("java", ["5.2.0"], indirect=True)
async def test_mqadmin_shows_epochs_and_slaves(java: Java) -> None:
    """O1: after a promotion. 4.9 does not have these commands."""
    async with EmbeddedCluster(slaves=1) as cluster, Admin(cluster.name_servers) as admin:
        names, new = cluster.name_servers, cluster.slaves[0]
        async with Producer("shop", name_servers=names) as producer:
            await producer.send(Message("orders", b"1"))
        async with asyncio.timeout(60):
            while not any(each.in_sync for each in (await admin.brokers.status_of(cluster.brokers[0].address)).slaves):
                await asyncio.sleep(0.05)
        told = await admin.brokers.promote(new.address)
        async with Producer("shop", name_servers=names) as producer:
            await producer.send(Message("orders", b"2"))
        epochs = await java.admin(names, "getBrokerEpoch", "-b", "broker-a")
        status = await java.admin(names, "haStatus", "-b", new.address)

    assert "Epoch{epoch=1, startOffset=0" in epochs.replace("EpochEntry", "Epoch"), epochs
    assert f"epoch={told.epoch}, startOffset={told.log_end}" in epochs, epochs
    assert f"#MasterAddr\t{new.address}" in status, status


async def test_mqadmin_changes_settings_of_a_running_broker(cluster: EmbeddedCluster, java: Java) -> None:
    """T2, D6: and of a name server; what needs a restart is refused."""
    names, (address,) = cluster.name_servers, [broker.address for broker in cluster.brokers]

    changed = await java.admin(names, "updateBrokerConfig", "-b", address, "-k", "fileReservedTime", "-v", "48")
    refused = await java.admin(names, "updateBrokerConfig", "-b", address, "-k", "listenPort", "-v", "1")
    shown = await java.admin(names, "getBrokerConfig", "-b", address)
    await java.admin(names, "updateNamesrvConfig", "-n", names, "-k", "orderMessageEnable", "-v", "true")
    of_names = await java.admin(names, "getNamesrvConfig")

    assert "success" in changed
    assert ["fileReservedTime", "48"] in [line.replace("=", " ").split() for line in shown.splitlines()]
    assert "success" not in refused
    assert ["listenPort", "1"] not in [line.replace("=", " ").split() for line in shown.splitlines()]
    assert ["orderMessageEnable", "true"] in [line.replace("=", " ").split() for line in of_names.splitlines()]


async def test_mqadmin_shows_the_entries_of_a_queue(cluster: EmbeddedCluster, java: Java) -> None:
    """D6: queryCq, for a group with a member."""
    names = cluster.name_servers
    async with Admin(names) as admin:
        await admin.topics.create("orders", queues=1)
    async with Producer("shop", name_servers=names) as producer:
        for tag in ("new", "old", "new"):
            await producer.send(Message("orders", b"1", tags=tag))
    seen = Collector()
    consumer = PushConsumer("billing", seen, name_servers=names, start=StartPosition.FIRST)
    consumer.subscribe("orders", "new")
    async with consumer:
        await seen.wait(2)
        shown = await java.admin(names, "queryCq", "-t", "orders", "-q", "0", "-i", "0", "-c", "3", "-g", "billing")

    assert '"subString":"new"' in shown
    assert "max: 3, min: 0" in shown
    assert ["true", "false", "true"] == re.findall(r"eval=(\w+)", shown)
    assert ["108960", "110119", "108960"] == re.findall(r"tagsCode=(\d+)", shown), "Java's hashes of new, old, new"


async def test_mqadmin_shows_what_goes_in_and_out(cluster: EmbeddedCluster, java: Java) -> None:
    """D5: statsAll has the rates of the last minute and the sums of a day."""
    names = cluster.name_servers
    seen = Collector()
    consumer = PushConsumer("billing", seen, name_servers=names, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    async with Producer("shop", name_servers=names) as producer, consumer:
        for _ in range(5):
            await producer.send(Message("orders", b"1"))
        await seen.wait(5)
        shown = await java.admin(names, "statsAll", "-t", "orders")

    (line,) = [line.split() for line in shown.splitlines() if line.startswith("orders")]
    topic, group, _lag, _in_tps, _out_tps, in_day, out_day = line
    assert ("orders", "billing", "5", "5") == (topic, group, in_day, out_day)


def stderr_of_all(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.glob("java-*/stderr.log"))


async def test_mqadmin_is_told_why_something_is_not_offered(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """D6: static topics exist from 5.x on."""
    java = Java("5.2.0", tmp_path)

    await java.admin(cluster.name_servers, "updateStaticTopic", "-t", "orders", "-qn", "4", "-c", "DefaultCluster")

    errors = await asyncio.to_thread(stderr_of_all, tmp_path)
    assert "CODE: 3  DESC: request 513 (UPDATE_AND_CREATE_STATIC_TOPIC) is not supported: static topics" in errors
    assert "`tern topic create`" in errors
