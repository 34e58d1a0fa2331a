"""TernMQ's share consumers on RocketMQ's brokers: by pop on 5.2.0, refused with a sentence on 4.9.4 (R1, V2)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ternmq.client.config import ClientConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.share import ShareConsumer
from ternmq.client.send.producer import Producer
from ternmq.errors import RequestNotSupported
from ternmq.message import Message
from tests.client.listening import Collector, numbered
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
async def test_a_share_consumer_pops_on_rocketmq_5(rocketmq_5: RocketMQ, serialization: str) -> None:
    """R1, V2: two members, each message once, whatever the form of headers."""
    topic = f"shared-by-python-{serialization}"
    client = ClientConfig(rocketmq_5.address, serialization=serialization)
    async with Producer("shop", client=client) as producer:
        for body in numbered(50):
            await producer.send(Message(topic, body.encode()))
    seen = Collector()
    members = [
        ShareConsumer(f"sharers-of-{topic}", seen, client=client, start=StartPosition.FIRST, hold_ms=60_000)
        for _ in range(2)
    ]
    for member in members:
        member.subscribe(topic)
    async with members[0], members[1], asyncio.timeout(60):
        while len(seen.messages) < 50:
            await asyncio.sleep(0.01)
    assert Counter(numbered(50)) == Counter(seen.seen)


async def test_rocketmq_without_pop_is_refused(rocketmq_4: RocketMQ) -> None:
    """R1, V2: 4.9.4, with what to use instead."""
    client = ClientConfig(rocketmq_4.address)
    async with Producer("shop", client=client) as producer:
        await producer.send(Message("shared-in-vain", b"it"))
    consumer = ShareConsumer("sharers-in-vain", Collector(), client=client)
    consumer.subscribe("shared-in-vain")
    with pytest.raises(RequestNotSupported, match="neither shared consumption nor pop"):
        await consumer.__aenter__()
