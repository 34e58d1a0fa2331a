"""Offsets that an application keeps itself, its own filter, and what else RocketMQ's users expect (D4, F1, F6, K1)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal

import pytest

from ternmq import (
    Admin,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
)
from ternmq.client.consume.given_store import GivenStore
from ternmq.client.consume.pull import PullStatus
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, OffsetStoreFailed, SendFailed


class Table:
    """An ``OffsetStore`` as an application may write it."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.loads: list[MessageQueue] = []
        self.failures = 0
        self.saved = asyncio.Event()

    async def load(self, queue: MessageQueue) -> int | None:
        self.loads.append(queue)
        if self.failures:
            self.failures -= 1
            raise OSError("the database is away")
        return self.offsets.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the database is away")
        self.offsets |= offsets
        self.saved.set()


async def send(name_servers: str, count: int, *, topic: str = "orders", namespace: str = "") -> None:
    client = ClientConfig(name_servers, namespace=namespace)
    async with Producer("shop", client=client) as producer:
        for number in range(count):
            await producer.send(Message(topic, str(number).encode(), tags="odd" if number % 2 else "even"))


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("model", list(MessageModel))
async def test_a_push_consumer_continues_where_the_application_says(model: MessageModel, *, orderly: bool) -> None:
    """D4: queues have the names that the application knows, without the namespace."""
    async with EmbeddedCluster() as cluster:
        await send(cluster.name_servers, 8, namespace="tenant")
        table, got, arrived = Table(), set[bytes](), asyncio.Event()

        async def take(message: ReceivedMessage) -> None:
            got.add(message.body)
            if len(got) == 8:
                arrived.set()

        def consumer() -> PushConsumer:
            made = PushConsumer(
                "billing",
                take,
                client=ClientConfig(cluster.name_servers, namespace="tenant"),
                model=model,
                orderly=orderly,
                start=StartPosition.FIRST,
                offsets=table,
            )
            made.subscribe("orders")
            return made

        async with consumer():
            await arrived.wait()
        assert 8 == sum(offset for queue, offset in table.offsets.items() if queue.topic == "orders")

        # One queue goes back: its messages come again, and no others.
        back = max(table.offsets, key=lambda queue: (queue.topic == "orders", table.offsets[queue]))
        again = table.offsets[back]
        table.offsets[back] = 0
        got.clear()
        async with consumer() as running:
            while table.offsets[back] != again:
                table.saved.clear()
                await running._running().sources.save(wait=True)
                await asyncio.sleep(0)
        assert again == len(got)


async def test_a_store_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """D4: a load that failed must not begin elsewhere; a save that failed comes again."""
    async with EmbeddedCluster() as cluster:
        await send(cluster.name_servers, 8)
        table, got = Table(), asyncio.Queue[bytes]()
        table.failures = 3

        async def take(message: ReceivedMessage) -> None:
            got.put_nowait(message.body)

        async with PushConsumer(
            "billing", take, name_servers=cluster.name_servers, start=StartPosition.FIRST, offsets=table
        ) as consumer:
            consumer.subscribe("orders")
            assert {str(number).encode() for number in range(8)} == {await got.get() for _ in range(8)}
            table.failures = 1
            await consumer._running().sources.save(wait=True)
            assert {} == table.offsets
        assert 8 == sum(offset for queue, offset in table.offsets.items() if queue.topic == "orders")
    assert "the offset store cannot load the offset of" in caplog.text
    assert "the database is away; trying again" in caplog.text


async def test_a_lite_pull_consumer_commits_to_the_application() -> None:
    """D4, F4"""
    async with EmbeddedCluster() as cluster:
        await send(cluster.name_servers, 8)
        table = Table()
        async with LitePullConsumer(
            "audit", name_servers=cluster.name_servers, start=StartPosition.FIRST, auto_commit=False, offsets=table
        ) as consumer:
            await consumer.assign(await consumer.queues("orders"))
            got: list[ReceivedMessage] = []
            while len(got) < 8:
                got += await consumer.poll()
            assert {} == table.offsets
            table.failures = 1
            with pytest.raises(OffsetStoreFailed, match="OSError: the database is away"):
                await consumer.commit()
            await consumer.commit()
            assert 8 == sum(table.offsets.values())
            queue = got[0].queue
            assert table.offsets[queue] == await consumer.committed(queue)
        # Brokers were told nothing.
        async with PullConsumer("audit", name_servers=cluster.name_servers) as reader:
            assert None is await reader.committed(queue)


async def test_an_offset_that_is_no_number_is_an_error_of_the_store() -> None:
    """D4: and not one of the consumer."""
    queue = MessageQueue("orders", "broker-a", 0)
    table = Table()
    for odd in ("5", Decimal(5), 5.0):
        table.offsets[queue] = odd  # type: ignore[assignment]  # as an application without types may
        with pytest.raises(OffsetStoreFailed, match=r"cannot load the offset of .*TypeError"):
            await GivenStore(table, "").load(queue)


