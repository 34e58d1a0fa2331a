"""Java finds messages on TernMQ by every name they have, and rewinds groups (V1, L1, L2, D4), of both versions.

The cluster's clock stands still unless a test moves it: times are known to the millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.admin import Admin
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.env import Env
from ternmq.message import Message, MessageQueue, SendReceipt
from tests.client.listening import Collector
from tests.interop.java import Java
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.interop

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def cluster(clock: ManualClock) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(env=Env(clock=clock)) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.name_servers) as admin:
        await admin.topics.create("orders", queues=1)
        yield admin


async def send(cluster: EmbeddedCluster, clock: ManualClock, *after_ms: int) -> tuple[list[SendReceipt], list[int]]:
    """Messages that are stored so many ms after each other: their receipts and store times."""
    receipts, times = [], []
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for number, passed_ms in enumerate(after_ms):
            clock.advance(passed_ms / 1000)
            times.append(clock.now_ms())
            receipts.append(await producer.send(Message("orders", b"%d" % number, keys=f"all key-{number}")))
    return receipts, times


async def test_java_finds_an_offset_by_time_to_the_millisecond(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock, java: Java
) -> None:
    """V1, L1: the first of all messages in that millisecond, or after it."""
    _, times = await send(cluster, clock, 0, 1, 0, 0, 1, 100)

    async def at_time(time_ms: int) -> int:
        (event,) = await java.query(cluster.name_servers, topic="orders", timeMs=time_ms)
        assert (0, 6) == (event["minQueueOffset"], event["maxQueueOffset"])
        found: int = event["atTime"]
        return found

    assert [1, 4, 5, 6] == [await at_time(time_ms) for time_ms in (times[1], times[4], times[4] + 1, times[5] + 1)]


async def test_mqadmin_finds_a_message_by_every_name_it_has(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock, java: Java
) -> None:
    """V1, L1: offset id, unique key, key, place."""
    receipts, _ = await send(cluster, clock, 0, 1, 1)
    names, wanted = cluster.name_servers, receipts[1]

    by_id, by_unique_key, by_key, by_place = await asyncio.gather(
        java.admin(names, "queryMsgById", "-i", wanted.offset_id),
        java.admin(names, "queryMsgByUniqueKey", "-t", "orders", "-i", wanted.message_id),
        java.admin(names, "queryMsgByKey", "-t", "orders", "-k", "key-1"),
        java.admin(names, "queryMsgByOffset", "-t", "orders", "-b", "broker-a", "-i", "0", "-o", "1"),
    )

    for printed in (by_id, by_unique_key, by_place):
        assert "key-1" in printed
        assert "key-0" not in printed
        assert "key-2" not in printed
    assert wanted.message_id in by_key
    assert receipts[0].message_id not in by_key


async def test_mqadmin_moves_and_clones_a_group_without_members(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock, java: Java
) -> None:
    """V1, D4, L2: to the millisecond."""
    _, times = await send(cluster, clock, 0, 1, 1, 1)
    names = cluster.name_servers
    # A real member: mqadmin finds a group by its retry topic, which comes with the first heartbeat.
    seen = Collector()
    async with PushConsumer("billing", seen, name_servers=names, start=StartPosition.FIRST) as consumer:
        consumer.subscribe("orders")
        await seen.wait(4)
    assert {QUEUE: 4} == await admin.offsets.of("billing", topic="orders")

    await java.admin(names, "resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", str(times[2]))
    assert {QUEUE: 2} == await admin.offsets.of("billing", topic="orders")
    await java.admin(names, "cloneGroupOffset", "-s", "billing", "-d", "copy", "-t", "orders", "-o", "true")
    assert {QUEUE: 2} == await admin.offsets.of("copy", topic="orders")
    await java.admin(names, "skipAccumulatedMessage", "-g", "billing", "-t", "orders")
    assert {QUEUE: 4} == await admin.offsets.of("billing", topic="orders")


async def test_a_java_consumer_goes_back_when_its_group_is_moved(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock, java: Java
) -> None:
    """V1, D4, L2: it drops the queue, waits 10 s and takes it up at the new offset."""
    _, times = await send(cluster, clock, 0, 1, 1, 1)
    names = cluster.name_servers
    async with java.consumer(names, group="billing", topic="orders", **{"from": "first"}) as consumer:
        assert [b"0", b"1", b"2", b"3"] == sorted(message["body"] for message in await consumer.messages(4))

        await java.admin(names, "resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", str(times[2]))

        again = await consumer.messages(2, limit_s=60)
        # A message is shown before it is done: the consumer must not be stopped in between. It commits every 5 s.
        async with asyncio.timeout(60):
            while {QUEUE: 4} != await admin.offsets.of("billing", topic="orders"):
                await asyncio.sleep(0.1)
    assert [b"2", b"3"] == sorted(message["body"] for message in again)
