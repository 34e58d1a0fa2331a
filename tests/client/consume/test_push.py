"""Push consumers on a real cluster (F1, F5, F6, F7, G1, K1)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.client.config import ClientConfig
from ternmq.client.consume.config import FlowLimits, PushConfig
from ternmq.client.consume.listener import ConsumeContext, ConsumeHook, ConsumeResult
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, InvalidName, NameServersUnreachable, NotRunning
from ternmq.message import Message, ReceivedMessage
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.config import StoreConfig
from ternmq.wire.bodies.clients import MessageModel
from tests.client.listening import Collector, eventually, numbered
from tests.no_delays import NO_DELAYS

FIRST = StartPosition.FIRST


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield producer


async def send(producer: Producer, *bodies: str, topic: str = "orders", tags: str = "") -> None:
    for body in bodies:
        await producer.send(Message(topic, body.encode(), tags=tags))


async def test_a_listener_gets_every_message_once(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1."""
    seen = Collector()
    consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")
    await send(producer, *numbered(50))
    async with consumer:
        await send(producer, *numbered(50, 50))
        bodies = await seen.bodies(100)
    assert Counter(numbered(100)) == Counter(bodies)
    first = seen.messages[0]
    assert ("orders", "broker-a", 0) == (first.topic, first.broker_name, first.reconsume_times)


