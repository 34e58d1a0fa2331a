"""TernMQ's consumers on RocketMQ 4.9.4 and 5.2.0, in both forms of the header (V2, F1–F8, G1, G2, H1, K1).

In one test a group has a member of each language: they agree on who reads what without ever talking to each other.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ternmq.allocation import Allocation, Averagely, AveragelyByCircle, ConsistentHash
from ternmq.client.blocking.pull import SyncPullConsumer
from ternmq.client.blocking.push import SyncPushConsumer
from ternmq.client.config import ClientConfig
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pull import PullConsumer, PullStatus
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.errors import SubscriptionInvalid
from ternmq.message import Message, ReceivedMessage
from ternmq.wire.bodies.clients import MessageModel
from tests.client.listening import Collector, eventually, numbered
from tests.interop import jvm
from tests.interop.in_order import members_keep_the_order
from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop

FIRST = StartPosition.FIRST

_topics = (f"read-by-python-{number}" for number in itertools.count())


@pytest.fixture
def topic() -> str:
    """An unused one; the servers live as long as the session."""
    return next(_topics)


@pytest.fixture
def client(any_rocketmq: RocketMQ) -> ClientConfig:
    return ClientConfig(any_rocketmq.address, serialization=jvm.form_for(any_rocketmq.version))


@pytest.fixture
async def producer(client: ClientConfig) -> AsyncIterator[Producer]:
    async with Producer("shop", client=client) as producer:
        yield producer


def consumer_of(
    topic: str, client: ClientConfig, listener: Collector, *, tags: str = "*", allocation: Allocation | None = None
) -> PushConsumer:
    consumer = PushConsumer(f"readers-of-{topic}", listener, client=client, start=FIRST, allocation=allocation)
    consumer.subscribe(topic, tags)
    return consumer


async def send(producer: Producer, topic: str, bodies: Sequence[str], *, tags: str = "") -> None:
    for body in bodies:
        await producer.send(Message(topic, body.encode(), tags=tags, properties={"城市": "杭州"}))


def queue_ids(consumer: PushConsumer, topic: str) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == topic]


async def test_two_members_share_and_the_one_that_stays_takes_over(
    client: ClientConfig, producer: Producer, topic: str
) -> None:
    """V2, G1: the broker tells members at once; nothing is lost."""
    seen, more = Collector(), Collector()
    await send(producer, topic, ["creates the topic"])
    async with consumer_of(topic, client, seen) as staying:
        await seen.wait(1)
        async with consumer_of(topic, client, more) as leaving:
            await eventually(lambda: len(queue_ids(staying, topic)) == 2)
            assert [0, 1, 2, 3] == sorted(queue_ids(staying, topic) + queue_ids(leaving, topic))
            await send(producer, topic, numbered(40))
            await eventually(lambda: {*seen.seen, *more.seen} >= {*numbered(40)})
            assert 20 == len({*more.seen} & {*numbered(40)})
        await eventually(lambda: [0, 1, 2, 3] == queue_ids(staying, topic))
        await send(producer, topic, numbered(40, 40))
        await eventually(lambda: {*seen.seen} >= {*numbered(40, 40)})
    assert {"杭州"} == {message.properties["城市"] for message in seen.messages}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("averagely", Averagely()), ("circle", AveragelyByCircle()), ("hash", ConsistentHash())],
)
async def test_a_java_member_and_ours_divide_the_queues(
    any_rocketmq: RocketMQ, topic: str, name: str, strategy: Allocation, tmp_path: Path
) -> None:
    """V2, G2: both compute their share alone, so both must compute the same."""
    client = ClientConfig(any_rocketmq.address)
    java = Java(any_rocketmq.version, tmp_path)
    ours = Collector()
    async with Producer("shop", client=client) as producer:
        await send(producer, topic, ["creates the topic"])
        async with consumer_of(topic, client, ours, allocation=strategy) as consumer:
            await ours.wait(1)
            group = f"readers-of-{topic}"
            async with java.consumer(any_rocketmq.address, group=group, topic=topic, strategy=name) as theirs:
                both = {0, 1, 2, 3}
                taken = await theirs.event(
                    "allocated", where=lambda event: event["topic"] == topic and len(event["clients"]) == 2
                )
                java_ids = {queue["queueId"] for queue in taken["queues"]}
                await eventually(lambda: both - java_ids == {*queue_ids(consumer, topic)})
                await send(producer, topic, numbered(40))
                await eventually(lambda: len({*ours.seen} & {*numbered(40)}) == 10 * (4 - len(java_ids)))
                if java_ids:
                    wanted = {body.encode() for body in numbered(40)} - {body.encode() for body in ours.seen}
                    while wanted:
                        wanted -= {(await theirs.event("message"))["body"]}
            await eventually(lambda: both == {*queue_ids(consumer, topic)})


async def test_an_orderly_group_of_both_languages_keeps_the_order(
    any_rocketmq: RocketMQ, topic: str, tmp_path: Path
) -> None:
    """V2, F2, G1: while Java's member joins and leaves."""
    await members_keep_the_order(any_rocketmq.address, any_rocketmq.version, topic, tmp_path)


