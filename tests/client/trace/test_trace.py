"""Traces of our clients, from the hook to the query, on a real cluster (Q1, Q2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.admin import Admin
from ternmq.client.config import ClientConfig
from ternmq.client.consume.listener import ConsumeResult
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pop import PopConsumer
from ternmq.client.consume.pull import PullConsumer, PullStatus
from ternmq.client.consume.push import PushConsumer
from ternmq.client.consume.share import ShareConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, InvalidName
from ternmq.message import Message, Outcome, ReceivedMessage
from ternmq.names import TRACE_TOPIC
from tests.client.listening import Collector


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(settings={"traceTopicEnable": "true"}) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.name_servers) as admin:
        await admin.topics.create("orders", queues=1)
        yield admin


async def test_a_send_and_its_consumption_are_a_path(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Q1, Q2: who, when, where, how long, which result. The end of a client sends what it still has."""
    seen = Collector()
    async with Producer("shop", name_servers=cluster.name_servers, trace=True) as producer:
        receipt = await producer.send(Message("orders", b"book", tags="new", keys=("order-1", "café")))
    consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, trace=True, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    async with consumer:
        await seen.wait(1)

    sent, consumed = await admin.traces.path(receipt.message_id)
    assert ("sent", "shop", "success", "orders", "new", "order-1 café", 4) == (
        *(sent.what, sent.group, sent.result, sent.topic, sent.tags, sent.keys, sent.body_bytes),
    )
    assert receipt.offset_id == sent.offset_id
    assert sent.where is not None
    assert sent.where.rpartition(":")[2] == str(cluster.brokers[0].port)
    assert ("consumed", "billing", "success", 1) == (
        *(consumed.what, consumed.group, consumed.result, consumed.attempt),
    )
    assert (sent.time_ms or 0) <= (consumed.time_ms or 0)
    assert consumed.took_ms is not None
    # By a key of the application, too.
    assert len(await admin.messages.by_key(TRACE_TOPIC, "café")) == 2


