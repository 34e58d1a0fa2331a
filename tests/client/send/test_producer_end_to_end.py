"""Producers against a real name server and brokers in this process: what was sent is what is stored (E1–E6, D1)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.batch import split_batch
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import MessageIllegal, RouteMissing, TernError
from ternmq.message import Message, MessageQueue, ReceivedMessage, SendReceipt, SendStatus
from ternmq.wire.codes import RequestCode
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import PullMessage
from tests.messages import to_message


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(brokers=2) as running:
        yield running


async def stored_in(name_servers: str, queue: MessageQueue, queue_offset: int = 0) -> list[ReceivedMessage]:
    """Up to 32 messages of a queue, read by a plain pull."""
    async with ClientInstance(ClientConfig(name_servers)) as instance:
        await instance.routes.of(queue.topic)
        pull = PullMessage(
            consumer_group="readers",
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            count_max=32,
            sysflag=4,
            subscription="*",
        )
        response = await instance.call_broker(queue.broker_name, RequestCode.PULL_MESSAGE, pull)
    return [to_message(record, queue.broker_name) for record in unpack_records(response.body)]


async def stored(cluster: EmbeddedCluster, receipt: SendReceipt) -> ReceivedMessage:
    return (await stored_in(cluster.name_servers, receipt.queue, receipt.queue_offset))[0]


@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
async def test_what_was_sent_is_what_is_stored(cluster: EmbeddedCluster, serialization: str) -> None:
    """E1, B1, C10."""
    client = ClientConfig(cluster.name_servers, serialization=serialization)
    async with Producer("shop", client=client) as producer:
        message = Message("orders", b"one book", tags="新", keys=("k1", "k2"), properties={"城市": "杭州"}, flag=7)
        receipt = await producer.send(message)
    got = await stored(cluster, receipt)
    assert (message.body, "新", ("k1", "k2"), "杭州", 7) == (
        got.body,
        got.tags,
        got.keys,
        got.properties["城市"],
        got.flag,
    )
    assert (receipt.message_id, receipt.offset_id) == (got.message_id, got.offset_id)
    assert receipt.queue == got.queue


@pytest.mark.parametrize("compression", ["ZLIB", "LZ4", "ZSTD"])
@pytest.mark.parametrize("size", [4_096, 2 * 1024 * 1024, 4 * 1024 * 1024])
async def test_large_bodies_arrive_whole(cluster: EmbeddedCluster, compression: str, size: int) -> None:
    """E1: 2 MiB and 4 MiB."""
    body = random.Random(size).randbytes(size // 8) * 8
    config = ProducerConfig(compression=compression)
    async with Producer("shop", name_servers=cluster.name_servers, config=config) as producer:
        receipt = await producer.send(Message("orders", body), timeout_ms=20_000)
    assert body == (await stored(cluster, receipt)).body


async def test_a_topic_is_made_by_its_first_message(cluster: EmbeddedCluster) -> None:
    """D1: four queues on each broker."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipts = [await producer.send(Message("fresh", b"x")) for _ in range(16)]
    assert 8 == len({receipt.queue for receipt in receipts})


async def test_every_message_of_many_senders_is_stored_once(cluster: EmbeddedCluster) -> None:
    """E1, E3."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:

        async def send(sender: int) -> list[SendReceipt]:
            return [await producer.send(Message("orders", b"x", keys=f"{sender}-{at}")) for at in range(20)]

        receipts = [receipt for part in await asyncio.gather(*map(send, range(10))) for receipt in part]
    assert 200 == len({receipt.offset_id for receipt in receipts})
    assert {SendStatus.OK} == {receipt.status for receipt in receipts}
    places = {(receipt.queue, receipt.queue_offset) for receipt in receipts}
    assert 200 == len(places)


async def test_an_order_is_kept_in_its_queue(cluster: EmbeddedCluster) -> None:
    """E5."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        steps = [Message("orders", f"step {number}".encode(), sharding_key="order-17") for number in range(10)]
        receipts = [await producer.send(step) for step in steps]
    assert 1 == len({receipt.queue for receipt in receipts})
    got = await stored_in(cluster.name_servers, receipts[0].queue)
    assert [step.body for step in steps] == [message.body for message in got]


async def test_each_message_of_a_batch_is_a_record_of_its_own(cluster: EmbeddedCluster) -> None:
    """E6."""
    messages = [Message("orders", f"{number}".encode(), tags=f"t{number}") for number in range(5)]
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipts = await producer.send_batch(messages)
    got = await stored_in(cluster.name_servers, receipts[0].queue)
    assert [(message.body, message.tags) for message in messages] == [(message.body, message.tags) for message in got]
    assert [(each.message_id, each.offset_id, each.queue, each.queue_offset) for each in receipts] == [
        (each.message_id, each.offset_id, each.queue, each.queue_offset) for each in got
    ]
    assert [0, 1, 2, 3, 4] == [message.queue_offset for message in got]


async def test_a_long_list_goes_in_parts(cluster: EmbeddedCluster) -> None:
    """E6."""
    messages = [Message("orders", bytes([number]) * 300_000) for number in range(40)]
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        receipts = [await producer.send_batch(part, timeout_ms=20_000) for part in split_batch(messages)]
    assert [13, 13, 13, 1] == [len(part) for part in receipts]


async def test_automatic_batches_give_each_message_its_place(cluster: EmbeddedCluster) -> None:
    """E6."""
    config = ProducerConfig(auto_batch=True)
    async with Producer("shop", name_servers=cluster.name_servers, config=config) as producer:
        sent = [producer.send_nowait(Message("orders", f"{number}".encode())) for number in range(300)]
        receipts = await asyncio.gather(*sent)
    for number in (0, 150, 299):
        got = await stored(cluster, receipts[number])
        assert (f"{number}".encode(), receipts[number].message_id) == (got.body, got.message_id)


async def test_one_way_messages_arrive(cluster: EmbeddedCluster) -> None:
    """E1."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        queue = (await producer.send(Message("orders", b"first"))).queue
        await producer.send_oneway(Message("orders", b"second"), queue=queue)
        # On one connection the answer to a later send comes after the one-way send was handled.
        await producer.send(Message("orders", b"third"), queue=queue)
    got = await stored_in(cluster.name_servers, queue)
    assert [b"first", b"second", b"third"] == [message.body for message in got]


async def test_without_automatic_topics_an_unknown_one_is_refused() -> None:
    """D1."""
    async with (
        EmbeddedCluster(settings={"autoCreateTopicEnable": False}) as cluster,
        Producer("shop", name_servers=cluster.name_servers) as producer,
    ):
        with pytest.raises(RouteMissing, match="tern topic create fresh"):
            await producer.send(Message("fresh", b"x"))


async def test_a_body_larger_than_the_broker_allows_is_its_refusal() -> None:
    """E2: brokers have the last word."""
    async with (
        EmbeddedCluster(settings={"maxMessageSize": 1_000}) as cluster,
        Producer("shop", name_servers=cluster.name_servers) as producer,
    ):
        with pytest.raises(MessageIllegal):
            await producer.send(Message("orders", b"x" * 1_001))


async def test_a_producer_that_outlives_its_cluster_fails_and_leaves_in_order() -> None:
    """A6, B2."""
    async with EmbeddedCluster() as cluster:
        producer = Producer("shop", name_servers=cluster.name_servers, config=ProducerConfig(send_timeout_ms=500))
        await producer.__aenter__()
        await producer.send(Message("orders", b"x"))
    try:
        with pytest.raises(TernError):
            await producer.send(Message("orders", b"x"))
    finally:
        await producer.__aexit__(None, None, None)
