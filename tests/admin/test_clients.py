"""What live consumers say of themselves, and do when an administrator asks (F10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ternmq.admin import Admin
from ternmq.admin.clients import Consumed, QueueState
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import ConsumeContext, ConsumeResult, Listener
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConsumerOffline, InvalidName, NotFound, SystemFailure
from ternmq.message import Message, MessageQueue, ReceivedMessage
from tests.client.listening import Collector, eventually

QUEUE = MessageQueue("orders", "broker-b", 1)


@asynccontextmanager
async def consuming(
    cluster: EmbeddedCluster, listener: Listener | None, *, orderly: bool = False
) -> AsyncIterator[PushConsumer]:
    config = PushConfig(start=StartPosition.FIRST, orderly=orderly, threads=3)
    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders", "new || paid")
    async with consumer:
        yield consumer


async def only_member(admin: Admin) -> str:
    found = await admin.clients.consumers("billing")
    assert found is not None
    (member,) = found.members
    return member.client_id


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_consumer_tells_its_settings_queues_and_speed(
    cluster: EmbeddedCluster, admin: Admin, orderly: bool
) -> None:
    """F10: while a call runs."""
    began, go = asyncio.Event(), asyncio.Event()

    async def slow_listener(message: ReceivedMessage) -> ConsumeResult:
        if message.body == b"slow":
            began.set()
            await go.wait()
        return ConsumeResult.RETRY if message.body == b"bad" and not message.reconsume_times else ConsumeResult.SUCCESS

    await admin.topics.create("orders", queues=2)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for body in (b"good", b"bad", b"slow", b"next"):
            await producer.send(Message("orders", body, tags="new"), queue=QUEUE)
    async with consuming(cluster, slow_listener, orderly=orderly):
        await began.wait()
        client_id = await only_member(admin)
        info = await admin.clients.info("billing", client_id)
        with_stack = await admin.clients.info("billing", client_id, stack=True)
        go.set()

    assert (client_id, orderly, 3) == (info.client_id, orderly, info.threads)
    assert ({"orders": "new || paid", "%RETRY%billing": "*"}, "") == (info.subscriptions, info.stack)
    assert "CLUSTERING" == info.settings["messageModel"]
    (state,) = [state for state in info.queues if state.queue == QUEUE]
    expected = QueueState(
        QUEUE,
        progress=2,
        in_flight=2 if orderly else 1,
        locked=orderly,
        last_pull_ms=state.last_pull_ms,
        last_consume_ms=state.last_consume_ms,
    )
    assert expected == state
    assert min(state.last_pull_ms, state.last_consume_ms) >= info.started_ms > 1_600_000_000_000
    speed = next(speed for speed in info.topics if speed.topic == "orders")
    assert (1, True) == (speed.failed_last_hour, speed.done_per_s > 0)
    assert "in slow_listener" in with_stack.stack
    assert "await go.wait()" in with_stack.stack
    assert "thread MainThread" in with_stack.stack


async def test_each_member_tells_its_offsets(cluster: EmbeddedCluster, admin: Admin) -> None:
    """F10: brokers hear of them some seconds later."""
    seen = Collector()
    await admin.topics.create("orders", queues=2)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for _ in range(3):
            await producer.send(Message("orders", b"it", tags="new"), queue=QUEUE)
    async with consuming(cluster, seen):
        await seen.wait(3)
        client_id = await only_member(admin)
        (told,) = (await admin.clients.offsets("billing", "orders")).items()
    assert client_id == told[0]
    assert ({0: 0, 1: 3}, 4) == (
        {queue.queue_id: offset for queue, offset in told[1].items() if queue.broker_name == "broker-b"},
        len(told[1]),
    )
    assert {} == await admin.clients.offsets("billing", "orders")


@pytest.mark.parametrize("kind", ["async", "plain", "orderly", "orderly plain"])
async def test_a_listener_is_called_with_the_message_that_the_administrator_wants(
    cluster: EmbeddedCluster, admin: Admin, kind: str
) -> None:
    """F10: whatever it says, nothing else happens."""
    calls: list[tuple[str, str]] = []
    answers: list[ConsumeResult | Exception] = []

    def say(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        calls.append((message.topic, str(context.queue)))
        if not answers:
            return ConsumeResult.SUCCESS
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def listener(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        return say(message, context)

    orderly = kind.startswith("orderly")
    await admin.topics.create("orders", queues=2)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipt = await producer.send(Message("orders", b"it", tags="new"), queue=QUEUE)
    async with consuming(cluster, say if "plain" in kind else listener, orderly=orderly):
        await eventually(lambda: len(calls) == 1)
        client_id = await only_member(admin)
        told = await admin.clients.consume("billing", receipt.offset_id, client_id=client_id)
        answers.append(ConsumeResult.RETRY)
        later = await admin.clients.consume("billing", receipt.offset_id)
        answers.append(ValueError("no such customer"))
        raised = await admin.clients.consume("billing", receipt.offset_id)
        assert {1} == {
            offset
            for queue, offset in (await admin.clients.offsets("billing", "orders"))[client_id].items()
            if queue == QUEUE
        }
    assert Consumed(client_id, "CR_SUCCESS", "", told.took_ms, orderly) == told
    assert "CR_LATER" == later.result
    assert ("CR_THROW_EXCEPTION", "ValueError('no such customer')") == (raised.result, raised.remark)
    assert [("orders", str(QUEUE))] * 4 == calls


async def test_what_cannot_be_done_is_said(cluster: EmbeddedCluster, admin: Admin) -> None:
    """F10."""
    await admin.topics.create("orders", queues=2)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipt = await producer.send(Message("orders", b"it", tags="old"), queue=QUEUE)
    with pytest.raises(ConsumerOffline, match="group 'billing' has no active consumers"):
        await admin.clients.consume("billing", receipt.offset_id)
    with pytest.raises(ConsumerOffline, match="tern group members billing"):
        await admin.clients.info("billing", "nobody")
    with pytest.raises(InvalidName):
        await admin.clients.consume("billing", "nonsense")
    async with consuming(cluster, None) as consumer:
        with pytest.raises(SystemFailure, match="has no listener yet"):
            await admin.clients.consume("billing", receipt.offset_id)
        aiter(consumer)
        with pytest.raises(SystemFailure, match="iterates over its messages"):
            await admin.clients.consume("billing", receipt.offset_id)
        gone = receipt.offset_id[:-4] + "FFFF"
        with pytest.raises(NotFound, match="it was deleted, or belongs to another broker"):
            await admin.clients.consume("billing", gone)
