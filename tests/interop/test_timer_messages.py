"""Messages with a delivery time, between TernMQ and RocketMQ 5.2.0 (I2, V1, V2, C11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq import Message, Producer, PullConsumer
from ternmq.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.embedded import EmbeddedCluster
from ternmq.env import Env, SystemClock
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.config import StoreConfig
from tests.interop import rocketmq
from tests.interop.java import Java
from tests.interop.rocketmq import SMALL_FILES, RocketMQ

pytestmark = pytest.mark.interop

VERSION: Final = "5.2.0"
TOPIC: Final = "timed"


async def test_java_timer_producers_work_unchanged(tmp_path: Path) -> None:
    """I2, V1: by delay in seconds and ms, and by moment; Java consumes them, none before its time."""
    java = Java(VERSION, tmp_path)
    async with EmbeddedCluster() as cluster:
        names = cluster.name_servers
        async with java.producer(names) as producer:
            begin = datetime.now(UTC)
            orders: dict[str, Any] = {
                "setDelayTimeSec": "1",
                "setDelayTimeMs": "1200",
                "setDeliverTimeMs": str(int(begin.timestamp() * 1000) + 1500),
            }
            for name, value in orders.items():
                order: dict[str, Any] = {name: value}
                await producer.send(topic=TOPIC, body=name, count=1, **order)
            async with java.consumer(names, group="readers", topic=TOPIC) as consumer:
                messages = await consumer.messages(3)
    assert {f"{name}-0".encode() for name in orders} == {message["body"] for message in messages}
    for message in messages:
        asked = {**message["properties"]}
        due_ms = int(asked.get("TIMER_DELIVER_MS", 0)) or int(asked["TIMER_ENQUEUE_MS"]) + int(
            asked.get("TIMER_DELAY_MS", 0) or int(asked["TIMER_DELAY_SEC"]) * 1000
        )
        assert int(asked["TIMER_DEQUEUE_MS"]) >= due_ms


async def test_java_is_refused_what_cannot_be_kept(tmp_path: Path) -> None:
    """I2: with the code of RocketMQ."""
    async with EmbeddedCluster() as cluster, Java(VERSION, tmp_path).producer(cluster.name_servers) as producer:
        [answer] = await producer.order(topic=TOPIC, body="x", count=1, setDelayTimeSec=str(41 * 86_400))
    assert "error" == answer["event"]
    assert "CODE: 13" in str(answer)


@pytest.mark.nightly
async def test_our_delivery_times_on_rocketmq(rocketmq_5: RocketMQ) -> None:
    """I2, V2: RocketMQ delivers by the second."""
    async with Producer("shop", name_servers=rocketmq_5.address) as producer:
        sent = datetime.now(UTC)
        await producer.send(Message("timed-there", b"delay", delay=timedelta(seconds=1)))
        await producer.send(Message("timed-there", b"moment", deliver_at=sent + timedelta(seconds=2)))
        came = await read(rocketmq_5.address, "timed-there", 2)
    due_ms = int(sent.timestamp() * 1000)
    assert {b"delay", b"moment"} == {message.body for message in came}
    assert all(message.store_time_ms >= due_ms + 1_000 for message in came)


async def read(name_servers: str, topic: str, count: int) -> list[ReceivedMessage]:
    """The first messages of a topic, as soon as there are so many."""
    found: dict[tuple[MessageQueue, int], ReceivedMessage] = {}
    async with (
        PullConsumer("readers", name_servers=name_servers) as consumer,
        Producer("queues", name_servers=name_servers) as producer,
        asyncio.timeout(300),
    ):
        while len(found) < count:
            for queue in await producer.queues(topic):
                for message in (await consumer.pull(queue, 0, count_max=32)).messages:
                    found[queue, message.queue_offset] = message
            await asyncio.sleep(0.1)
    return list(found.values())


@asynccontextmanager
async def ternmq(store: Path) -> AsyncIterator[str]:
    """TernMQ on a store directory; yields the address of the name server."""
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0)))
        config = BrokerConfig(
            broker_name="broker-a",
            bind_address="127.0.0.1",
            listen_port=0,
            namesrv_addr=f"127.0.0.1:{names.port}",
        )
        sizes = StoreConfig(
            store_path_root_dir=store,
            mapped_file_size_commit_log=SMALL_FILES["mappedFileSizeCommitLog"],
            mapped_file_size_consume_queue=SMALL_FILES["mappedFileSizeConsumeQueue"],
            max_hash_slot_num=SMALL_FILES["maxHashSlotNum"],
            max_index_num=SMALL_FILES["maxIndexNum"],
        )
        await stack.enter_async_context(Broker(config, sizes, Env(clock=Ahead())))
        yield f"127.0.0.1:{names.port}"


@pytest.mark.nightly
@pytest.mark.timeout(500)
async def test_a_directory_changes_hands_and_no_message_comes_twice(tmp_path: Path) -> None:
    """I2, C11: what waits in RocketMQ's is delivered here, and what was delivered here is not delivered there.

    RocketMQ takes its time: a fresh one goes through the seconds of the last week first. So TernMQ's clock is ahead.
    """
    directory = tmp_path / "broker-a"
    with (
        rocketmq.name_server(VERSION, tmp_path / "names") as names,
        rocketmq.broker(VERSION, directory, namesrv=names.address) as server,
    ):
        async with Producer("shop", name_servers=names.address) as producer:
            await producer.send(Message(TOPIC, b"delivered there", delay=timedelta(seconds=1)))
            await producer.send(Message(TOPIC, b"waits", delay=timedelta(hours=1)))
            await producer.send(Message(TOPIC, b"waits long", delay=timedelta(hours=40)))
            await read(names.address, TOPIC, 1)
        # A clean stop notes how far it is.
        await asyncio.to_thread(server.stop, 60)
    async with ternmq(directory / "store") as address:
        came = await read(address, TOPIC, 2)
    with (
        rocketmq.name_server(VERSION, tmp_path / "names-2") as names,
        rocketmq.broker(VERSION, directory, namesrv=names.address) as server,
    ):
        async with Producer("shop", name_servers=names.address) as producer:
            # RocketMQ delivers what it takes for late as soon as it runs, long before it stops.
            await producer.send(Message(TOPIC, b"third"))
            there = await read(names.address, TOPIC, 3)
        await asyncio.to_thread(server.stop, 60)
    async with ternmq(directory / "store") as address:
        again = await read(address, TOPIC, 3)
        async with Admin(address) as admin:
            waiting = (await admin.delays.stats()).topics
    assert [b"delivered there", b"waits"] == sorted(message.body for message in came)
    assert [b"delivered there", b"third", b"waits"] == sorted(message.body for message in there)
    assert [b"delivered there", b"third", b"waits"] == sorted(message.body for message in again)
    assert {TOPIC: 1} == waiting


class Ahead:
    """A clock that is two hours ahead."""

    def __init__(self) -> None:
        self._clock = SystemClock()

    def now_ms(self) -> int:
        return self._clock.now_ms() + 2 * 3_600_000

    def monotonic(self) -> float:
        return self._clock.monotonic()
