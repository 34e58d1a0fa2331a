"""Pop consumers on a real cluster (F9)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from ternmq.admin import Admin
from ternmq.client.blocking.pop import SyncPopConsumer
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume import config as consumer_config
from ternmq.client.consume import pop_lot
from ternmq.client.consume.claimed import After, Claimed
from ternmq.client.consume.config import PopConfig
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.offsets import BrokerOffsets, StartPosition
from ternmq.client.consume.pop import PopConsumer
from ternmq.client.consume.pop_source import PopSource
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.consume.push import PushConsumer
from ternmq.client.consume.send_back import Returns
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, NameServersUnreachable, RequestNotSupported, RouteMissing
from ternmq.message import Message, MessageQueue, Property, ReceivedMessage
from ternmq.names import is_retry_topic
from ternmq.wire.bodies.clients import ConsumeType, GroupRequestMode, RequestMode
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.codes import RequestCode
from tests.client.consumer_script import ConsumerScript
from tests.client.listening import Collector, core_of, eventually, numbered

FIRST = StartPosition.FIRST
#: An invisible time that a test can wait for.
SHORT_MS = 300


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invisible times and delays below those that make sense elsewhere."""
    monkeypatch.setattr(consumer_config, "POP_INVISIBLE_LEAST_MS", 1)
    monkeypatch.setattr(pop_lot, "DELAYS_MS", (50,) * 16)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield producer


async def send(producer: Producer, *bodies: str, tags: str = "") -> None:
    for body in bodies:
        await producer.send(Message("orders", body.encode(), tags=tags))


def consumer_of(cluster: EmbeddedCluster, listener: object = None, **more: object) -> PopConsumer:
    consumer = PopConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST, **more)  # type: ignore[arg-type]
    consumer.subscribe("orders")
    return consumer


def popped_queues(consumer: PopConsumer) -> list[MessageQueue]:
    """What it pops from; the group's retry topic it pulls."""
    return [queue for queue in consumer.queues if not is_retry_topic(queue.topic)]


def popping(consumer: PopConsumer) -> PopSource:
    """The only source that pops."""
    (source,) = (source for source in core_of(consumer).sources.all() if isinstance(source, PopSource))
    return source


# --- Done -----------------------------------------------------------------------------------------------------