async def test_what_the_filter_does_not_want_is_done() -> None:
    """K1: it neither comes nor comes back, and the offset passes it; a filter that fails hides nothing."""
    async with EmbeddedCluster() as cluster:
        await send(cluster.name_servers, 10)
        table = Table()

        def chooses(message: ReceivedMessage) -> bool:
            if message.body == b"3":
                raise ValueError("a bug")
            assert message.topic == "orders"
            return int(message.body) > 6

        async with LitePullConsumer(
            "audit",
            name_servers=cluster.name_servers,
            start=StartPosition.FIRST,
            message_filter=chooses,
            offsets=table,
        ) as consumer:
            await consumer.assign(await consumer.queues("orders"))
            got: set[bytes] = set()
            while len(got) < 4:
                got |= {message.body for message in await consumer.poll()}
            assert {b"3", b"7", b"8", b"9"} == got
            while sum(table.offsets.values()) < 10:
                await consumer.commit()


async def test_a_push_consumer_with_a_filter_and_a_pull_interval() -> None:
    """F1, K1: the interval slows it down and loses nothing."""
    async with EmbeddedCluster() as cluster:
        await send(cluster.name_servers, 40)
        got, arrived = set[bytes](), asyncio.Event()

        async def take(message: ReceivedMessage) -> None:
            got.add(message.body)
            if len(got) == 20:
                arrived.set()

        async with PushConsumer(
            "billing",
            take,
            name_servers=cluster.name_servers,
            config=PushConfig(pull_interval_ms=20, pull_count_max=2, start=StartPosition.FIRST),
            message_filter=lambda message: message.tags == "odd",
        ) as consumer:
            consumer.subscribe("orders")
            await arrived.wait()
        assert {str(number).encode() for number in range(1, 40, 2)} == got
    with pytest.raises(ConfigError, match="pull_interval_ms"):
        PushConfig(pull_interval_ms=-1)


async def test_a_message_that_a_pull_consumer_sends_back_comes_again() -> None:
    """H1: to push consumers of the group, to lite pull consumers with retries, and to pulls from its retry topic."""
    # Delay level 1 is the shortest.
    async with EmbeddedCluster(settings={"messageDelayLevel": "1s 5s"}) as cluster:
        await send(cluster.name_servers, 1)
        async with (
            LitePullConsumer(
                "audit",
                name_servers=cluster.name_servers,
                config=LitePullConfig(retries=True, start=StartPosition.FIRST),
            ) as lite,
            PullConsumer("audit", name_servers=cluster.name_servers) as reader,
        ):
            lite.subscribe("orders")
            (message,) = await lite.poll(60_000)
            await lite.send_back(message, delay_level=1)
            (again,) = await lite.poll(60_000)
            assert (b"0", "orders", 1) == (again.body, again.topic, again.reconsume_times)

            await lite.commit()
            for queue in await reader.queues("%RETRY%audit"):
                result = await reader.pull(queue, 0, wait=False)
                if result.status is PullStatus.FOUND:
                    await reader.send_back(result.messages[0], delay_level=-1)
            (dead,) = await reader.queues("%DLQ%audit")
            assert 1 == await reader.max_offset(dead)


async def test_a_message_that_no_broker_takes_back_is_an_error() -> None:
    """H1"""
    async with EmbeddedCluster(settings={"autoCreateSubscriptionGroup": False}) as cluster:
        await send(cluster.name_servers, 1)
        async with PullConsumer("TOOLS_CONSUMER", name_servers=cluster.name_servers) as reader:
            found = [await reader.pull(queue, 0, wait=False) for queue in await reader.queues("orders")]
        (message,) = [message for result in found for message in result.messages]
        async with PullConsumer("unknown", name_servers=cluster.name_servers) as reader:
            with pytest.raises(SendFailed, match="no broker took message"):
                await reader.send_back(message)


async def test_a_pull_consumer_tells_of_new_queues_and_stamps_messages() -> None:
    """F3"""
    async with EmbeddedCluster() as cluster:
        await send(cluster.name_servers, 1)
        told: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        async with PullConsumer("audit", name_servers=cluster.name_servers) as reader:
            await reader.watch_queues("orders", lambda topic, queues: told.put_nowait((topic, len(queues))))
            found = [await reader.pull(queue, 0, wait=False) for queue in await reader.queues("orders")]
            (message,) = [message for result in found for message in result.messages]
            assert message.consume_start_time_ms >= message.store_time_ms > 0

            async with Admin(cluster.name_servers) as admin:
                await admin.topics.create("orders", queues=6)
            reader._running()[0].refresh_routes_soon()
            assert ("orders", 6) == await told.get()