async def test_every_message_of_a_batch_is_found_and_one_way_sends_leave_no_trace(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """Q1: as Java, one-way sends are not traced; unlike Java's, a batch is found by each of its ids."""
    async with Producer("shop", name_servers=cluster.name_servers, trace=True) as producer:
        receipts = await producer.send_batch([Message("orders", b"%d" % n, keys=f"k{n}") for n in range(3)])
        await producer.send_oneway(Message("orders", b"x"))
    for number, receipt in enumerate(receipts):
        (step,) = await admin.traces.path(receipt.message_id)
        assert (f"k{number}", receipt.offset_id) == (step.keys, step.offset_id)
    assert 3 == producer.traces.sent
    assert 0 == producer.traces.dropped


async def test_transactions_are_traced_to_their_end(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Q1: the half and the end, in a topic of one's own, with names without a namespace."""
    await admin.topics.create("traces", queues=1)
    client = ClientConfig(cluster.name_servers, namespace="tenant")

    async def check(message: ReceivedMessage) -> Outcome:
        return Outcome.COMMIT

    await admin.topics.create("tenant%orders", queues=1)
    async with Producer("shop", client=client, checker=check, trace="traces") as producer:
        async with producer.transaction(Message("orders", b"paid", keys="order-1")) as tx:
            pass
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", b"paid")) as other:
                raise ZeroDivisionError
    half, end = await admin.traces.path(tx.id, topic="traces")
    assert ("sent half", "ended", "committed", "shop", "orders", "order-1") == (
        *(half.what, end.what, end.result, end.group, end.topic, end.keys),
    )
    assert ["success", "rolled back"] == [step.result for step in await admin.traces.path(other.id, topic="traces")]


async def test_a_failed_call_shows_why_and_each_attempt_is_a_step(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Q1, Q2: an exception and a retry are told apart."""
    calls = 0
    done = asyncio.Event()

    async def listen(message: ReceivedMessage) -> ConsumeResult | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        if calls == 2:
            return ConsumeResult.RETRY
        done.set()
        return None

    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipt = await producer.send(Message("orders", b"book"))
    consumer = PushConsumer(
        "billing", listen, name_servers=cluster.name_servers, trace=True, start=StartPosition.FIRST, orderly=True
    )
    consumer.subscribe("orders")
    async with consumer, asyncio.timeout(60):
        await done.wait()
    assert ["raised an error", "failed", "success"] == [
        step.result for step in await admin.traces.path(receipt.message_id)
    ]


async def test_a_broker_that_does_not_want_traces_gets_none() -> None:
    """Q1: ``traceOn=false``, in receipts and in messages."""
    seen = Collector()
    async with EmbeddedCluster(settings={"traceTopicEnable": "true", "traceOn": "false"}) as cluster:
        consumer = PushConsumer(
            "billing", seen, name_servers=cluster.name_servers, trace=True, start=StartPosition.FIRST
        )
        async with Producer("shop", name_servers=cluster.name_servers, trace=True) as producer:
            await producer.send(Message("orders", b"book"))
        consumer.subscribe("orders")
        async with consumer:
            await seen.wait(1)
        assert (0, 0) == (producer.traces.sent, producer.traces.dropped)
        assert (0, 0) == (consumer.traces.sent, consumer.traces.dropped)


async def test_sends_succeed_when_traces_cannot_be_stored(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Q1: a trace topic that does not exist costs traces, and nothing else. They are counted."""
    async with EmbeddedCluster(settings={"autoCreateTopicEnable": "false"}) as strict:
        async with Admin(strict.name_servers) as its_admin:
            await its_admin.topics.create("orders", queues=1)
        async with Producer("shop", name_servers=strict.name_servers, trace="no-such-topic") as producer:
            for _ in range(5):
                await producer.send(Message("orders", b"book"))
        assert (0, 5) == (producer.traces.sent, producer.traces.dropped)


def test_a_wrong_trace_topic_is_named() -> None:
    with pytest.raises(ConfigError, match="expected True, False or the name"):
        Producer("shop", name_servers="127.0.0.1:1", trace="")
    with pytest.raises(InvalidName):
        PushConsumer("billing", name_servers="127.0.0.1:1", trace="no blanks")


@pytest.mark.parametrize("kind", ["push", "pop", "share"])
async def test_loops_are_traced_from_the_message_to_its_end(cluster: EmbeddedCluster, admin: Admin, kind: str) -> None:
    """Q1: done with the next message, or sent back; each with its result."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipts = [await producer.send(Message("orders", b"%d" % number)) for number in range(3)]
    classes = {"push": PushConsumer, "pop": PopConsumer, "share": ShareConsumer}
    consumer = classes[kind]("billing", name_servers=cluster.name_servers, trace=True, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    got: dict[str, str] = {}
    async with consumer, asyncio.timeout(60):
        async for message in consumer:
            got[message.message_id] = "failed" if len(got) == 1 else "success"
            if len(got) == 2:
                message.retry(after_ms=3_600_000)
            elif len(got) == 3:
                message.ack()
                break

    assert got == {
        receipt.message_id: step.result
        for receipt in receipts
        for step in await admin.traces.path(receipt.message_id)
        if step.what == "consumed"
    }


async def test_polls_of_a_lite_pull_consumer_are_traced(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Q1: what a poll returned is done with the next one, or with the block."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipts = [await producer.send(Message("orders", b"%d" % number)) for number in range(3)]
    consumer = LitePullConsumer("billing", name_servers=cluster.name_servers, trace=True, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    got = 0
    async with consumer, asyncio.timeout(60):
        while got < 3:
            got += len(await consumer.poll())

    steps = [step for receipt in receipts for step in await admin.traces.path(receipt.message_id)]
    assert [("consumed", "success", "billing")] * 3 == [(step.what, step.result, step.group) for step in steps]
    assert 6 == consumer.traces.sent


async def test_a_pull_is_a_step_of_the_path(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Q1: a pulled message counts as consumed, as with RocketMQ's pull consumer."""
    async with Producer("shop", name_servers=cluster.name_servers, trace=True) as producer:
        receipt = await producer.send(Message("orders", b"book"))
    async with PullConsumer("audit", name_servers=cluster.name_servers, trace=True) as reader:
        assert 1 == len((await reader.pull(receipt.queue, receipt.queue_offset, wait=False)).messages)
        assert (await reader.pull(receipt.queue, receipt.queue_offset + 1, wait=False)).status is PullStatus.NO_NEW

    assert (2, 0) == (reader.traces.sent, reader.traces.dropped)
    sent, pulled = await admin.traces.path(receipt.message_id)
    assert ("sent", "consumed", "audit", "success") == (sent.what, pulled.what, pulled.group, pulled.result)