async def test_a_subscription_made_while_running_is_taken_up(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1, G1: the form that most programs use."""
    await send(producer, "old", topic="first")
    await send(producer, "old", topic="second")
    async with PushConsumer("billing", name_servers=cluster.name_servers) as consumer:
        seen = consumer.listener(Collector())
        consumer.subscribe("first")
        consumer.subscribe("second")
        await consumer.ready()
        assert {"first", "second"} <= {queue.topic for queue in consumer.queues}
        consumer.unsubscribe("first")
        await consumer.ready()
        assert "first" not in {queue.topic for queue in consumer.queues}
        await send(producer, "unwanted", topic="first")
        await send(producer, "wanted", topic="second")
        bodies = await seen.bodies(3)
    assert Counter(["old", "old", "wanted"]) == Counter(bodies)


async def test_messages_can_be_iterated_and_are_done_when_the_next_is_asked_for(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F1, F7: the one that the loop was left with comes again."""
    await producer.send_batch([Message("orders", body.encode()) for body in numbered(5)])

    async def take(count: int) -> list[str]:
        bodies = []
        consumer = PushConsumer("billing", name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("orders")
        async with asyncio.timeout(20), consumer:
            async for message in consumer:
                bodies.append(message.body.decode())
                if len(bodies) == count:
                    break
        return bodies

    assert numbered(3) == await take(3)
    assert numbered(3, 2) == await take(3)


async def test_a_message_used_as_a_block_is_done_or_comes_again(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1, H1."""
    await send(producer, "good", "bad")
    times: dict[str, list[int]] = {"good": [], "bad": []}
    consumer = PushConsumer("billing", name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")
    async with asyncio.timeout(20), consumer:
        async for message in consumer:
            body = message.body.decode()
            try:
                with message:
                    times[body].append(message.reconsume_times)
                    if body == "bad" and message.reconsume_times == 0:
                        raise ValueError(body)
            except ValueError:
                assert message.is_settled
            if sum(map(len, times.values())) == 3:
                break
    assert {"good": [0], "bad": [0, 1]} == times


async def test_a_message_that_is_never_settled_is_sent_back_in_time(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F1: 15 minutes, here less; a late word on it is ignored."""
    await send(producer, "it")
    config = PushConfig(start=FIRST, consume_timeout_ms=50)
    consumer = PushConsumer("billing", name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with asyncio.timeout(20), consumer:
        first = await anext(aiter(consumer))
        second = await anext(aiter(consumer))
        first.ack()
        second.ack()
        assert (0, 1) == (first.reconsume_times, second.reconsume_times)
    second.retry()  # too late: it has no effect


async def test_loops_share_messages_and_end_with_the_consumer(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1."""
    taken: list[str] = []
    enough = asyncio.Event()
    consumer = PushConsumer("billing", name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")

    async def loop() -> None:
        async for message in consumer:
            taken.append(message.body.decode())
            if len(taken) == 20:
                enough.set()

    await send(producer, *numbered(20))
    async with asyncio.timeout(20), asyncio.TaskGroup() as loops, consumer:
        for _ in range(3):
            loops.create_task(loop())
        await enough.wait()
    assert Counter(numbered(20)) == Counter(taken)


async def test_a_plain_function_runs_in_threads(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1: listeners that block do not block one another, nor the loop."""
    together = threading.Barrier(4)
    seen = Collector()
    loop = asyncio.get_running_loop()

    def listener(message: ReceivedMessage) -> None:
        together.wait(20)
        assert threading.current_thread() is not threading.main_thread()
        asyncio.run_coroutine_threadsafe(seen(message), loop).result()

    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")
    await send(producer, *numbered(8))
    async with consumer:
        assert Counter(numbered(8)) == Counter(await seen.bodies(8))


@pytest.mark.parametrize("kind", ["raises", "returns RETRY", "returns nonsense", "is cancelled inside"])
async def test_a_message_that_failed_comes_again(cluster: EmbeddedCluster, producer: Producer, kind: str) -> None:
    """F1, H1: with the number of attempts, its own topic and its own id."""
    seen = Collector()

    async def listener(message: ReceivedMessage) -> ConsumeResult | None:
        await seen(message)
        if message.reconsume_times:
            return ConsumeResult.SUCCESS
        match kind:
            case "raises":
                raise ValueError("no")
            case "returns RETRY":
                return ConsumeResult.RETRY
            case "is cancelled inside":
                raise asyncio.CancelledError
            case _:
                return "nonsense"  # type: ignore[return-value]  # what the test is about

    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders", "A || B")
    await send(producer, "it", tags="A")
    async with consumer:
        first, second = await seen.wait(2)
    assert (0, 1) == (first.reconsume_times, second.reconsume_times)
    assert ("orders", "orders") == (first.topic, second.topic)
    assert first.message_id == second.message_id
    assert first.offset_id != second.offset_id


async def test_a_failure_in_a_thread_comes_again_too(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1, H1."""
    times: list[int] = []
    again = threading.Event()

    def listener(message: ReceivedMessage, context: ConsumeContext) -> None:
        times.append(message.reconsume_times)
        if message.reconsume_times == 0:
            context.delay_level = 1
            raise ValueError("no")
        again.set()

    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")
    await send(producer, "it")
    async with consumer:
        assert await asyncio.to_thread(again.wait, 20)
    assert [0, 1] == times


async def test_a_batch_listener_may_do_a_part(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1: what it did not do comes again."""
    sizes: list[int] = []
    seen = Collector()

    async def listener(messages: Sequence[ReceivedMessage], context: ConsumeContext) -> None:
        sizes.append(len(messages))
        for message in messages:
            await seen(message)
        if messages[0].reconsume_times == 0:
            context.done_count = len(messages) - 1

    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST, batch_max=4)
    consumer.subscribe("orders")
    await producer.send_batch([Message("orders", body.encode()) for body in numbered(8)])
    async with consumer:
        bodies = await seen.bodies(10)
    assert [4, 4] == sizes[:2]
    assert Counter([*numbered(8), "order-3", "order-7"]) == Counter(bodies)


async def test_only_wanted_tags_arrive(cluster: EmbeddedCluster, producer: Producer) -> None:
    """K1: Aa and BB have one hash, so only the client can tell them apart."""
    seen = Collector()
    consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders", "Aa || C")
    for tag in ("Aa", "BB", "C", "D", "", "Aa"):
        await send(producer, f"tag {tag}", tags=tag)
    await send(producer, "last", tags="C")
    async with consumer:
        bodies = await seen.bodies(4)
    assert Counter(["tag Aa", "tag Aa", "tag C", "last"]) == Counter(bodies)


async def test_a_group_resumes_where_it_was(cluster: EmbeddedCluster, producer: Producer) -> None:
    """D4, F7: leaving stores the progress, so a new member repeats nothing."""
    for part in (numbered(20), numbered(20, 20)):
        seen = Collector()
        consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("orders")
        await send(producer, *part)
        async with consumer:
            assert Counter(part) == Counter(await seen.bodies(20))


async def test_members_share_and_the_last_one_takes_over(cluster: EmbeddedCluster, producer: Producer) -> None:
    """G1: two members have half of the queues each; when one leaves, the other is told and reads all."""
    seen, more = Collector(), Collector()

    def member(listener: Collector) -> PushConsumer:
        consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers)
        consumer.subscribe("orders")
        return consumer

    def of_orders(consumer: PushConsumer) -> list[int]:
        return [queue.queue_id for queue in consumer.queues if queue.topic == "orders"]

    await send(producer, "creates the topic")
    async with member(seen) as staying:
        await seen.wait(1)
        async with member(more) as leaving:
            await eventually(lambda: len(of_orders(staying)) == 2)
            assert [0, 1, 2, 3] == sorted(of_orders(staying) + of_orders(leaving))
            await send(producer, *numbered(40))
            await eventually(lambda: {*seen.seen, *more.seen} >= {*numbered(40)})
            assert len({*more.seen} & {*numbered(40)}) == 20
        await eventually(lambda: len(of_orders(staying)) == 4)
        await send(producer, *numbered(40, 40))
        await eventually(lambda: {*seen.seen} >= {*numbered(40, 40)})


async def test_nothing_is_lost_when_members_come_and_go_under_load(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """G1, F7: some messages may come twice, none may be missing."""
    seen: set[str] = set()
    all_seen = asyncio.Event()
    wanted = set(numbered(400))

    async def listener(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.001)
        seen.add(message.body.decode())
        if seen >= wanted:
            all_seen.set()

    def member() -> PushConsumer:
        consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("orders")
        return consumer

    await send(producer, *numbered(100))
    async with asyncio.timeout(60), member():
        for part in (100, 200, 300):
            async with member():
                await send(producer, *numbered(100, part))
        await all_seen.wait()


async def test_in_broadcasting_every_member_gets_all(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """F5: and goes on where it was, by its own file."""
    config = PushConfig(model=MessageModel.BROADCASTING, start=FIRST, offsets_directory=tmp_path)

    async def consume(name: str, count: int) -> list[str]:
        seen = Collector()
        client = ClientConfig(cluster.name_servers, instance_name=name)
        consumer = PushConsumer("billing", seen, client=client, config=config)
        consumer.subscribe("orders")
        async with consumer:
            return await seen.bodies(count)

    await send(producer, *numbered(10))
    both = await asyncio.gather(consume("one", 10), consume("two", 10))
    assert [Counter(numbered(10))] * 2 == [Counter(bodies) for bodies in both]
    await send(producer, "next")
    assert ["next"] == await consume("one", 1)


async def test_in_broadcasting_a_failure_is_not_repeated(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """F5."""
    config = PushConfig(model=MessageModel.BROADCASTING, start=FIRST, offsets_directory=tmp_path)
    seen = Collector()

    async def listener(message: ReceivedMessage) -> ConsumeResult:
        await seen(message)
        return ConsumeResult.RETRY

    for body in ("first", "second"):
        await send(producer, body)
        consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, config=config)
        consumer.subscribe("orders")
        async with consumer:
            await seen.wait(1)
        assert [body] == await seen.bodies(1)
        seen = Collector()


async def test_a_group_without_progress_starts_at_the_time_it_is_told(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F6: to the millisecond of the store."""
    queue = (await producer.queues("orders"))[0]
    stored_ms: list[int] = []
    async with PullConsumer("setup", name_servers=cluster.name_servers) as pull:
        while len(set(stored_ms)) < 3:
            await producer.send(Message("orders", b"it"), queue=queue)
            found = await pull.pull(queue, len(stored_ms))
            stored_ms += [message.store_time_ms for message in found.messages]
    seen, middle_ms = Collector(), sorted(set(stored_ms))[1]
    consumer = PushConsumer("by-time", seen, name_servers=cluster.name_servers, start=StartPosition.at(middle_ms))
    consumer.subscribe("orders")
    wanted = [time_ms for time_ms in stored_ms if time_ms >= middle_ms]
    async with consumer:
        assert wanted == [message.store_time_ms for message in await seen.wait(len(wanted))]


async def test_a_young_queue_is_read_from_its_first_message(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F6: even by a group that starts last, as RocketMQ's brokers have it."""
    seen = Collector()
    await send(producer, "old")
    consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, start=StartPosition.LAST)
    consumer.subscribe("orders")
    async with consumer:
        assert ["old"] == await seen.bodies(1)


@pytest.mark.parametrize("kind", ["async", "plain", "orderly", "orderly plain"])
async def test_a_consumer_can_be_resized_while_it_runs(cluster: EmbeddedCluster, producer: Producer, kind: str) -> None:
    """F10: so many calls at a time; those of a pool's old threads come on top until they end."""
    running, most, total = 0, 0, 0
    lock = threading.Lock()
    go = threading.Event()

    def begin() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def end() -> None:
        nonlocal running, total
        with lock:
            running -= 1
            total += 1

    def plain(_: ReceivedMessage) -> None:
        begin()
        go.wait(20)
        end()

    async def listener(_: ReceivedMessage) -> None:
        begin()
        while not go.is_set():
            await asyncio.sleep(0.001)
        end()

    await send(producer, *numbered(40))
    consumer = PushConsumer(
        "billing",
        plain if "plain" in kind else listener,
        name_servers=cluster.name_servers,
        config=PushConfig(start=FIRST, threads=1, orderly=kind.startswith("orderly")),
    )
    consumer.subscribe("orders")
    async with consumer:
        await eventually(lambda: running == 1)
        consumer.resize(3)
        await eventually(lambda: running == 3)
        go.set()
        await eventually(lambda: total == 40)
        assert 3 == most
        consumer.resize(1)
        most = 0
        go.clear()
        await send(producer, *numbered(40))
        await eventually(lambda: running >= 1)
        go.set()
        await eventually(lambda: total == 80)
        assert (1, 1) == (most, consumer.config.threads)
        with pytest.raises(ConfigError, match="invalid threads 0"):
            consumer.resize(0)


async def test_threads_that_are_too_many_end_with_the_consumer(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1: also when it stops before they were told: none is left behind in a program that goes on."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def listener(_message: ReceivedMessage) -> None:
        begun.release()
        go_on.wait(20)

    def threads() -> int:
        return sum(thread.name.startswith("consume-billing") for thread in threading.enumerate())

    await send(producer, *numbered(20))
    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST, threads=5)
    consumer.subscribe("orders")
    async with consumer:
        for _ in range(5):
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        consumer.resize(2)
        asyncio.get_running_loop().call_later(0.1, go_on.set)
    await eventually(lambda: not threads())


async def test_a_suspended_consumer_keeps_its_queues_and_fetches_nothing(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F10."""
    seen = Collector()
    config = PushConfig(start=FIRST, suspend_ms=100)
    consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    consumer.suspend()
    await send(producer, *numbered(4))
    async with consumer:
        assert 4 == sum(queue.topic == "orders" for queue in consumer.queues)
        await consumer.ready()
        assert [] == seen.messages
        consumer.resume()
        assert 4 == len(await seen.bodies(4))


async def test_the_end_of_the_block_waits_for_running_listeners(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F1, F7: and what they did is stored."""
    began, go_on = asyncio.Event(), asyncio.Event()
    ended = []

    async def listener(message: ReceivedMessage) -> None:
        began.set()
        await go_on.wait()
        ended.append(message.body)

    async def leave(consumer: PushConsumer) -> None:
        async with consumer:
            await began.wait()
            asyncio.get_running_loop().call_soon(go_on.set)

    await send(producer, "it")
    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders")
    await leave(consumer)
    assert [b"it"] == ended
    async with PullConsumer("billing", name_servers=cluster.name_servers) as pull:
        committed = [await pull.committed(queue) for queue in await pull.queues("orders")]
    assert [0, 0, 0, 1] == sorted(offset for offset in committed if offset is not None)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_listener_that_does_not_end_is_left_behind_and_its_message_stays_undone(
    cluster: EmbeddedCluster, producer: Producer, is_async: bool
) -> None:
    """F1, F7."""
    began, go_on = threading.Event(), threading.Event()

    async def hangs(_: ReceivedMessage) -> None:
        began.set()
        await asyncio.Event().wait()

    def blocks(_: ReceivedMessage) -> None:
        began.set()
        go_on.wait(20)

    await send(producer, "it")
    config = PushConfig(start=FIRST, stop_timeout_ms=50)
    listener = hangs if is_async else blocks
    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        assert await asyncio.to_thread(began.wait, 20)
    go_on.set()
    async with PullConsumer("billing", name_servers=cluster.name_servers) as pull:
        assert [0] * 4 == [await pull.committed(queue) for queue in await pull.queues("orders")]


async def test_a_listener_that_takes_too_long_has_its_message_sent_back(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F1: the copy is consumed while the first call still hangs; its late result counts no more."""
    go_on = asyncio.Event()
    seen = Collector()

    async def listener(message: ReceivedMessage) -> ConsumeResult:
        await seen(message)
        if message.reconsume_times == 0:
            await go_on.wait()
            return ConsumeResult.RETRY
        return ConsumeResult.SUCCESS

    await send(producer, "it")
    config = PushConfig(start=FIRST, consume_timeout_ms=50)
    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        assert [0, 1] == [message.reconsume_times for message in await seen.wait(2)]
        go_on.set()
    assert 2 == len(seen.messages)


async def test_no_more_is_fetched_than_the_limits_allow(cluster: EmbeddedCluster, producer: Producer) -> None:
    """M2: what is not done stays on the broker; it goes on when something is."""
    queue = (await producer.queues("orders"))[0]
    for body in numbered(30):
        await producer.send(Message("orders", body.encode()), queue=queue)
    limits = FlowLimits(count=5)
    config = PushConfig(start=FIRST, pull_count_max=1, limits=limits, threads=100)
    go_on = asyncio.Semaphore(0)
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await go_on.acquire()

    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        for more in range(5, 31):
            assert more == len(await seen.bodies(more))
            go_on.release()
        for _ in range(30):
            go_on.release()
    assert numbered(30) == [message.body.decode() for message in seen.messages]


async def test_hooks_see_every_call(cluster: EmbeddedCluster, producer: Producer) -> None:
    """E8: and a hook that fails has no other effect."""
    told: list[str] = []

    class Tell(ConsumeHook):
        def before_consume(self, context: ConsumeContext) -> None:
            told.append(f"before {len(context.messages)} {context.group}")

        def after_consume(self, context: ConsumeContext) -> None:
            assert context.result is not None
            told.append(f"after {context.result.value} {type(context.error).__name__}")
            raise RuntimeError("a hook that fails")

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.reconsume_times == 0:
            raise ValueError("no")

    seen = Collector()
    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, start=FIRST, hooks=[Tell()])
    consumer.subscribe("orders")
    await send(producer, "it")
    async with consumer:
        await seen.wait(2)
    assert ["before 1 billing", "after RETRY ValueError", "before 1 billing", "after SUCCESS NoneType"] == told


async def test_a_namespace_is_invisible_to_the_application(cluster: EmbeddedCluster) -> None:
    """F1: names on the wire have it, messages do not; retries work too."""
    client = ClientConfig(cluster.name_servers, namespace="shop")
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.reconsume_times == 0:
            raise ValueError("no")

    async with Producer("p", client=client) as producer:
        await producer.send(Message("orders", b"it"))
    consumer = PushConsumer("billing", listener, client=client, start=FIRST)
    consumer.subscribe("orders")
    async with consumer:
        first, second = await seen.wait(2)
        assert {"orders", "%RETRY%billing"} == {queue.topic for queue in consumer.queues}
    assert ("orders", "orders") == (first.topic, second.topic)


async def test_two_brokers_are_read_side_by_side() -> None:
    """F1, G1."""
    async with EmbeddedCluster(brokers=2) as cluster:
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            await send(producer, *numbered(32))
        seen = Collector()
        consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("orders")
        async with consumer:
            assert Counter(numbered(32)) == Counter(await seen.bodies(32))
        assert {"broker-a", "broker-b"} == {message.broker_name for message in seen.messages}


async def test_a_broker_that_comes_back_elsewhere_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1, A4, D3: another port, all clients forgotten; nothing is lost, and the consumer is not restarted."""
    monkeypatch.setattr("ternmq.client.consume.source.ERROR_PAUSE_S", 0.01)
    seen = Collector()
    async with AsyncExitStack() as stack:
        name_server = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"))
        await stack.enter_async_context(name_server)
        address = f"127.0.0.1:{name_server.port}"

        def broker() -> Broker:
            return Broker(
                BrokerConfig(broker_name="broker-a", listen_port=0, namesrv_addr=address, bind_address="127.0.0.1"),
                StoreConfig(store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 20),
            )

        consumer = PushConsumer("billing", seen, name_servers=address, start=FIRST)
        consumer.subscribe("orders")
        async with broker(), Producer("shop", name_servers=address) as producer:
            await send(producer, *numbered(10))
            await stack.enter_async_context(consumer)
            await eventually(lambda: {*seen.seen} >= {*numbered(10)})
        other = ClientConfig(address, instance_name="another, with routes of its own")
        async with broker(), Producer("shop", client=other) as producer:
            await send(producer, *numbered(10, 10))
            await eventually(lambda: {*seen.seen} >= {*numbered(20)})
            await stack.aclose()


async def test_a_consumer_without_a_name_server_says_so() -> None:
    """A6: at the start, not by warnings for ever."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        consumer = PushConsumer("billing", Collector(), name_servers=address)
        consumer.subscribe("orders")
        with pytest.raises(NameServersUnreachable, match=address):
            async with consumer:
                pass


async def test_wrong_use_is_refused_with_the_cure(cluster: EmbeddedCluster) -> None:
    with pytest.raises(InvalidName):
        PushConsumer("no blanks", name_servers="127.0.0.1:1")
    consumer = PushConsumer("billing", name_servers=cluster.name_servers)
    with pytest.raises(InvalidName):
        consumer.subscribe("no blanks")
    with pytest.raises(NotRunning, match="async with"):
        aiter(consumer)
    async with consumer:
        aiter(consumer)
        with pytest.raises(ConfigError, match="it can have only one"):
            consumer.listener(Collector())
    with pytest.raises(ConfigError, match="without a listener"):
        aiter(PushConsumer("billing", Collector(), name_servers=cluster.name_servers))
    with pytest.raises(ConfigError, match="invalid batch_max 0"):
        PushConsumer("billing", batch_max=0, name_servers=cluster.name_servers)
