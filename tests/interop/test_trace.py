"""Traces between our clients and Java's, of both versions, on TernMQ's servers (Q1, Q2, V1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.admin import Admin
from ternmq.admin.traces import TraceStep
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, Outcome, ReceivedMessage
from ternmq.names import TRACE_TOPIC
from ternmq.wire.trace import BAD, PUB, encode, parse
from tests.client.listening import Collector
from tests.interop.java import Java

pytestmark = pytest.mark.interop


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(settings={"traceTopicEnable": "true"}) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.name_servers) as admin:
        await admin.topics.create("orders", queues=1)
        yield admin


async def path(admin: Admin, message_id: str, results: list[str]) -> list[TraceStep]:
    """The path of a message, when all its traces have arrived."""
    async with asyncio.timeout(60):
        while sorted(results) != sorted(step.result for step in await admin.traces.path(message_id)):
            await asyncio.sleep(0.1)
    return await admin.traces.path(message_id)


async def test_mqadmin_reads_the_traces_of_our_clients(cluster: EmbeddedCluster, admin: Admin, java: Java) -> None:
    """Q1, V1: sends, one of a batch, consumption and the end of a transaction, by ``queryMsgTraceById``."""
    names, seen = cluster.name_servers, Collector()

    async def check(message: ReceivedMessage) -> Outcome:
        return Outcome.UNKNOWN

    async with Producer("shop", name_servers=names, trace=True, checker=check) as producer:
        one = await producer.send(Message("orders", b"book", tags="new", keys="order-1"))
        _, of_batch = await producer.send_batch([Message("orders", b"1"), Message("orders", b"2", keys="order-2")])
        async with producer.transaction(Message("orders", b"paid", keys="order-3")) as tx:
            pass
    consumer = PushConsumer("billing", seen, name_servers=names, trace=True, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    async with consumer:
        await seen.wait(4)
    await path(admin, one.message_id, ["success", "success"])
    await path(admin, tx.id, ["success", "committed", "success"])

    first, batch, transaction = [
        await java.admin(names, "queryMsgTraceById", "-i", message_id)
        for message_id in (one.message_id, of_batch.message_id, tx.id)
    ]

    assert ["Pub", "shop"] == _words(first, "Pub")[:2], first
    assert "success" in _words(first, "Pub"), first
    assert ["Sub", "billing"] == _words(first, "Sub")[:2], first
    assert "success" in _words(first, "Sub"), first
    assert ["Pub", "shop"] == _words(batch, "Pub")[:2], batch
    assert ["Pub", "shop"] == _words(transaction, "Pub")[:2], transaction


def _words(printed: str, kind: str) -> list[str]:
    """The words of the first row of a kind."""
    rows = [line.split() for line in printed.splitlines() if line.startswith(kind)]
    assert rows, printed
    return rows[0]


async def test_we_read_the_traces_of_java_and_write_the_same_bytes(
    cluster: EmbeddedCluster, admin: Admin, java: Java
) -> None:
    """Q1, Q2, V1: paths from Java's producers, consumers and transactions; each record, read and written again, is the
    same text."""
    names = cluster.name_servers
    async with (
        java.consumer(names, group="billing", topic="orders", trace=True) as consumer,
        java.producer(names, group="shop", trace=True) as producer,
        java.transactions(names, group="bank", trace=True) as bank,
    ):
        (sent,) = await producer.send(topic="orders", count=1, body="b", tags="new", key="order")
        await producer.send(topic="orders", mode="batch", count=2, body="b")
        (ended,) = await bank.send(topic="orders", count=1, body="paid", local="COMMIT_MESSAGE")
        await consumer.messages(4)
        await path(admin, sent["msgId"], ["success", "success"])
        await path(admin, ended["msgId"], ["success", "committed", "success"])

    (status,) = await admin.topics.status(TRACE_TOPIC)
    bodies = [(await admin.messages.by_queue_offset(status.queue, offset)).body for offset in range(status.max_offset)]
    for body in bodies:
        for text in body.split(b"\x02")[:-1]:
            records = list(parse(text))
            assert BAD not in {record.kind for record in records}, text
            if records[0].kind == PUB and len(records) > 1:
                ids, offset_ids = zip(*((one.message_id, one.offset_id) for one in records), strict=True)
                records = [records[0]._replace(message_id=",".join(ids), offset_id=",".join(offset_ids))]
            assert [text.decode() + "\x02"] == [encode(record) for record in records]
