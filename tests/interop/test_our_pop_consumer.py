"""TernMQ's pop consumers on RocketMQ 5.2.0, and beside Java's on TernMQ (V1, V2, F9)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.client.config import ClientConfig
from ternmq.client.consume import pop_lot
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pop import PopConsumer
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import RequestNotSupported
from ternmq.message import Message, ReceivedMessage
from tests.client.listening import Collector, numbered
from tests.interop.java import Java, PeerFailed
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop

FIRST = StartPosition.FIRST

_topics = (f"popped-by-python-{number}" for number in itertools.count())


@pytest.fixture
def topic() -> str:
    """An unused one; the servers live as long as the session."""
    return next(_topics)


def popper(topic: str, client: ClientConfig, listener: object, **more: object) -> PopConsumer:
    consumer = PopConsumer(f"poppers-of-{topic}", listener, client=client, start=FIRST, **more)  # type: ignore[arg-type]
    consumer.subscribe(topic, "标签")
    return consumer


async def send(client: ClientConfig, topic: str, *bodies: str) -> None:
    async with Producer("shop", client=client) as producer:
        for body in bodies:
            await producer.send(Message(topic, body.encode(), tags="标签", properties={"城市": "杭州"}))


async def test_messages_are_popped_acked_and_put_off(
    rocketmq_5: RocketMQ, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V2, F9, K1: one that hangs and one that fails come again, and no other does.

    Pop's codes go in JSON headers, whatever the setting.
    """
    monkeypatch.setattr(pop_lot, "DELAYS_MS", (1_000,))
    client = ClientConfig(rocketmq_5.address, serialization="ROCKETMQ")
    seen = Collector()
    hang = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.reconsume_times == 0 and message.body == b"order-3":
            raise ValueError("again")
        if message.reconsume_times == 0 and message.body == b"order-7":
            await hang.wait()

    await send(client, topic, *numbered(100))
    async with popper(topic, client, listener, invisible_ms=5_000):
        async with asyncio.timeout(60):
            while len(seen.messages) < 102:
                await asyncio.sleep(0.05)
        hang.set()
    assert Counter([*numbered(100), "order-3", "order-7"]) == Counter(seen.seen)
    again = {message.body: message for message in seen.messages if message.reconsume_times}
    assert {b"order-3", b"order-7"} == again.keys()
    assert {(topic, 1, "杭州")} == {(m.topic, m.reconsume_times, m.properties["城市"]) for m in again.values()}


async def test_what_was_sent_back_before_the_switch_to_pop_is_pulled(rocketmq_5: RocketMQ, topic: str) -> None:
    """V2, F9, H1: RocketMQ shares out the queues of the group's retry topic, as a topic that is pulled."""
    client = ClientConfig(rocketmq_5.address)
    before, after = Collector(), Collector()

    async def refuse(message: ReceivedMessage, context: ConsumeContext) -> None:
        await before(message)
        context.delay_level = 1
        raise ValueError("not today")

    await send(client, topic, "bad")
    pushing = PushConsumer(f"poppers-of-{topic}", refuse, client=client, start=FIRST)
    pushing.subscribe(topic, "标签")
    async with pushing:
        await before.wait(1)
    async with popper(topic, client, after):
        (again,) = await after.wait(1)
    assert (topic, 1, b"bad") == (again.topic, again.reconsume_times, again.body)


async def test_a_java_member_and_ours_pop_side_by_side(topic: str, tmp_path: Path) -> None:
    """V1, F9: on TernMQ. Ours switches the group, Java's follows; both get messages of the one queue."""
    ours = Collector()
    theirs: list[str] = []
    sent = 0
    async with EmbeddedCluster() as cluster:
        names = cluster.name_servers
        client = ClientConfig(names)
        async with Admin(names) as admin:
            await admin.topics.create(topic, queues=1)
        async with (
            popper(topic, client, ours) as consumer,
            Producer("shop", client=client) as producer,
            Java("5.2.0", tmp_path).consumer(
                names, group=consumer.group, topic=topic, expression="标签", pop=True
            ) as member,
            asyncio.timeout(75),
        ):
            while not ours.messages or not theirs or len(ours.messages) + len(theirs) < sent:
                if not ours.messages or not theirs:
                    await producer.send(Message(topic, f"order-{sent}".encode(), tags="标签"))
                    sent += 1
                with suppress(PeerFailed):
                    theirs.append((await member.event("message", limit_s=0.2))["body"].decode())
    assert Counter(numbered(sent)) == Counter([*ours.seen, *theirs])


async def test_a_broker_of_4_9_is_refused(rocketmq_4: RocketMQ, topic: str) -> None:
    """F9: with a word on what to use."""
    client = ClientConfig(rocketmq_4.address)
    await send(client, topic, "it")
    with pytest.raises(RequestNotSupported, match="use a PushConsumer"):
        await popper(topic, client, Collector()).__aenter__()
