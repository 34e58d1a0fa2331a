"""Lite pull consumers on a real cluster (F4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest

from ternmq.admin import Admin
from ternmq.client.blocking.pull import SyncLitePullConsumer
from ternmq.client.config import ClientConfig
from ternmq.client.consume import config as consumer_config
from ternmq.client.consume.config import FlowLimits, LitePullConfig
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, NameServersUnreachable, NotRunning, RouteMissing
from ternmq.message import Message, MessageQueue, ReceivedMessage
from ternmq.wire.bodies.clients import ConsumeType
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import PullSysflag
from tests.client.consumer_script import ConsumerScript, pulled, record
from tests.client.listening import core_of, eventually, numbered, pull_sources

FIRST = StartPosition.FIRST
FAR_MS = 20_000


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield producer


@pytest.fixture
async def consumer(cluster: EmbeddedCluster) -> AsyncIterator[LitePullConsumer]:
    async with LitePullConsumer("audit", name_servers=cluster.name_servers, start=FIRST) as consumer:
        yield consumer


async def send(producer: Producer, *bodies: str, tags: str = "", queue: MessageQueue | None = None) -> None:
    for body in bodies:
        await producer.send(Message("orders", body.encode(), tags=tags), queue=queue)


async def polled(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    """The next ``count`` messages; more is an error."""
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        batch = await consumer.poll(FAR_MS)
        assert batch, f"{len(messages)} of {count} messages came"
        messages += batch
    assert count == len(messages)
    return messages


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


async def progress(cluster: EmbeddedCluster, group: str = "audit") -> int:
    """The sum of what brokers know of a group's progress."""
    async with PullConsumer(group, name_servers=cluster.name_servers) as consumer:
        return sum([await consumer.committed(queue) or 0 for queue in await consumer.queues("orders")])


# --- Subscribed -----------------------------------------------------------------------------------------------


