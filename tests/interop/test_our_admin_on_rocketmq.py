"""TernMQ's ``Admin`` on RocketMQ 4.9.4 and 5.2.0: topics, groups, clients, messages, offsets (V2, D6, L1, L2)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from ternmq.admin import Admin
from ternmq.admin.offsets import Move
from ternmq.client.config import ClientConfig
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import ConsumeResult
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.errors import ConfigError, GroupMissing, NotFound, RouteMissing
from ternmq.message import Message, MessageQueue, ReceivedMessage, SendReceipt
from tests.client.listening import Collector
from tests.interop import jvm
from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop

FIRST, LAST = StartPosition.FIRST, StartPosition.LAST
T = TypeVar("T")

_topics = (f"asked-by-python-{number}" for number in itertools.count())


@pytest.fixture
def client(any_rocketmq: RocketMQ) -> ClientConfig:
    return ClientConfig(
        any_rocketmq.address, serialization=jvm.form_for(any_rocketmq.version), persist_offset_interval_ms=100
    )


@pytest.fixture
async def admin(client: ClientConfig) -> AsyncIterator[Admin]:
    async with Admin(config=client) as admin:
        yield admin


@pytest.fixture
async def producer(client: ClientConfig) -> AsyncIterator[Producer]:
    async with Producer("admin-shop", client=client) as producer:
        yield producer


@pytest.fixture
async def topic(admin: Admin) -> str:
    """An unused one, with a single queue; the servers live as long as the session."""
    name = next(_topics)
    await admin.topics.create(name, queues=1)
    return name


async def eventually(ask: Callable[[], Awaitable[T]], expected: T) -> None:
    """RocketMQ builds queues and index, and takes commits, a moment after it has answered."""
    async with asyncio.timeout(30):
        while (answer := await ask()) != expected:
            await asyncio.sleep(0.05)
    assert expected == answer


async def send(producer: Producer, topic: str, count: int) -> list[SendReceipt]:
    return [
        await producer.send(Message(topic, b"%d" % number, tags="new", keys=("all", f"key-{number}")))
        for number in range(count)
    ]


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def test_topics_are_made_shown_and_deleted(admin: Admin, producer: Producer) -> None:
    """V2, D1."""
    topic = next(_topics)
    created = await admin.topics.create(topic, queues=3)
    assert ["broker-a"] == [broker.name for broker in created]
    (listed,) = [found for found in await admin.topics.all() if found.name == topic]
    assert (("broker-a",), 3, 3, 6, False) == (
        listed.brokers,
        listed.read_queues,
        listed.write_queues,
        listed.perm,
        listed.is_system,
    )
    await send(producer, topic, 3)

    async def held() -> int:
        return sum(queue.messages for queue in await admin.topics.status(topic))

    await eventually(held, 3)
    await admin.topics.delete(topic)
    assert topic not in [found.name for found in await admin.topics.all()]
    with pytest.raises(RouteMissing):
        await admin.topics.route(topic)


async def test_messages_are_found_by_every_name_they_have(admin: Admin, producer: Producer, topic: str) -> None:
    """V2, L1: id, unique key, key, place."""
    receipts = await send(producer, topic, 5)

    async def by_key() -> list[bytes]:
        return bodies(await admin.messages.by_key(topic, "all"))

    await eventually(by_key, [b"0", b"1", b"2", b"3", b"4"])
    assert [b"3", b"4"] == bodies(await admin.messages.by_key(topic, "all", count_max=2))
    assert [b"3"] == bodies(await admin.messages.by_key(topic, "key-3"))
    for number, receipt in enumerate(receipts):
        by_id = await admin.messages.by_id(receipt.offset_id)
        assert [by_id] == await admin.messages.by_unique_key(topic, receipt.message_id)
        assert by_id == await admin.messages.by_queue_offset(receipt.queue, receipt.queue_offset)
        assert (b"%d" % number, "broker-a", "new") == (by_id.body, by_id.broker_name, by_id.tags)


async def test_what_is_not_there_is_not_found(admin: Admin, producer: Producer, topic: str) -> None:
    """V2, L1: whatever RocketMQ calls it."""
    (receipt,) = await send(producer, topic, 1)

    assert [] == await admin.messages.by_key(topic, "nothing")
    assert [] == await admin.messages.by_unique_key(topic, "0" * 32)
    with pytest.raises(NotFound, match="has no message at log offset"):
        await admin.messages.by_id(f"{receipt.offset_id[:16]}{2**50:016X}")
    with pytest.raises(NotFound, match="has no message 7"):
        await admin.messages.by_queue_offset(receipt.queue, 7)
    with pytest.raises(NotFound, match="does not exist or is not readable"):
        await admin.messages.by_queue_offset(receipt.queue._replace(queue_id=9), 0)


async def test_times_are_kept_to_the_millisecond(admin: Admin, producer: Producer, topic: str) -> None:
    """V2, L1, L2: of 4.9.4 too, which alone names any message of a millisecond, or a neighbour of the right one."""
    queue = MessageQueue(topic, "broker-a", 0)
    # Many in one millisecond, then a gap.
    for _ in range(4):
        await asyncio.gather(*(producer.send(Message(topic, b"x", keys="k"), queue=queue) for _ in range(10)))
        await asyncio.sleep(0.02)
    await eventually(lambda: count_of(admin, queue), 40)
    times = [(await admin.messages.by_queue_offset(queue, at)).store_time_ms for at in range(40)]
    assert sorted(times) == times

    async def first_since(time_ms: int) -> int | None:
        found = await admin.messages.by_time(topic, time_ms)
        return found[0].queue_offset if found else None

    def expected(time_ms: int) -> int | None:
        return next((at for at, time in enumerate(times) if time >= time_ms), None)

    for time_ms in sorted({0, *times, *(time + 1 for time in times), *(time - 1 for time in times)}):
        assert expected(time_ms) == await first_since(time_ms), (time_ms, times)
    begin, end = times[10], times[30]
    await eventually(
        lambda: keyed_from(admin, topic, begin, end),
        [at for at, time in enumerate(times) if begin <= time <= end],
    )


async def count_of(admin: Admin, queue: MessageQueue) -> int:
    (status,) = await admin.topics.status(queue.topic)
    return status.messages


async def keyed_from(admin: Admin, topic: str, begin_ms: int, end_ms: int) -> list[int]:
    return [found.queue_offset for found in await admin.messages.by_key(topic, "k", begin=begin_ms, end=end_ms)]


async def test_a_group_without_members_is_shown_moved_and_cloned(
    admin: Admin, client: ClientConfig, producer: Producer, topic: str
) -> None:
    """V2, D4, L2: 4.9.4 refuses to move it, so its offsets are committed."""
    group = f"group-of-{topic}"
    queue = MessageQueue(topic, "broker-a", 0)
    receipts = await send(producer, topic, 4)
    times = [(await admin.messages.by_id(receipt.offset_id)).store_time_ms for receipt in receipts]
    seen = Collector()
    async with PushConsumer(group, seen, client=client, start=FIRST) as consumer:
        consumer.subscribe(topic)
        await seen.wait(4)
    await eventually(lambda: admin.offsets.of(group, topic=topic), {queue: 4})

    (progress,) = await admin.groups.progress(group, topic=topic)
    assert (queue, 4, 4, 0) == (progress.queue, progress.broker_offset, progress.consumer_offset, progress.lag)
    back = StartPosition.at(times[2])
    assert [Move(queue, 4, times.index(times[2]))] == await admin.offsets.reset(group, topic, back, dry_run=True)
    for to, expected in ((back, times.index(times[2])), (FIRST, 0), (LAST, 4), (FIRST, 0)):
        (move,) = await admin.offsets.reset(group, topic, to)
        assert expected == move.after
        await eventually(lambda: admin.offsets.of(group, topic=topic), {queue: move.after})
    again = Collector()
    async with PushConsumer(group, again, client=client) as consumer:
        consumer.subscribe(topic)
        assert ["0", "1", "2", "3"] == sorted(await again.bodies(4))

    await eventually(lambda: admin.offsets.of(group, topic=topic), {queue: 4})
    assert [Move(queue, None, 4)] == [
        # 4.9.4 takes a young queue's first message for the progress of a group that has none.
        Move(move.queue, move.before or None, move.after)
        for move in await admin.offsets.clone(group, f"{group}-copy", topic=topic)
    ]
    await eventually(lambda: admin.offsets.of(f"{group}-copy", topic=topic), {queue: 4})
    with pytest.raises(GroupMissing):
        await admin.offsets.reset("nobody-at-all", topic, FIRST)


async def test_a_group_with_members_is_shown_and_moved(
    admin: Admin, client: ClientConfig, producer: Producer, topic: str
) -> None:
    """V2, D3, D4: 4.9.4 hands the offsets to our member, 5.2.0 answers its next pull with them."""
    group = f"group-of-{topic}"
    queue = MessageQueue(topic, "broker-a", 0)
    await send(producer, topic, 3)
    seen = Collector()
    async with PushConsumer(group, seen, client=client, start=FIRST) as consumer:
        consumer.subscribe(topic, "new || old")
        assert ["0", "1", "2"] == await seen.bodies(3)
        await eventually(lambda: admin.offsets.of(group, topic=topic), {queue: 3})

        members = await admin.clients.consumers(group)
        assert members is not None
        assert ("CLUSTERING", "new || old", 1) == (members.model, members.subscriptions[topic], len(members.members))
        assert ("PYTHON", 1) == (members.members[0].language, (await admin.groups.info(group)).members)
        assert ["PYTHON"] == [member.language for member in await admin.clients.producers("admin-shop")]
        with pytest.raises(ConfigError, match="has 1 active members"):
            await admin.offsets.clone(group, group, topic=topic)

        assert [Move(queue, 3, 0)] == await admin.offsets.reset(group, topic, FIRST)
        # 5.2.0 answers a held pull when its time is over.
        await producer.send(Message(topic, b"3", tags="new"))
        async with asyncio.timeout(40):
            while len(seen.seen) < 7:
                await asyncio.sleep(0.05)
        assert {"0", "1", "2", "3"} == {*seen.seen[3:]}
        await eventually(lambda: admin.offsets.of(group, topic=topic), {queue: 4})


async def test_dead_letters_are_listed_sent_again_and_put_away(
    admin: Admin, client: ClientConfig, producer: Producer, topic: str
) -> None:
    """V2, H2: on brokers that have no call for any of it."""
    group = f"group-of-{topic}"
    config = PushConfig(start=FIRST, max_reconsume_times=0)
    known: set[str] = set()

    async def consume(count: int, result: ConsumeResult) -> list[ReceivedMessage]:
        seen = Collector()

        async def listener(message: ReceivedMessage) -> ConsumeResult:
            # A pull that RocketMQ looks at late takes the group's progress back, and what was done comes again.
            if message.offset_id in known:
                return ConsumeResult.SUCCESS
            known.add(message.offset_id)
            await seen(message)
            return result

        consumer = PushConsumer(group, listener, client=client, config=config)
        consumer.subscribe(topic)
        async with consumer:
            return sorted(await seen.wait(count), key=lambda message: message.body)

    async def waiting() -> int:
        return sum(count.waiting for count in await admin.dead_letters.groups() if count.group == group)

    receipts = await send(producer, topic, 3)
    await consume(3, ConsumeResult.RETRY)
    await eventually(waiting, 3)

    letters = sorted(await admin.dead_letters.all(group), key=lambda letter: letter.message.body)
    assert [(topic, receipt.offset_id, 1) for receipt in receipts] == [
        (letter.origin_topic, letter.origin_id, letter.attempts) for letter in letters
    ]
    assert [letters[1]] == await admin.dead_letters.find(group, receipts[1].message_id)
    [one] = await admin.dead_letters.resend(group, [receipts[1].message_id])
    assert one.receipt is not None
    again = await consume(1, ConsumeResult.SUCCESS)
    rest = await admin.dead_letters.resend(group)
    again += await consume(2, ConsumeResult.SUCCESS)

    assert [b"1", b"0", b"2"] == bodies(again)
    assert {(topic, 0)} == {(message.topic, message.reconsume_times) for message in again}
    # The first one sent again is behind the mark now, or left alone: they failed in any order.
    assert {b"0", b"2"} == {each.letter.message.body for each in rest if each.receipt}
    [repeated] = await admin.dead_letters.resend(group, [receipts[1].message_id])
    assert repeated.earlier is not None
    assert one.receipt.offset_id == repeated.earlier.offset_id
    assert (0, 3) == (await waiting(), len(await admin.dead_letters.all(group, handled=True)))

    await send(producer, topic, 1)
    await consume(1, ConsumeResult.RETRY)
    await eventually(waiting, 1)
    assert 1 == sum(each.count for each in await admin.dead_letters.purge(group))
    assert 0 == await waiting()
    assert 4 == sum(each.count for each in await admin.dead_letters.purge(group, for_good=True))
    assert [] == await admin.dead_letters.all(group, handled=True)


async def test_consumers_of_both_languages_tell_how_they_are(
    admin: Admin, producer: Producer, client: ClientConfig, topic: str, any_rocketmq: RocketMQ, tmp_path: Path
) -> None:
    """V2, F10: RocketMQ's broker passes our questions on, to Java's consumers and to ours."""
    seen = Collector()
    receipt = await producer.send(Message(topic, b"it"))
    consumer = PushConsumer(f"ours-{topic}", seen, client=client, start=FIRST, orderly=True)
    consumer.subscribe(topic)
    java = Java(any_rocketmq.version, tmp_path)
    async with consumer, java.consumer(any_rocketmq.address, group=f"theirs-{topic}", topic=topic) as theirs:
        await asyncio.gather(seen.wait(1), theirs.messages(1))
        for group, is_ours in ((f"ours-{topic}", True), (f"theirs-{topic}", False)):
            told = await admin.clients.consume(group, receipt.offset_id)
            assert ("CR_SUCCESS", is_ours) == (told.result, told.orderly)
            info = await admin.clients.info(group, told.client_id, stack=True)
            assert is_ours == info.orderly
            (state,) = [state for state in info.queues if state.queue == receipt.queue]
            assert (1, 0) == (state.progress, state.in_flight)
            assert state.locked or not is_ours  # RocketMQ 5 says so of all queues
            assert ("task rebalance" if is_ours else "ConsumeMessageThread_") in info.stack
            await eventually(
                lambda group=group: admin.clients.offsets(group, topic),  # type: ignore[misc]
                {told.client_id: {receipt.queue: 1}},
            )
        await asyncio.gather(seen.wait(2), theirs.messages(1))
