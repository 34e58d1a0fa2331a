"""Reading by offset (F3)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ternmq.client.config import ClientConfig
from ternmq.client.consume.pull import PullConsumer, PullStatus
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import BrokerRefused, NotRunning, RouteMissing
from ternmq.message import Message, MessageQueue


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def consumer(cluster: EmbeddedCluster) -> AsyncIterator[PullConsumer]:
    async with PullConsumer("audit", name_servers=cluster.name_servers) as consumer:
        yield consumer


@pytest.fixture
async def queue(cluster: EmbeddedCluster) -> MessageQueue:
    """A queue with messages 0 … 39, every second with tag A."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        queue = (await producer.queues("orders"))[0]
        for number in range(40):
            message = Message("orders", str(number).encode(), tags="B" if number % 2 else "A")
            await producer.send(message, queue=queue)
    return queue


async def test_a_queue_is_read_from_its_first_to_its_last_message(consumer: PullConsumer, queue: MessageQueue) -> None:
    """F3."""
    assert queue in await consumer.queues("orders")
    bodies, offset = [], await consumer.min_offset(queue)
    while (result := await consumer.pull(queue, offset, wait=False)).status is PullStatus.FOUND:
        bodies += [int(message.body) for message in result.messages]
        offset = result.next_offset
    assert list(range(40)) == bodies
    assert (PullStatus.NO_NEW, 40, 0, 40) == (result.status, offset, result.min_offset, result.max_offset)
    assert 40 == await consumer.max_offset(queue)


async def test_tags_choose(consumer: PullConsumer, queue: MessageQueue) -> None:
    """F3, K1: a pull brings its subscription along."""
    result = await consumer.pull(queue, 0, tags="A", count_max=5)
    assert [0, 2, 4, 6, 8] == [int(message.body) for message in result.messages]
    nothing = await consumer.pull(queue, 0, tags="C", wait=False)
    assert (PullStatus.NO_MATCH, 40) == (nothing.status, nothing.next_offset)


async def test_an_offset_that_is_not_there_is_answered_with_the_nearest(
    consumer: PullConsumer, queue: MessageQueue
) -> None:
    """F3."""
    result = await consumer.pull(queue, 1000, wait=False)
    assert (PullStatus.OFFSET_MOVED, 40) == (result.status, result.next_offset)


async def test_a_pull_may_wait_for_the_next_message(
    cluster: EmbeddedCluster, consumer: PullConsumer, queue: MessageQueue
) -> None:
    """F3, F8."""
    empty = await consumer.pull(queue, 40, suspend_ms=1)
    assert PullStatus.NO_NEW is empty.status
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        await producer.send(Message("orders", b"next"), queue=queue)
    result = await consumer.pull(queue, 40)
    assert [b"next"] == [message.body for message in result.messages]


async def test_progress_is_stored_when_asked_for(consumer: PullConsumer, queue: MessageQueue) -> None:
    """D4, F3."""
    assert None is await consumer.committed(queue)
    await consumer.commit(queue, 3)
    assert 3 == await consumer.committed(queue)
    await consumer.pull(queue, 3, commit_offset=9)
    assert 9 == await consumer.committed(queue)


async def test_offsets_are_found_by_time(consumer: PullConsumer, queue: MessageQueue) -> None:
    """L1."""
    times = [message.store_time_ms for message in (await consumer.pull(queue, 0)).messages]
    for time_ms in set(times):
        assert times.index(time_ms) == await consumer.offset_at(queue, time_ms)
    assert 0 == await consumer.offset_at(queue, times[0] - 1000)
    assert 40 == await consumer.offset_at(queue, times[-1] + 1_000_000)


async def test_a_namespace_is_invisible_to_the_application(cluster: EmbeddedCluster) -> None:
    """F3."""
    client = ClientConfig(cluster.name_servers, namespace="shop")
    async with Producer("p", client=client) as producer:
        receipt = await producer.send(Message("orders", b"it"))
    async with PullConsumer("audit", client=client) as consumer:
        assert receipt.queue in await consumer.queues("orders")
        (message,) = (await consumer.pull(receipt.queue, 0)).messages
    assert "orders" == message.topic


async def test_wrong_use_is_refused_with_the_cure(consumer: PullConsumer, queue: MessageQueue) -> None:
    with pytest.raises(RouteMissing, match="tern topic create nowhere"):
        await consumer.queues("nowhere")
    with pytest.raises(BrokerRefused, match="refused a pull of orders@broker-a:77"):
        await consumer.pull(queue._replace(queue_id=77), 0)
    with pytest.raises(NotRunning, match="async with"):
        await PullConsumer("audit", name_servers="127.0.0.1:1").queues("orders")