async def test_in_broadcasting_every_member_gets_all(
    client: ClientConfig, producer: Producer, topic: str, tmp_path: Path
) -> None:
    """V2, F5."""
    config = PushConfig(model=MessageModel.BROADCASTING, start=FIRST, offsets_directory=tmp_path)
    await send(producer, topic, numbered(10))

    async def consume(name: str) -> list[str]:
        seen = Collector()
        consumer = PushConsumer("broadcast", seen, client=replace(client, instance_name=name), config=config)
        consumer.subscribe(topic)
        async with consumer:
            return await seen.bodies(10)

    for bodies in await asyncio.gather(consume("one"), consume("two")):
        assert Counter(numbered(10)) == Counter(bodies)


async def test_only_wanted_tags_arrive(client: ClientConfig, producer: Producer, topic: str) -> None:
    """V2, K1: the broker compares hashes, the client text."""
    for tag in ("Aa", "BB", "标签", "C", ""):
        await send(producer, topic, [f"tag {tag}"], tags=tag)
    await send(producer, topic, ["last"], tags="Aa")
    seen = Collector()
    async with consumer_of(topic, client, seen, tags="Aa || 标签"):
        bodies = await seen.bodies(3)
    assert Counter(["tag Aa", "tag 标签", "last"]) == Counter(bodies)


async def test_only_messages_that_sql_takes_arrive(
    client: ClientConfig, producer: Producer, topic: str, any_rocketmq: RocketMQ
) -> None:
    """V2, K2: pushed and pulled; brokers know the words that came with 5.1.3, or refuse them."""
    for amount in range(10):
        properties = {"amount": str(amount), "城市": "杭州", "region": "eu-west" if amount % 2 else "us"}
        await producer.send(Message(topic, str(amount).encode(), properties=properties))
    seen, sql = Collector(), "amount > 5 OR amount BETWEEN 1 AND 2"
    consumer = PushConsumer(f"readers-of-{topic}", seen, client=client, start=FIRST)
    consumer.subscribe(topic, sql=sql)
    async with consumer:
        assert ["1", "2", "6", "7", "8", "9"] == sorted(await seen.bodies(6))
        await producer.send(Message(topic, b"none"))
        await producer.send(Message(topic, b"more", properties={"amount": "6"}))
        assert "more" == (await seen.bodies(7))[-1]

    async def pulled(sql: str) -> list[str]:
        async with PullConsumer(f"audit-of-{topic}", client=client) as audit:
            replies = [await audit.pull(one, 0, sql=sql, wait=False) for one in await audit.queues(topic)]
        return sorted(message.body.decode() for reply in replies for message in reply.messages)

    assert ["1", "2", "6", "7", "8", "9", "more"] == await pulled(sql)
    recent = PushConsumer(f"recent-{topic}", seen, client=client)
    recent.subscribe(topic, sql="region STARTSWITH 'eu'")
    if any_rocketmq.version == "4.9.4":
        # It reads this as far as «region», which is a filter that nothing passes.
        assert [] == await pulled("region STARTSWITH 'eu'")
        with pytest.raises(SubscriptionInvalid, match="refused the SQL filter"):
            recent.subscribe(topic, sql="NOT region NOT CONTAINS 'x'")
            await recent.__aenter__()
    else:
        assert ["1", "3", "5", "7", "9"] == await pulled("region STARTSWITH 'eu'")


async def test_a_failed_message_comes_again_with_its_topic_and_id(
    client: ClientConfig, producer: Producer, topic: str
) -> None:
    """V2, H1, I1: after the delay of level 1, a second; as long as it waited the first time."""
    seen = Collector()

    async def listener(message: ReceivedMessage, context: ConsumeContext) -> None:
        await seen(message)
        if message.reconsume_times == 0:
            context.delay_level = 1
            raise ValueError("no")

    consumer = PushConsumer(f"readers-of-{topic}", listener, client=client, start=FIRST)
    consumer.subscribe(topic)
    await producer.send(Message(topic, b"it", delay_level=1))
    async with consumer:
        first, second = await seen.wait(2)
    assert first.store_time_ms - first.born_time_ms >= 1_000
    assert second.store_time_ms - first.store_time_ms >= 1_000
    assert (0, 1) == (first.reconsume_times, second.reconsume_times)
    assert (topic, topic, first.message_id) == (first.topic, second.topic, second.message_id)


