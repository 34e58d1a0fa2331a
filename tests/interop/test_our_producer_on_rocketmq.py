"""TernMQ's producer on RocketMQ 4.9.4 and 5.2.0: every way to send, in both forms of the header (V2, E1–E6).

What was sent is read back by Apache's own Java consumer of the same version.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from ternmq.client.blocking.producer import SyncProducer
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.send.producer import Producer
from ternmq.client.send.queue_choice import by_hash
from ternmq.errors import InvalidParameter, SystemFailure
from ternmq.message import Message, MessageQueue, SendReceipt, SendStatus
from tests.client.blocking.own_sends import open_line, open_lines
from tests.interop import jvm
from tests.interop.java import Event, Java
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop

_topics = (f"sent-by-python-{number}" for number in itertools.count())


@pytest.fixture
def topic() -> str:
    """An unused one; the servers live as long as the session."""
    return next(_topics)


@pytest.fixture
def client(any_rocketmq: RocketMQ) -> ClientConfig:
    return ClientConfig(any_rocketmq.address, serialization=jvm.form_for(any_rocketmq.version))


async def received(servers: RocketMQ, topic: str, count: int, directory: Path) -> list[Event]:
    """What a Java push consumer gets from the beginning of a topic."""
    java = Java(servers.version, directory)
    async with java.consumer(servers.address, group=f"readers-of-{topic}", topic=topic) as consumer:
        return await consumer.messages(count)


async def test_java_receives_what_was_sent_in_every_way(
    any_rocketmq: RocketMQ, client: ClientConfig, topic: str, tmp_path: Path
) -> None:
    """V2, E1, E5, E6, D1: the topic is made by its first message."""
    async with Producer("shop", client=client) as producer:

        def message(number: int, way: str) -> Message:
            properties = {"城市": "杭州", "way": way}
            return Message(topic, f"body-{number}".encode(), tags="标签", keys=f"key-{number}", properties=properties)

        receipts = [await producer.send(message(number, "sync")) for number in range(10)]
        receipts += await asyncio.gather(*(producer.send_nowait(message(number, "async")) for number in range(10, 20)))
        batch = await producer.send_batch([message(number, "batch") for number in range(20, 25)])
        for number in range(25, 30):
            await producer.send_oneway(message(number, "oneway"))
        # The answer to a last send comes after the one-way sends have been read.
        receipts.append(await producer.send(message(30, "sync")))

    messages = await received(any_rocketmq, topic, 31, tmp_path)

    assert {SendStatus.OK} == {receipt.status for receipt in [*receipts, *batch]}
    assert sorted(f"body-{number}".encode() for number in range(31)) == sorted(got["body"] for got in messages)
    assert {("标签", "杭州")} == {(got["tags"], got["properties"]["城市"]) for got in messages}
    sent = {receipt.message_id for receipt in [*receipts, *batch]}
    assert sent <= {got["msgId"] for got in messages}


async def test_one_key_goes_to_the_queue_that_java_chooses(
    any_rocketmq: RocketMQ, client: ClientConfig, topic: str, tmp_path: Path
) -> None:
    """V2, E5: texts and numbers, with hashes above and below 0; "polygenelubricants" has the least there is."""
    keys: list[str | int] = [
        "order-17",
        "polygenelubricants",
        "订单",
        "a",
        7,
        -7,
        2**31 - 1,
        -(2**31),
        2**40 + 5,
        -(2**40),
    ]
    async with Producer("shop", client=client) as producer:
        receipts = [await producer.send(Message(topic, b"x"), selector=by_hash(key)) for key in keys]
        of_text = await producer.send(Message(topic, b"x", sharding_key="order-17"))
    java = Java(any_rocketmq.version, tmp_path)
    async with java.producer(any_rocketmq.address) as theirs:
        results = await theirs.send(
            topic=topic, mode="hashed", count=len(keys), shardingKeys=[str(key) for key in keys]
        )
    assert [result["queueId"] for result in results] == [receipt.queue.queue_id for receipt in receipts]
    assert receipts[0].queue == of_text.queue
    assert len({receipt.queue.queue_id for receipt in receipts}) > 1


@pytest.mark.parametrize("compression", ["ZLIB", "LZ4", "ZSTD"])
async def test_java_reads_large_bodies_however_compressed(
    any_rocketmq: RocketMQ, topic: str, compression: str, tmp_path: Path
) -> None:
    """V2, E1: 2 MiB."""
    body = random.Random(5).randbytes(1024) * 2048
    config = ProducerConfig(compression=compression, send_timeout_ms=20_000)
    async with Producer("shop", name_servers=any_rocketmq.address, config=config) as producer:
        await producer.send(Message(topic, body))
    (message,) = await received(any_rocketmq, topic, 1, tmp_path)
    assert body == message["body"]


async def test_messages_that_gathered_have_their_own_ids_and_offsets(
    any_rocketmq: RocketMQ, client: ClientConfig, topic: str, tmp_path: Path
) -> None:
    """V2, E6."""
    async with Producer("shop", client=client, config=ProducerConfig(auto_batch=True)) as producer:
        sent = [producer.send_nowait(Message(topic, f"{number}".encode())) for number in range(50)]
        receipts: list[SendReceipt] = await asyncio.gather(*sent)

    messages = {got["body"]: got for got in await received(any_rocketmq, topic, 50, tmp_path)}

    for number, receipt in enumerate(receipts):
        got = messages[f"{number}".encode()]
        assert (receipt.message_id, receipt.queue.queue_id, receipt.queue_offset) == (
            got["msgId"],
            got["queueId"],
            got["queueOffset"],
        )


async def test_a_queue_that_does_not_exist_is_the_brokers_refusal(client: ClientConfig, topic: str) -> None:
    """V2, E1: 5.x says INVALID_PARAMETER where 4.9 said SYSTEM_ERROR."""
    async with Producer("shop", client=client) as producer:
        await producer.send(Message(topic, b"x"))
        with pytest.raises((InvalidParameter, SystemFailure), match="broker-a refused"):
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 99))


def test_the_blocking_twin_sends_too(client: ClientConfig, topic: str) -> None:
    """V2."""
    with SyncProducer("shop", client=client) as producer:
        assert SendStatus.OK is producer.send(Message(topic, b"x")).status
        assert SendStatus.OK is producer.send_nowait(Message(topic, b"x")).result().status


def test_threads_send_by_themselves(client: ClientConfig, topic: str) -> None:
    """V2, E1, E5, E6: on a connection that has sent no heartbeat."""
    with SyncProducer("shop", client=client) as producer:
        open_line(producer, topic)
        queue = producer.queues(topic)[0]
        producer.send(Message(topic, b"x"))
        receipts = [producer.send(Message(topic, b"x", keys=f"{number}")) for number in range(100)]
        receipts += [producer.send(Message(topic, b"y" * 10_000), queue=queue) for _ in range(5)]
        receipts += producer.send_batch([Message(topic, b"x"), Message(topic, b"y")], queue=queue)
        with pytest.raises((InvalidParameter, SystemFailure), match="broker-a refused"):
            producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 99))
        assert open_lines(producer)
    assert {SendStatus.OK} == {receipt.status for receipt in receipts}
    assert 107 == len({receipt.offset_id for receipt in receipts})
    first = receipts[100].queue_offset
    assert list(range(first, first + 7)) == [receipt.queue_offset for receipt in receipts[100:]]
