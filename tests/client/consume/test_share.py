"""Share consumers on a real cluster (R1–R3)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ternmq.admin import Admin
from ternmq.client.blocking.share import SyncShareConsumer
from ternmq.client.consume import source
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.config import ShareConfig
from ternmq.client.consume.decode import Inflater
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.share import ShareConsumer
from ternmq.client.consume.share_source import ShareSource
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, RequestNotSupported
from ternmq.message import Message, Property, ReceivedMessage
from ternmq.names import is_retry_topic
from ternmq.wire.bodies.clients import MessageModel
from tests.client.consumer_script import ConsumerScript
from tests.client.listening import Collector, eventually, numbered

FIRST = StartPosition.FIRST


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield producer


async def send(producer: Producer, *bodies: str, tags: str = "", key: str = "") -> None:
    for body in bodies:
        await producer.send(Message("orders", body.encode(), tags=tags, sharding_key=key))


def consumer_of(cluster: EmbeddedCluster, listener: object = None, **more: object) -> ShareConsumer:
    consumer = ShareConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST, **more)  # type: ignore[arg-type]
    consumer.subscribe("orders")
    return consumer


def source_of(consumer: ShareConsumer) -> ShareSource:
    assert consumer._consumer is not None
    (source,) = (
        source
        for source in consumer._consumer.sources.all()
        if isinstance(source, ShareSource) and not is_retry_topic(source.queue.topic)
    )
    return source


async def held(cluster: EmbeddedCluster) -> dict[str, tuple[str, int]]:
    async with Admin(cluster.name_servers) as admin:
        return {
            member.consumer: (member.state, member.held)
            for member in await admin.clients.sharers("billing")
            if member.topic == "orders"
        }


async def test_more_consumers_than_queues_share_all_messages(cluster: EmbeddedCluster, producer: Producer) -> None:
    """R1: none is idle for want of a queue, and each message comes once."""
    seen: list[Counter[str]] = []
    all_are_busy = asyncio.Event()

    def listener_of() -> object:
        counter: Counter[str] = Counter()
        seen.append(counter)

        async def listener(message: ReceivedMessage) -> None:
            counter[message.body.decode()] += 1
            if all(seen):
                all_are_busy.set()
            # Each holds its first message until all of them have one.
            await all_are_busy.wait()

        return listener

    async with AsyncExitStack() as stack:
        for _ in range(12):
            config = ShareConfig(count_max=1, unsettled_max=1)
            await stack.enter_async_context(consumer_of(cluster, listener_of(), config=config))
        await send(producer, *numbered(200))
        await eventually(lambda: sum(map(Counter.total, seen)) >= 200)
    assert Counter(numbered(200)) == sum(seen, Counter())


async def test_a_loop_and_acks_by_hand(cluster: EmbeddedCluster, producer: Producer) -> None:
    """R1, F1: each message is done when the next one is asked for; what is left undone comes again."""
    await send(producer, *numbered(5))
    bodies = []
    async with consumer_of(cluster, consumer="ann") as consumer:
        async for message in consumer:
            bodies.append(message.body.decode())
            if len(bodies) == 3:
                message.ack()
                break
    async with consumer_of(cluster, consumer="bob") as consumer:
        async for message in consumer:
            bodies.append(message.body.decode())
            if len(bodies) == 5:
                message.ack()
                break
    assert Counter(numbered(5)) == Counter(bodies)
    assert {("offline", 0)} == set((await held(cluster)).values())


async def test_what_a_consumer_did_not_confirm_comes_first_when_it_starts_again(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """R2: under the same name; nothing is written again for that."""
    await send(producer, *numbered(3))
    seen = Collector()
    stuck = asyncio.Event()

    async def hang(message: ReceivedMessage) -> None:
        await seen(message)
        await stuck.wait()

    async with AsyncExitStack() as stack:
        consumer = consumer_of(cluster, hang, consumer="ann", threads=1)
        await consumer.__aenter__()
        await seen.wait(1)
        # It dies: its connections end, and nothing is said to the broker.
        instance = source_of(consumer)._fetching.instance
        core = consumer._consumer
        assert core is not None
        await core.sources.stop_fetching()
        core.settling.close()
        again = Collector()
        other = await stack.enter_async_context(consumer_of(cluster, again, consumer="ann"))
        messages = await again.wait(3)
        assert other.queues
        stuck.set()
        assert [0, 0, 0] == [message.reconsume_times for message in messages]
        await instance.__aexit__(None, None, None)


async def test_failed_messages_come_again_and_become_dead_letters(cluster: EmbeddedCluster, producer: Producer) -> None:
    """R2, H1, H2."""
    await send(producer, "bad")
    seen = Collector()

    async def listener(message: Claimed) -> None:
        await seen(message)
        message.retry(1)

    config = ShareConfig(max_reconsume_times=1)
    async with consumer_of(cluster, listener, config=config):
        messages = await seen.wait(2)
        assert [0, 1] == [message.reconsume_times for message in messages]
        assert ["orders", "orders"] == [message.topic for message in messages]
        async with Admin(cluster.name_servers) as admin, asyncio.timeout(20):
            while not (dead := await admin.dead_letters.all("billing")):
                await asyncio.sleep(0.01)
        assert [b"bad"] == [letter.message.body for letter in dead]


async def test_a_message_that_takes_too_long_goes_to_another_consumer(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """R2: unless it asks for more time; what the slow one says later does not count."""
    await send(producer, "slow", "extended")
    hang = asyncio.Event()
    first, second = Collector(), Collector()

    async def listener(message: Claimed) -> None:
        await first(message)
        if message.body == b"extended":
            message.extend(60_000)
        await hang.wait()

    async with consumer_of(cluster, listener, hold_ms=500):
        await first.wait(2)
        async with consumer_of(cluster, second):
            (again,) = await second.wait(1)
            assert b"slow" == again.body
            assert again.reconsume_times >= 1, "it may have come to the first one again"
            hang.set()


async def test_filters_by_tag(producer: Producer, cluster: EmbeddedCluster) -> None:
    """R1, K1."""
    for number, tag in enumerate("abab"):
        await send(producer, f"{tag}{number}", tags=tag)
    seen = Collector()
    consumer = ShareConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders", "b")
    async with consumer:
        assert ["b1", "b3"] == sorted(await seen.bodies(2))


@pytest.mark.parametrize("ordered", [False, True])
async def test_filters_by_sql(producer: Producer, cluster: EmbeddedCluster, ordered: bool) -> None:
    """R1, K2: the broker filters, also for consumers that keep the order of keys."""
    for price in range(20):
        await producer.send(
            Message("orders", str(price).encode(), properties={"price": str(price)}, sharding_key=str(price % 2))
        )
    seen = Collector()
    consumer = ShareConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST, ordered=ordered)
    consumer.subscribe("orders", sql="price > 10")
    async with consumer:
        bodies = await seen.bodies(9)
    assert sorted(map(str, range(11, 20))) == sorted(bodies)
    if ordered:
        for parity in (0, 1):
            own = [int(body) for body in bodies if int(body) % 2 == parity]
            assert sorted(own) == own


async def test_an_ordered_consumer_keeps_the_order_of_each_key(cluster: EmbeddedCluster, producer: Producer) -> None:
    """R1: several consumers, and failures that are tried again in place."""
    for number in range(60):
        await send(producer, f"{number % 5}-{number:03}", key=f"key-{number % 5}")
    by_key: dict[str, list[str]] = {}
    failed: set[str] = set()
    held_by: dict[str, int] = {}

    def listener_of(number: int) -> object:
        async def listener(message: ReceivedMessage) -> None:
            body = message.body.decode()
            key = message.properties[Property.SHARDING_KEY]
            assert held_by.setdefault(key, number) == number, "two consumers at a time"
            await asyncio.sleep(0)
            if body.endswith("7") and body not in failed:
                failed.add(body)
                del held_by[key]
                raise RuntimeError("once")
            by_key.setdefault(key, []).append(body)
            del held_by[key]

        return listener

    config = ShareConfig(ordered=True, ordered_retry_ms=10, count_max=3)
    async with AsyncExitStack() as stack:
        for number in range(4):
            await stack.enter_async_context(consumer_of(cluster, listener_of(number), config=config))
        await eventually(lambda: sum(map(len, by_key.values())) >= 60)
    assert {f"key-{key}": [f"{key}-{number:03}" for number in range(key, 60, 5)] for key in range(5)} == by_key


async def test_broadcasting_gives_each_consumer_all_messages(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """F5."""
    await send(producer, *numbered(4))
    one, other = Collector(), Collector()
    configs = [
        ShareConfig(model=MessageModel.BROADCASTING, offsets_directory=tmp_path / name) for name in ("one", "other")
    ]
    async with consumer_of(cluster, one, config=configs[0]), consumer_of(cluster, other, config=configs[1]):
        assert sorted(numbered(4)) == sorted(await one.bodies(4))
        assert sorted(numbered(4)) == sorted(await other.bodies(4))


async def test_limits_hold_a_consumer_back(cluster: EmbeddedCluster, producer: Producer) -> None:
    """M2: by count."""
    await send(producer, *numbered(20))
    hang = asyncio.Event()
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await hang.wait()

    config = ShareConfig(count_max=2, unsettled_max=4)
    async with consumer_of(cluster, listener, config=config, consumer="ann"):
        await seen.wait(4)
        assert {"ann": ("online", 4)} == await held(cluster)
        hang.set()
        await seen.wait(20)


async def test_limits_hold_a_consumer_back_by_bytes(cluster: EmbeddedCluster, producer: Producer) -> None:
    """M2: whatever the number of messages."""
    await send(producer, *(f"{number}".ljust(1_000) for number in range(20)))
    hang = asyncio.Event()
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await hang.wait()

    config = ShareConfig(count_max=2, unsettled_bytes_max=3_500)
    async with consumer_of(cluster, listener, config=config, consumer="ann"):
        await seen.wait(4)
        assert {"ann": ("online", 4)} == await held(cluster)
        hang.set()
        await seen.wait(20)


async def test_a_message_comes_again_after_the_time_that_it_was_given(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """R2, H1: ``retry(after_ms=)`` is rounded up to the next delay level, here to 1 s instead of 10 s."""
    await send(producer, "later")
    seen = Collector()

    async def listener(message: Claimed) -> None:
        await seen(message)
        if not message.reconsume_times:
            message.retry(after_ms=300)

    async with consumer_of(cluster, listener):
        _, again = await seen.wait(2)
    assert (b"later", 1, "1") == (again.body, again.reconsume_times, again.properties[Property.DELAY])


async def test_what_could_not_be_taken_does_not_keep_others_from_being_confirmed(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2: whatever has gone wrong here, the broker delivers it again."""
    inflate, failed = Inflater.messages, asyncio.Event()

    async def fail(self: Inflater, *args: Any, **options: Any) -> int:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        return await inflate(self, *args, **options)

    monkeypatch.setattr(Inflater, "messages", fail)
    monkeypatch.setattr(source, "ERROR_PAUSE_S", 0.01)
    large = "large" * 2_000
    await send(producer, large)
    seen = Collector()
    async with consumer_of(cluster, seen):
        await failed.wait()
        await send(producer, *numbered(3))
        assert {large, *numbered(3)} == {*await seen.bodies(4)}
        while any(count for _, count in (await held(cluster)).values()):
            await asyncio.sleep(0.01)