async def test_each_message_comes_once_and_what_is_not_settled_comes_again(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F9: when the one that hangs is back, the acks of all others have long counted."""
    await send(producer, *numbered(50))
    seen = Collector()
    hang = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.body == b"order-7" and message.reconsume_times == 0:
            await hang.wait()

    async with consumer_of(cluster, listener, invisible_ms=SHORT_MS):
        messages = await seen.wait(51)
        hang.set()
    assert Counter([*numbered(50), "order-7"]) == Counter(seen.seen)
    again = messages[-1]
    assert ("order-7", 1, "orders") == (again.body.decode(), again.reconsume_times, again.topic)
    assert all(Property.POP_CHECKPOINT in message.properties for message in messages)


async def test_a_loop_over_messages_acks_as_it_goes(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9: the same words as with a push consumer."""
    await send(producer, *numbered(10))
    seen = []
    async with consumer_of(cluster, invisible_ms=SHORT_MS) as consumer:
        async for message in consumer:
            seen.append(message.body.decode())
            if message.body == b"order-3" and message.reconsume_times == 0:
                message.retry()
            elif len(seen) == 11:
                message.ack()
                break
    assert Counter([*numbered(10), "order-3"]) == Counter(seen)


async def test_a_batch_listener_may_do_a_part(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1, F9: messages of one pop, from several queues."""
    await send(producer, *numbered(8))
    seen: list[str] = []
    complete = asyncio.Event()

    async def listener(messages: Sequence[ReceivedMessage], context: ConsumeContext) -> None:
        fresh = [message for message in messages if message.reconsume_times == 0]
        if fresh:
            context.done_count = len(messages) - 1
        seen.extend(message.body.decode() for message in messages[: context.done_count])
        if len({*seen}) == 8:
            complete.set()

    async with consumer_of(cluster, listener, batch_max=4), asyncio.timeout(20):
        await complete.wait()
    assert Counter(numbered(8)) == Counter(seen)


async def test_a_plain_listener_runs_in_threads(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1, F9."""
    await send(producer, *numbered(20))
    seen: list[tuple[str, bool]] = []

    def listener(message: ReceivedMessage) -> None:
        seen.append((message.body.decode(), threading.current_thread() is threading.main_thread()))

    async with consumer_of(cluster, listener):
        await eventually(lambda: len(seen) == 20)
    assert Counter((body, False) for body in numbered(20)) == Counter(seen)


# --- Failed ---------------------------------------------------------------------------------------------------


async def test_a_message_that_fails_comes_again_and_then_is_a_dead_letter(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F9, H1."""
    await send(producer, "bad", "good")
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.body == b"bad":
            raise ValueError("no")

    consumer = consumer_of(cluster, listener, config=PopConfig(max_reconsume_times=2))
    async with consumer, PullConsumer("audit", name_servers=cluster.name_servers) as audit:
        await seen.wait(4)
        dead = MessageQueue("%DLQ%billing", "broker-a", 0)
        result = await retried(audit, dead)
    assert [0, 1, 2] == [message.reconsume_times for message in seen.messages if message.body == b"bad"]
    assert [("bad", "orders")] == [(m.body.decode(), m.properties[Property.RETRY_TOPIC]) for m in result]


async def test_a_message_that_no_broker_takes_as_a_dead_letter_is_not_given_up(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9, H1: it comes again, and then becomes one."""
    await send(producer, "bad")
    send_back = Returns.send_back
    refusals = [True]

    async def refused_once(returns: Returns, message: ReceivedMessage, *, delay_level: int = 0) -> bool:
        return False if refusals and refusals.pop() else await send_back(returns, message, delay_level=delay_level)

    async def listener(_message: ReceivedMessage) -> None:
        raise ValueError("no")

    monkeypatch.setattr(Returns, "send_back", refused_once)
    async with (
        consumer_of(cluster, listener, config=PopConfig(max_reconsume_times=1)),
        PullConsumer("audit", name_servers=cluster.name_servers) as audit,
    ):
        result = await retried(audit, MessageQueue("%DLQ%billing", "broker-a", 0))
    assert ([b"bad"], []) == ([message.body for message in result], refusals)


async def retried(audit: PullConsumer, queue: MessageQueue) -> Sequence[ReceivedMessage]:
    """What is in a queue that comes into being with its first message."""
    async with asyncio.timeout(20):
        while True:
            with suppress(RouteMissing):
                if messages := (await audit.pull(queue, 0, wait=False)).messages:
                    return messages
            await asyncio.sleep(0.01)


async def test_a_listener_chooses_the_delay_or_no_more_attempt(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: by its delay level; below 0 it is a dead letter at once."""
    monkeypatch.setattr(pop_lot, "DELAYS_MS", (3_600_000, 3_600_000, 50))
    await send(producer, "again", "never")
    seen = Collector()

    async def listener(message: ReceivedMessage, context: ConsumeContext) -> None:
        await seen(message)
        if message.reconsume_times == 0:
            context.delay_level = 2 if message.body == b"again" else -1
            raise ValueError("no")

    async with consumer_of(cluster, listener), PullConsumer("audit", name_servers=cluster.name_servers) as audit:
        await seen.wait(3)
        result = await retried(audit, MessageQueue("%DLQ%billing", "broker-a", 0))
    assert Counter(["again", "again", "never"]) == Counter(seen.seen)
    assert [b"never"] == [message.body for message in result]


def test_the_delay_grows_with_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: RocketMQ's table, by level or by the number of attempts before."""
    monkeypatch.undo()

    def delay_s(reconsume_times: int, level: int = 0) -> int:
        message = Claimed("t", b"", {}, "b", 0, 0, 0, "", "", 0, "", 0, "", reconsume_times, 0, 0, 0)
        return pop_lot.delay_ms(message, After(level)) // 1000

    assert [10, 30, 60, 7200, 7200] == [delay_s(times) for times in (0, 1, 2, 15, 99)]
    assert [30, 600, 7200] == [delay_s(5, level) for level in (1, 11, 18)]


async def test_a_message_that_came_too_often_is_not_shown_any_more(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F9, H1: each time its consumer died; it becomes a dead letter without being delivered again."""
    await send(producer, "deadly")
    seen = Collector()
    hang = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await hang.wait()

    config = PopConfig(max_reconsume_times=1, invisible_ms=SHORT_MS)
    async with (
        consumer_of(cluster, listener, config=config),
        PullConsumer("audit", name_servers=cluster.name_servers) as audit,
    ):
        result = await retried(audit, MessageQueue("%DLQ%billing", "broker-a", 0))
        hang.set()
    assert ["deadly", "deadly"] == seen.seen
    assert [b"deadly"] == [message.body for message in result]


async def test_who_settles_too_late_says_nothing(
    cluster: EmbeddedCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """F9: the message belongs to another member by then; the broker would refuse."""
    await send(producer, "slow")
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.reconsume_times == 0:
            await eventually(lambda: len(seen.messages) >= 2)
            raise ValueError("too late to fail")
        if message.reconsume_times == 1:
            await eventually(lambda: len(seen.messages) >= 3)

    async with consumer_of(cluster, listener, invisible_ms=SHORT_MS):
        messages = await seen.wait(3)
        # Before the end, which gives back what a busy machine may have popped meanwhile.
        assert not any("cannot change the invisible time" in text for text in caplog.messages)
    assert [0, 1, 2] == [message.reconsume_times for message in messages[:3]]


# --- Members --------------------------------------------------------------------------------------------------


async def test_more_members_than_queues_share_the_work(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9: each pops from the one queue that there is."""
    queue, *_ = await producer.queues("orders")
    await producer.send(Message("orders", b"makes the topic"), queue=queue)
    seen = [Collector() for _ in range(3)]
    async with consumer_of(cluster, seen[0]) as one, consumer_of(cluster, seen[1]), consumer_of(cluster, seen[2]):
        assert [MessageQueue("orders", "broker-a", -1)] == popped_queues(one)
        for number in range(200):
            await producer.send(Message("orders", str(number).encode()), queue=queue)
            if all(collector.messages for collector in seen):
                break
        await eventually(lambda: number + 2 == sum(len(collector.messages) for collector in seen))
    assert all(collector.messages for collector in seen)


async def test_each_broker_is_popped_and_one_that_is_gone_does_not_hold_up_the_others() -> None:
    """F9: the assignment names brokers, and is asked of any of them."""
    async with EmbeddedCluster(brokers=2) as cluster:
        names = cluster.name_servers
        async with Admin(names) as admin:
            await admin.topics.create("orders", queues=2)
        seen = Collector()
        async with consumer_of(cluster, seen) as consumer, Producer("shop", name_servers=names) as producer:
            assert ["broker-a", "broker-b"] == [queue.broker_name for queue in popped_queues(consumer)]
            await send(producer, *numbered(8))
            assert Counter(numbered(8)) == Counter(await seen.bodies(8))
            assert {"broker-a", "broker-b"} == {message.broker_name for message in seen.messages}
            await cluster.brokers[1].__aexit__(None, None, None)
            await send(producer, *numbered(8, 8))
            assert Counter(numbered(16)) == Counter(await seen.bodies(16))


async def test_what_was_taken_and_left_goes_to_others_soon(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9: the end of the block gives back, within a second instead of a minute."""
    await send(producer, *numbered(5))
    async with consumer_of(cluster) as leaving:
        async for message in leaving:
            assert message.reconsume_times == 0
            break
    seen = Collector()
    async with consumer_of(cluster, seen):
        assert Counter(numbered(5)) == Counter(await seen.bodies(5))


async def test_what_a_dead_member_had_comes_to_another(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9: after its invisible time."""
    await send(producer, *numbered(5))
    dying = consumer_of(cluster, invisible_ms=SHORT_MS)
    await dying.__aenter__()
    async for _ in dying:
        break
    assert dying._consumer is not None
    # As if the process were gone: nothing is said any more, and its connections end.
    dying._consumer.instance._running = False
    await dying._consumer.instance.connections.close()
    seen = Collector()
    async with consumer_of(cluster, seen):
        bodies = await seen.bodies(5)
    assert Counter(numbered(5)) == Counter(bodies)
    assert {1} == {message.reconsume_times for message in seen.messages}
    await dying.__aexit__(None, None, None)


async def test_no_more_is_popped_than_can_be_settled(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9, M2: at the limit nothing is asked for until something is settled, or has taken too long."""
    await send(producer, *numbered(40))
    seen = Collector()
    go_on = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await go_on.wait()

    config = PopConfig(unsettled_max=6, count_max=2)
    async with consumer_of(cluster, listener, config=config) as consumer:
        await seen.wait(6)
        reader = popping(consumer)
        # Time enough for another pop, if there were one.
        await send(producer, *numbered(20, 40))
        await eventually(lambda: "6 not settled" in repr(reader))
        assert 6 == len(seen.messages)
        go_on.set()
        assert Counter(numbered(60)) == Counter(await seen.bodies(60))


async def test_hanging_listeners_do_not_stop_the_popping(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9, M2: what takes too long belongs to other members, and makes room."""
    await send(producer, "first", "second")
    seen = Collector()
    hang = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.reconsume_times == 0:
            await hang.wait()

    config = PopConfig(unsettled_max=1, count_max=1, invisible_ms=SHORT_MS)
    async with consumer_of(cluster, listener, config=config):
        await eventually(lambda: {*seen.seen} == {"first", "second"})
        hang.set()


@pytest.mark.parametrize("kind", ["listener", "loop"])
async def test_what_waits_for_a_slow_application_is_bounded_also_when_its_time_is_over(
    cluster: EmbeddedCluster, producer: Producer, kind: str
) -> None:
    """M2: each invisible time brought as much as may be unsettled, and each message came nearer to its end as a dead
    letter, without having been seen."""
    await send(producer, *numbered(20))
    seen = Collector()
    go_on = asyncio.Event()

    async def work(message: ReceivedMessage) -> None:
        await seen(message)
        await go_on.wait()

    async def loop(consumer: PopConsumer) -> None:
        async for message in consumer:
            await work(message)

    config = PopConfig(threads=1, unsettled_max=4, count_max=2, invisible_ms=SHORT_MS)
    async with consumer_of(cluster, work if kind == "listener" else None, config=config) as consumer:
        looping = asyncio.create_task(loop(consumer)) if kind == "loop" else None
        await seen.wait(1)
        await asyncio.sleep(5 * SHORT_MS / 1000)
        outlet: Any = core_of(consumer).outlet
        # One of the first four is being worked on, and has made room for one pop.
        assert 5 == len(outlet._waiting if looping else outlet._workers._waiting)
        go_on.set()
        await eventually(lambda: {*numbered(20)} == {*seen.seen})
    assert 2 >= max(message.reconsume_times for message in seen.messages)
    if looping is not None:
        await looping


async def test_tags_of_one_hash_are_told_apart(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9, K1: what the broker lets through by mistake is acked unseen."""
    await send(producer, "wrong", tags="BB")
    await send(producer, "right", tags="Aa")
    seen = Collector()
    consumer = PopConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST, invisible_ms=SHORT_MS)
    consumer.subscribe("orders", "Aa")
    async with consumer:
        assert ["right"] == await seen.bodies(1)
        reader = popping(consumer)
        await eventually(lambda: " 0 not settled" in repr(reader))


async def test_sql_chooses_what_is_popped(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9, K2: the pop brings the expression along."""
    for amount in (3, 7, 9):
        await producer.send(Message("orders", str(amount).encode(), properties={"amount": str(amount)}))
    seen = Collector()
    consumer = PopConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders", sql="amount > 5")
    async with consumer:
        assert {"7", "9"} == {*await seen.bodies(2)}


async def test_a_namespace_is_not_seen(cluster: EmbeddedCluster) -> None:
    """F9: acks and retries find their way back through it."""
    client = ClientConfig(cluster.name_servers, namespace="team")
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.reconsume_times == 0:
            raise ValueError("again")

    consumer = PopConsumer("billing", listener, client=client, start=FIRST)
    consumer.subscribe("orders")
    async with Producer("shop", client=client) as producer:
        await send(producer, "it")
        async with consumer:
            first, second = await seen.wait(2)
    assert [("orders", 0), ("orders", 1)] == [(m.topic, m.reconsume_times) for m in (first, second)]


# --- What was sent back before ---------------------------------------------------------------------------------


async def test_what_a_pushing_member_sent_back_comes_after_the_switch_to_pop(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F9, H1: as with Java's, the group's retry topic is pulled beside the pops; what fails there goes back again."""
    await send(producer, "bad")
    before, after = Collector(), Collector()

    async def push(message: ReceivedMessage, context: ConsumeContext) -> None:
        await before(message)
        context.delay_level = 1
        raise ValueError("not today")

    async def pop(message: ReceivedMessage, context: ConsumeContext) -> None:
        await after(message)
        if message.reconsume_times == 1:
            context.delay_level = 1
            raise ValueError("not yet")

    pushing = PushConsumer("billing", push, name_servers=cluster.name_servers, start=FIRST)
    pushing.subscribe("orders")
    async with pushing:
        await before.wait(1)
    async with consumer_of(cluster, pop):
        await send(producer, "good")
        await after.wait(3)
    retry = MessageQueue("%RETRY%billing", "broker-a", 0)
    assert Counter([("good", 0, "orders"), ("bad", 1, "orders"), ("bad", 2, "orders")]) == Counter(
        (message.body.decode(), message.reconsume_times, message.topic) for message in after.messages
    )
    async with ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        assert 2 == await BrokerOffsets(instance, "billing").load(retry)


async def test_one_member_pulls_the_retries_of_the_group_and_another_takes_over(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F9, G1: while all members pop, the retry topic has one reader."""
    await send(producer, "makes the topic")
    retry = MessageQueue("%RETRY%billing", "broker-a", 0)
    async with consumer_of(cluster, Collector()) as one, AsyncExitStack() as stack:
        two = await stack.enter_async_context(consumer_of(cluster, Collector()))
        await eventually(lambda: [retry] == [queue for queue in (*one.queues, *two.queues) if queue == retry])
        await stack.aclose()
        await eventually(lambda: retry in one.queues)


# --- The group's mode -----------------------------------------------------------------------------------------


async def set_mode(cluster: EmbeddedCluster, mode: RequestMode) -> None:
    body = encode(GroupRequestMode(topic="orders", consumer_group="billing", mode=mode))
    async with ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        route = await instance.routes.of("orders")
        address = route.address("broker-a")
        assert address is not None
        await instance.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body)


async def test_an_administrator_has_the_last_word_on_the_mode(
    cluster: EmbeddedCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """F9: a consumer switches its group at its start only."""
    await send(producer, "one")
    seen = Collector()
    async with consumer_of(cluster, seen) as consumer:
        assert ["one"] == await seen.bodies(1)
        await set_mode(cluster, RequestMode.PULL)
        await eventually(lambda: [] == popped_queues(consumer))
        assert "an administrator has switched group " in caplog.text
        await set_mode(cluster, RequestMode.POP)
        await eventually(lambda: 1 == len(popped_queues(consumer)))
        await send(producer, "two")
        assert ["one", "two"] == await seen.bodies(2)


async def test_a_subscription_made_while_running_is_popped(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9, G1: and one that is given up is not."""
    await send(producer, "old")
    async with PopConsumer("billing", name_servers=cluster.name_servers, start=FIRST) as consumer:
        seen = consumer.listener(Collector())
        consumer.subscribe("orders")
        await consumer.ready()
        assert ["old"] == await seen.bodies(1)
        consumer.unsubscribe("orders")
        await consumer.ready()
        assert [] == popped_queues(consumer)


async def test_a_broker_without_pop_is_an_error_that_says_what_to_use() -> None:
    """F9: RocketMQ 4.9."""
    async with ConsumerScript().running() as script:
        consumer = PopConsumer("billing", Collector(), name_servers=script.address)
        consumer.subscribe("orders")
        with pytest.raises(RequestNotSupported, match=r"does not support pop, .* use a PushConsumer"):
            await consumer.__aenter__()


async def test_a_name_server_that_cannot_be_reached_is_an_error_at_once() -> None:
    """F9."""
    consumer = PopConsumer("billing", Collector(), name_servers="127.0.0.1:1")
    consumer.subscribe("orders")
    with pytest.raises(NameServersUnreachable):
        async with consumer:
            pass


async def test_tools_see_a_member_that_pops(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F9, F10."""
    await send(producer, "it")
    seen = Collector()
    go_on = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await go_on.wait()

    async with consumer_of(cluster, listener) as consumer:
        await seen.wait(1)
        member = consumer._consumer
        assert member is not None
        info = member.running_info()
        assert [1] == [queue.wait_ack_count for queue in info.mq_pop_table.values()]
        assert ["%RETRY%billing"] == [decode(key.encode(), Queue).topic for key in info.mq_table]
        assert {} == member.offsets("orders")
        assert ConsumeType.POP is member.heartbeat_data().consume_type
        member.reset({MessageQueue("orders", "broker-a", 0): 0})
        go_on.set()


def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9."""
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="invalid invisible_ms 4999"):
        PopConfig(invisible_ms=4_999)
    with pytest.raises(ConfigError, match="invalid count_max 33: expected 1 to 32"):
        PopConfig(count_max=33)
    with pytest.raises(ConfigError, match="reset the offsets of the group"):
        PopConfig(start=StartPosition.at(5))
    with pytest.raises(ConfigError, match="invalid threads 0"):
        PopConfig(threads=0)
    with pytest.raises(ConfigError, match="invalid share_queues -1"):
        PopConfig(share_queues=-1)


def test_the_blocking_twin_does_the_same() -> None:
    """F9: a listener in threads, and a loop."""
    with EmbeddedCluster() as cluster:
        names = cluster.name_servers

        async def prepare() -> None:
            async with Producer("shop", name_servers=names) as producer:
                await send(producer, *numbered(10))

        asyncio.run(prepare())
        seen: list[str] = []
        complete = threading.Event()

        def listener(message: ReceivedMessage) -> None:
            seen.append(message.body.decode())
            if len(seen) == 10:
                complete.set()

        consumer = SyncPopConsumer("billing", listener, name_servers=names, start=FIRST)
        consumer.subscribe("orders")
        with consumer:
            assert complete.wait(20)
        assert Counter(numbered(10)) == Counter(seen)
        audit = SyncPopConsumer("audit", name_servers=names, start=FIRST)
        audit.subscribe("orders")
        bodies = []
        with audit:
            for message in audit:
                bodies.append(message.body.decode())
                if len(bodies) == 10:
                    message.ack()
                    break
    assert Counter(numbered(10)) == Counter(bodies)