async def test_a_group_resumes_where_it_was(client: ClientConfig, producer: Producer, topic: str) -> None:
    """V2, D4, F7."""
    for part in (numbered(20), numbered(20, 20)):
        await send(producer, topic, part)
        seen = Collector()
        async with consumer_of(topic, client, seen):
            assert Counter(part) == Counter(await seen.bodies(20))


async def test_large_bodies_of_java_are_read(any_rocketmq: RocketMQ, topic: str, tmp_path: Path) -> None:
    """V2, E1: 2 MiB, which Java compresses."""
    seen = Collector()
    java = Java(any_rocketmq.version, tmp_path)
    async with java.producer(any_rocketmq.address) as producer:
        (sent,) = await producer.send(topic=topic, count=1, bodyBytes=2 << 20, key="k", properties={"城市": "杭州"})
    async with consumer_of(topic, ClientConfig(any_rocketmq.address), seen):
        (message,) = await seen.wait(1)
    assert (2 << 20, sent["msgId"], ("k-0",)) == (len(message.body), message.message_id, message.keys)
    assert "杭州" == message.properties["城市"]


async def test_queues_are_read_by_offset(client: ClientConfig, producer: Producer, topic: str) -> None:
    """V2, F3, L1."""
    await send(producer, topic, numbered(40))
    bodies: list[str] = []
    async with PullConsumer(f"audit-of-{topic}", client=client) as consumer:
        for one in await consumer.queues(topic):
            offset = await consumer.min_offset(one)
            while (result := await consumer.pull(one, offset, wait=False)).status is PullStatus.FOUND:
                bodies += [message.body.decode() for message in result.messages]
                offset = result.next_offset
            assert (PullStatus.NO_NEW, await consumer.max_offset(one)) == (result.status, offset)
            await consumer.commit(one, offset)
            assert offset == await consumer.committed(one)
            assert 0 == await consumer.offset_at(one, 0)
            assert PullStatus.OFFSET_MOVED is (await consumer.pull(one, 10_000, wait=False)).status
            nothing = await consumer.pull(one, 0, tags="no such tag", wait=False)
            assert PullStatus.NO_MATCH is nothing.status
    assert sorted(numbered(40)) == sorted(bodies)


async def test_messages_are_polled(client: ClientConfig, producer: Producer, topic: str) -> None:
    """V2, F4, K1: by a member of a group, which goes on where it was, and from assigned queues, wherever it likes."""

    async def polled(consumer: LitePullConsumer, count: int) -> list[str]:
        messages: list[ReceivedMessage] = []
        while len(messages) < count:
            batch = await consumer.poll(20_000)
            assert batch
            messages += batch
        return sorted(message.body.decode() for message in messages)

    await send(producer, topic, numbered(40))
    await send(producer, topic, ["tagged"], tags="标签")
    group = f"readers-of-{topic}"
    consumer = LitePullConsumer(group, client=client, start=FIRST, auto_commit=False)
    consumer.subscribe(topic)
    async with consumer:
        assert sorted([*numbered(40), "tagged"]) == await polled(consumer, 41)
        await consumer.commit()
    async with LitePullConsumer(group, client=client) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        assert 41 == sum([await consumer.committed(queue) or 0 for queue in queues])
        assert [] == await consumer.poll(1)
        first, *others = queues
        consumer.pause(others)
        for queue in queues:
            await consumer.seek_to_begin(queue)
        count = await consumer.max_offset(first)
        assert count == len(await polled(consumer, count))
        assert [] == await consumer.poll(1)
        consumer.resume(others)
        assert 41 - count == len(await polled(consumer, 41 - count))
        await consumer.assign(queues, "标签")
        for queue in queues:
            await consumer.seek(queue, await consumer.offset_at(queue, 0))
        assert ["tagged"] == await polled(consumer, 1)


def test_the_blocking_twins_consume_too(client: ClientConfig, topic: str) -> None:
    """V2."""
    seen: queue.Queue[str] = queue.Queue()

    async def prepare() -> None:
        async with Producer("shop", client=client) as producer:
            await send(producer, topic, numbered(8))

    asyncio.run(prepare())
    consumer = SyncPushConsumer(
        f"readers-of-{topic}", lambda message: seen.put(message.body.decode()), client=client, start=FIRST
    )
    consumer.subscribe(topic)
    with consumer:
        assert sorted(numbered(8)) == sorted(seen.get(timeout=20) for _ in range(8))
    with SyncPullConsumer("audit", client=client) as audit:
        counts = [len(audit.pull(one, 0, wait=False).messages) for one in audit.queues(topic)]
    assert [2, 2, 2, 2] == counts