def test_settings_that_cannot_be_are_refused() -> None:
    """R1."""
    for fields, said in (
        ({"count_max": 0}, "invalid count_max 0"),
        ({"hold_ms": -1}, "invalid hold_ms -1"),
        ({"consumer": "a/b"}, "without slashes"),
        ({"bytes_max": 0}, "invalid bytes_max 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            ShareConfig(**fields)
    with pytest.raises(ConfigError, match="reset the offsets"):
        ShareConfig(start=StartPosition.at(1_700_000_000_000))


async def test_a_broker_without_shared_consumption_and_pop_is_an_error_that_says_what_to_use() -> None:
    """V2: RocketMQ 4.9."""
    async with ConsumerScript().running() as script:
        consumer = ShareConsumer("billing", Collector(), name_servers=script.address)
        consumer.subscribe("orders")
        with pytest.raises(RequestNotSupported, match=r"neither shared consumption nor pop, .* use a PushConsumer"):
            await consumer.__aenter__()
        ordered = ShareConsumer("billing", Collector(), name_servers=script.address, ordered=True)
        ordered.subscribe("orders")
        with pytest.raises(RequestNotSupported, match="orderly PushConsumer"):
            await ordered.__aenter__()


async def test_the_synchronous_version_does_the_same(cluster: EmbeddedCluster, producer: Producer) -> None:
    """R1."""
    await send(producer, *numbered(3))
    bodies: list[bytes] = []
    done = threading.Event()

    def listener(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if len(bodies) == 3:
            done.set()

    def consume() -> None:
        consumer = SyncShareConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("orders")
        with consumer:
            done.wait(20)

    await asyncio.to_thread(consume)
    assert Counter(numbered(3)) == Counter(body.decode() for body in bodies)