async def test_a_subscriber_gets_all_messages_when_it_asks(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F4: those of one queue in order."""
    await send(producer, *numbered(100))
    consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")
    async with consumer:
        messages = await polled(consumer, 100)
        assert [] == await consumer.poll(0)
        await send(producer, "next")
        assert ["next"] == bodies(await consumer.poll(FAR_MS))
    assert Counter(numbered(100)) == Counter(bodies(messages))
    for queue_id in range(4):
        offsets = [message.queue_offset for message in messages if message.queue_id == queue_id]
        assert list(range(25)) == offsets


async def test_a_subscription_made_while_running_is_taken_up_and_let_go(
    producer: Producer, consumer: LitePullConsumer
) -> None:
    """F4, K1."""
    await send(producer, "a", tags="A")
    await send(producer, "b", tags="B")
    consumer.subscribe("orders", "B")
    await consumer.ready()
    assert 4 == len(consumer.assignment)
    assert ["b"] == bodies(await consumer.poll(FAR_MS))
    consumer.unsubscribe("orders")
    await consumer.ready()
    assert [] == consumer.assignment


async def test_members_divide_the_queues(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F4, G1: and the one that stays goes on where the other was."""
    await send(producer, *numbered(40))
    client = ClientConfig(cluster.name_servers)
    async with AsyncExitStack() as stack:
        members = [LitePullConsumer("audit", client=client, start=FIRST) for _ in range(2)]
        staying, leaving = members
        for member in members:
            member.subscribe("orders")
        await stack.enter_async_context(staying)
        async with leaving:
            await eventually(lambda: [2, 2] == [len(member.assignment) for member in members])
            theirs = await polled(leaving, 20)
            await send(producer, *numbered(40, 40))
            theirs += await polled(leaving, 20)
        ours: list[ReceivedMessage] = []
        while len({*bodies(ours + theirs)}) < 80:
            ours += await staying.poll(FAR_MS)
    assert Counter(numbered(80)) == Counter(bodies(ours + theirs))


async def test_one_that_assigns_is_no_member_of_the_group(
    cluster: EmbeddedCluster, producer: Producer, consumer: LitePullConsumer
) -> None:
    """F4, G1: or members that divide queues would leave some to it."""
    await send(producer, "it")
    await consumer.assign(await consumer.queues("orders"))
    assert ["it"] == bodies(await consumer.poll(FAR_MS))
    async with (
        Admin(cluster.name_servers) as admin,
        LitePullConsumer("lake", name_servers=cluster.name_servers) as lake,
    ):
        lake.subscribe("orders")
        await lake.ready()
        members = await admin.clients.consumers("lake")
        assert members is not None
        assert (1, {"orders": "*"}) == (len(members.members), members.subscriptions)
        assert await admin.clients.consumers("audit") is None


async def test_subscribe_or_assign_but_not_both(producer: Producer, consumer: LitePullConsumer) -> None:
    """F4."""
    await send(producer, "it")
    queues = await consumer.queues("orders")
    await consumer.assign(queues)
    with pytest.raises(ConfigError, match="has assigned queues; use either"):
        consumer.subscribe("orders")
    await consumer.assign([])
    consumer.subscribe("orders")
    with pytest.raises(ConfigError, match="has subscriptions; use either"):
        await consumer.assign(queues)


# --- Assigned -------------------------------------------------------------------------------------------------


async def test_assigned_queues_are_read_and_no_others(producer: Producer, consumer: LitePullConsumer) -> None:
    """F4: a second list takes the place of the first."""
    await send(producer, *numbered(8))
    first, second, *_ = queues = await consumer.queues("orders")
    await consumer.assign([first, second])
    assert [first, second] == consumer.assignment
    assert {0, 1} == {message.queue_id for message in await polled(consumer, 4)}
    await consumer.assign(queues[1:])
    # What the second queue gave is done, and not read again.
    assert {2, 3} == {message.queue_id for message in await polled(consumer, 4)}
    assert queues[1:] == consumer.assignment


async def test_assigned_queues_may_be_filtered(producer: Producer, consumer: LitePullConsumer) -> None:
    """F4, K1: the pulls bring the filter along."""
    await send(producer, "a", "b", tags="A")
    await send(producer, "c", "d", tags="B")
    await consumer.assign(await consumer.queues("orders"), "B")
    assert {"c", "d"} == {*bodies(await polled(consumer, 2))}


async def test_a_queue_that_cannot_be_read_is_an_error(producer: Producer, consumer: LitePullConsumer) -> None:
    """F4."""
    await send(producer, "it")
    with pytest.raises(RouteMissing):
        await consumer.assign([MessageQueue("no-such-topic", "broker-a", 0)])
    assert [] == consumer.assignment


async def test_a_message_whose_block_raises_is_not_done(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F4, F7: there are no retries, so progress must not pass it: the next start gets it again."""
    queue, *_ = await producer.queues("orders")
    await send(producer, *numbered(3), queue=queue)

    async def run() -> list[str]:
        seen: list[str] = []
        with pytest.raises(ValueError, match="no"):
            async with LitePullConsumer("lake", name_servers=cluster.name_servers, start=FIRST) as consumer:
                await consumer.assign([queue])
                async with asyncio.timeout(20):
                    async for message in consumer:
                        with message:
                            seen += bodies([message])
                            if message.queue_offset >= 1:
                                raise ValueError("no")
        return seen

    assert numbered(2) == await run()
    assert numbered(1, 1) == await run()


async def test_a_message_whose_block_raises_is_done_when_more_is_asked_for(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F4: an application that goes on has decided so; the queue does not wait for ever."""
    queue, *_ = await producer.queues("orders")
    await send(producer, *numbered(3), queue=queue)
    async with LitePullConsumer("lake", name_servers=cluster.name_servers, start=FIRST) as consumer:
        await consumer.assign([queue])
        async for message in consumer:
            with suppress(ValueError), message:
                raise ValueError("no")
            if message.queue_offset == 2:
                break
        await consumer.commit()
        assert 3 == await consumer.committed(queue)


# --- Places ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def queue(producer: Producer, consumer: LitePullConsumer) -> MessageQueue:
    """The only queue that is assigned, with messages ``order-0`` to ``order-9``."""
    queue, *_ = await producer.queues("orders")
    await send(producer, *numbered(10), queue=queue)
    await consumer.assign([queue])
    return queue


async def test_seek_goes_back_and_forth(consumer: LitePullConsumer, queue: MessageQueue) -> None:
    """F4."""
    assert numbered(10) == bodies(await polled(consumer, 10))
    await consumer.seek(queue, 7)
    assert numbered(3, 7) == bodies(await polled(consumer, 3))
    await consumer.seek_to_begin(queue)
    assert numbered(10) == bodies(await polled(consumer, 10))
    await consumer.seek_to_begin(queue)
    await consumer.seek_to_end(queue)
    assert [] == await consumer.poll(0)
    assert (0, 10) == (await consumer.min_offset(queue), await consumer.max_offset(queue))


async def test_seek_refuses_what_is_not_there(consumer: LitePullConsumer, queue: MessageQueue) -> None:
    """F4."""
    with pytest.raises(ConfigError, match=r"invalid offset 11 of .*: expected 0 to 10"):
        await consumer.seek(queue, 11)
    with pytest.raises(ConfigError, match=r"invalid offset -1"):
        await consumer.seek(queue, -1)
    with pytest.raises(ConfigError, match="is not assigned to this consumer"):
        await consumer.seek(queue._replace(queue_id=3), 0)


async def test_a_place_is_found_by_time(consumer: LitePullConsumer, queue: MessageQueue) -> None:
    """F4, L1."""
    last = (await polled(consumer, 10))[-1]
    assert [0, 10] == [await consumer.offset_at(queue, time_ms) for time_ms in (0, last.store_time_ms + 1)]


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(
    producer: Producer, consumer: LitePullConsumer, queue: MessageQueue
) -> None:
    """F4: neither what was fetched before, nor what comes meanwhile; others go on."""
    other = queue._replace(queue_id=1)
    await consumer.assign([queue, other])
    await eventually(lambda: bool(held(consumer, queue)))
    consumer.pause([queue])
    consumer.pause([queue])
    await send(producer, "while paused", queue=queue)
    await send(producer, "other", queue=other)
    assert ["other"] == bodies(await consumer.poll(FAR_MS))
    assert [] == await consumer.poll(0)
    waiting = asyncio.create_task(consumer.poll(FAR_MS))
    await asyncio.sleep(0)
    consumer.resume([queue])
    assert [*numbered(10), "while paused"] == bodies(await waiting) + bodies(await polled(consumer, 1))


def held(consumer: LitePullConsumer, queue: MessageQueue) -> int:
    """How many messages of a queue are fetched and not done."""
    return next(len(source.held) for source in pull_sources(consumer) if source.queue == queue)


async def test_a_paused_queue_may_be_moved_and_let_go(consumer: LitePullConsumer, queue: MessageQueue) -> None:
    """F4: it stays paused at its new place, and is not paused any more when it is assigned anew."""
    consumer.pause([queue])
    await consumer.seek(queue, 8)
    assert [] == await consumer.poll(0)
    consumer.resume([queue])
    assert numbered(2, 8) == bodies(await polled(consumer, 2))
    consumer.pause([queue])
    await consumer.assign([])
    await consumer.assign([queue])
    await consumer.seek(queue, 9)
    assert numbered(1, 9) == bodies(await polled(consumer, 1))


# --- Progress -------------------------------------------------------------------------------------------------


async def test_what_was_polled_is_done_with_the_next_poll(
    cluster: EmbeddedCluster, consumer: LitePullConsumer, queue: MessageQueue
) -> None:
    """F4, F7: progress never passes what the application may still work on."""
    assert 10 == len(await consumer.poll(FAR_MS))
    sources = core_of(consumer).sources
    await sources.save(wait=True)
    assert 0 == await progress(cluster)
    assert [] == await consumer.poll(0)
    await sources.save(wait=True)
    assert (10, 10) == (await progress(cluster), await consumer.committed(queue))


async def test_commit_says_that_all_is_done(
    cluster: EmbeddedCluster, consumer: LitePullConsumer, queue: MessageQueue
) -> None:
    """F4, D4: or tells other places."""
    await polled(consumer, 10)
    await consumer.commit()
    assert 10 == await progress(cluster)
    await consumer.commit({queue: 4})
    assert 4 == await progress(cluster)


async def test_progress_is_stored_at_the_end_unless_the_block_fails(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F4, F7: what was polled last is done when the block ends well."""
    await send(producer, *numbered(10))
    config = LitePullConfig(start=FIRST, batch_max=100)

    async def consume(*, fail: bool) -> list[str]:
        consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, config=config)
        consumer.subscribe("orders")
        async with consumer:
            messages = bodies(await polled(consumer, 10))
            if fail:
                raise ValueError(messages)
        return messages

    for _ in range(2):
        with pytest.raises(ValueError, match="order-9"):
            await consume(fail=True)
    # Batches before the last one were done, as the next was asked for.
    done = await progress(cluster)
    assert done < 10
    consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        await polled(consumer, 10 - done)
    assert 10 == await progress(cluster)


async def test_without_auto_commit_nothing_is_stored_but_by_hand(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F4: not when queues are let go, and not at the end."""
    await send(producer, *numbered(8))
    for _ in range(2):
        consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, start=FIRST, auto_commit=False)
        consumer.subscribe("orders")
        async with consumer:
            assert 8 == len(await polled(consumer, 8))
            consumer.unsubscribe("orders")
            await consumer.ready()
            consumer.subscribe("orders")
            await polled(consumer, 8)
    assert 0 == await progress(cluster)


async def test_progress_is_stored_every_few_seconds(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: RocketMQ's 5 s, here without the wait."""
    await send(producer, *numbered(4))
    monkeypatch.setattr(consumer_config, "AUTO_COMMIT_LEAST_MS", 1)
    config = LitePullConfig(start=FIRST, auto_commit_interval_ms=1)
    consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        await polled(consumer, 4)
        assert [] == await consumer.poll(0)
        async with asyncio.timeout(20):
            while await progress(cluster) < 4:
                await asyncio.sleep(0.001)


async def test_a_group_goes_on_where_it_was(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F4, D4."""
    for part in (numbered(20), numbered(20, 20)):
        await send(producer, *part)
        consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("orders")
        async with consumer:
            assert Counter(part) == Counter(bodies(await polled(consumer, 20)))


@pytest.mark.parametrize("on_server", [True, False])
async def test_a_tool_moves_a_running_consumer(on_server: bool) -> None:
    """F4, D4: by the answer to a pull, or by a call."""
    async with EmbeddedCluster(settings={"useServerSideResetOffset": on_server}) as cluster:
        names = cluster.name_servers
        consumer = LitePullConsumer("audit", name_servers=names, start=FIRST)
        consumer.subscribe("orders")
        async with Producer("shop", name_servers=names) as producer, Admin(names) as admin:
            await send(producer, *numbered(8))
            async with consumer:
                await polled(consumer, 8)
                await consumer.commit()
                await admin.offsets.reset("audit", "orders", FIRST)
                assert Counter(numbered(8)) == Counter(bodies(await polled(consumer, 8)))


# --- Polling --------------------------------------------------------------------------------------------------


async def test_batches_come_one_after_the_other(
    cluster: EmbeddedCluster, producer: Producer, consumer: LitePullConsumer, queue: MessageQueue
) -> None:
    """F4: ``batch_max`` cuts what a pull brought."""
    config = LitePullConfig(start=FIRST, batch_max=4)
    async with LitePullConsumer("lake", name_servers=cluster.name_servers, config=config) as lake:
        await lake.assign([queue])
        batches: list[list[str]] = []
        while sum(map(len, batches)) < 10:
            batches.append(bodies(await lake.poll(FAR_MS)))
    assert [numbered(4), numbered(4, 4), numbered(2, 8)] == batches


async def test_a_loop_gets_one_message_at_a_time_and_the_last_is_done_with_the_block(
    cluster: EmbeddedCluster, consumer: LitePullConsumer, queue: MessageQueue
) -> None:
    """F4, F7: as in a push consumer, a message is done when the next one is asked for."""
    seen = []
    async with LitePullConsumer("lake", name_servers=cluster.name_servers, start=FIRST) as lake:
        await lake.assign([queue])
        async for message in lake:
            seen.append(message.queue_offset)
            await core_of(lake).sources.save(wait=True)
            assert message.queue_offset == await lake.committed(queue)
            if len(seen) == 3:
                break
    async with LitePullConsumer("lake", name_servers=cluster.name_servers) as again:
        assert ([0, 1, 2], 3) == (seen, await again.committed(queue))


async def test_the_end_of_the_block_ends_a_loop(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F4."""
    await send(producer, "it")
    consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")
    seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def loop() -> None:
        async for message in consumer:
            await seen.put(message)

    async with consumer, asyncio.timeout(20):
        looping = asyncio.create_task(loop())
        assert ["it"] == bodies([await seen.get()])
    await looping
    with pytest.raises(NotRunning):
        await consumer.poll()


async def test_one_poll_at_a_time(consumer: LitePullConsumer, queue: MessageQueue) -> None:
    """F4: a second would say that what the first gave is done."""
    await polled(consumer, 10)
    waiting = asyncio.create_task(consumer.poll(FAR_MS))
    await asyncio.sleep(0)
    with pytest.raises(ConfigError, match="another poll"):
        await consumer.poll(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [] == await consumer.poll(1)


async def test_a_consumer_reads_no_further_ahead_than_its_limits(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F4, M2: of all its queues together; polling makes room."""
    await send(producer, *numbered(80))
    config = LitePullConfig(start=FIRST, limits=FlowLimits(total_count=8), pull_count_max=2, batch_max=1)
    consumer = LitePullConsumer("audit", name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        await eventually(lambda: [2] * 4 == [len(source.held) for source in pull_sources(consumer)])
        messages = await polled(consumer, 80)
    assert Counter(numbered(80)) == Counter(bodies(messages))


async def test_queues_of_a_topic_that_change_are_told(
    cluster: EmbeddedCluster, producer: Producer, consumer: LitePullConsumer
) -> None:
    """F4: consumers with assigned queues hear of new ones; a listener that fails does no harm."""
    await send(producer, "it")
    told: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    def fails(topic: str, queues: list[MessageQueue]) -> None:
        raise ValueError(topic)

    async def listens(topic: str, queues: list[MessageQueue]) -> None:
        await consumer.assign(queues)
        told.put_nowait((topic, len(consumer.assignment)))

    await consumer.watch_queues("orders", fails)
    await consumer.watch_queues("orders", listens)
    async with Admin(cluster.name_servers) as admin:
        await admin.topics.create("orders", queues=6)
    instance, _ = consumer._running()
    await instance.routes.refresh("orders")
    async with asyncio.timeout(20):
        assert ("orders", 6) == await told.get()
    with pytest.raises(RouteMissing):
        await consumer.watch_queues("no-such-topic", fails)


async def test_a_namespace_is_not_seen(cluster: EmbeddedCluster) -> None:
    """F4."""
    client = ClientConfig(cluster.name_servers, namespace="team")
    async with Producer("shop", client=client) as producer, LitePullConsumer("audit", client=client) as consumer:
        await send(producer, *numbered(4))
        queues = await consumer.queues("orders")
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_begin(queue)
        messages = await polled(consumer, 4)
        assert {"orders"} == {message.topic for message in messages}
        assert queues == consumer.assignment


# --- The wire -------------------------------------------------------------------------------------------------


async def test_a_broker_that_does_not_know_lite_pulls_is_asked_by_plain_ones() -> None:
    """F4: RocketMQ 4.9. Pulls bring the subscription along and commit nothing."""
    lite, plain = RequestCode.LITE_PULL_MESSAGE, RequestCode.PULL_MESSAGE
    async with ConsumerScript().running() as script:
        script.say(plain, pulled(ResponseCode.SUCCESS, 1, record(0)))
        consumer = LitePullConsumer("audit", name_servers=script.address, start=FIRST)
        consumer.subscribe("orders", "*")
        async with consumer:
            assert ["it"] == bodies(await consumer.poll(FAR_MS))
            asked = await script.wait_for(plain, 2)
            beat = script.heartbeats[-1].consumer_data_set[0]
    assert [] == script.headers(lite)
    flags = PullSysflag.SUSPEND | PullSysflag.SUBSCRIPTION | PullSysflag.LITE_PULL
    assert [(flags, "*", 20_000, 0), (flags, "*", 20_000, 0)] == [
        (pull.sysflag, pull.subscription, pull.suspend_timeout_ms, pull.commit_offset) for pull in asked
    ]
    assert (ConsumeType.ACTIVELY, ["orders"]) == (
        beat.consume_type,
        [subscription.topic for subscription in beat.subscription_data_set],
    )


async def test_a_name_server_that_cannot_be_reached_is_an_error_at_once() -> None:
    """F4."""
    consumer = LitePullConsumer("audit", name_servers="127.0.0.1:1")
    consumer.subscribe("orders")
    with pytest.raises(NameServersUnreachable):
        async with consumer:
            pass


def test_settings_that_cannot_be_are_refused() -> None:
    """F4."""
    with pytest.raises(ConfigError, match="invalid auto_commit_interval_ms 999"):
        LitePullConfig(auto_commit_interval_ms=999)
    with pytest.raises(ConfigError, match="invalid batch_max 0"):
        LitePullConfig(batch_max=0)
    with pytest.raises(ConfigError, match="invalid poll_timeout_ms -1"):
        LitePullConfig(poll_timeout_ms=-1)


def test_the_blocking_twin_does_the_same() -> None:
    """F4: from threads, subscribed and assigned."""
    with EmbeddedCluster() as cluster:
        names = cluster.name_servers

        async def prepare() -> None:
            async with Producer("shop", name_servers=names) as producer:
                await send(producer, *numbered(40))

        asyncio.run(prepare())
        consumer = SyncLitePullConsumer("audit", name_servers=names, start=FIRST)
        consumer.subscribe("orders")
        with consumer:
            seen: list[str] = []
            for message in consumer:
                seen += bodies([message])
                if len(seen) == 40:
                    break
            assert Counter(numbered(40)) == Counter(seen)
            consumer.commit()
            assert 4 == len(consumer.assignment)
        with SyncLitePullConsumer("audit", name_servers=names) as audit:
            first, *_ = audit.queues("orders")
            audit.assign([first])
            assert (10, []) == (audit.committed(first), audit.poll(1))
            audit.seek_to_begin(first)
            audit.pause([first])
            assert [] == audit.poll(1)
            audit.resume([first])
            assert 10 == len(audit.poll(FAR_MS))
            audit.seek(first, 9)
            assert 1 == len(audit.poll(FAR_MS))
            audit.seek_to_end(first)
            assert (0, 10, 0) == (audit.min_offset(first), audit.max_offset(first), audit.offset_at(first, 0))
        with pytest.raises(NotRunning):
            audit.poll()
