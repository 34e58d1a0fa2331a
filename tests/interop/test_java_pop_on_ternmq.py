"""Java 5.2.0's push consumers in pop mode, and ``mqadmin setConsumeMode``, on TernMQ's broker (F8, F9, V1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, ReceivedMessage
from ternmq.wire.bodies.clients import RequestMode
from tests.client.listening import Collector
from tests.interop.java import Event, Java

pytestmark = pytest.mark.interop

TOPIC = "orders"


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def java(tmp_path: Path) -> Java:
    return Java("5.2.0", tmp_path)


async def pop_mode(java: Java, names: str, group: str) -> None:
    mode = ("-t", TOPIC, "-g", group, "-m", "POP", "-q", "0")
    assert "success" in await java.admin(names, "setConsumeMode", "-c", "DefaultCluster", *mode)


def body(message: Event) -> bytes:
    return bytes(message["body"])


async def test_what_a_killed_java_member_popped_comes_to_another(cluster: EmbeddedCluster, java: Java) -> None:
    """F8, F9, V1: both members pop every queue; messages wake them one by one."""
    names, group = cluster.name_servers, "poppers"
    async with java.producer(names) as producer:
        await producer.send(topic=TOPIC, count=20, body="early")
        await pop_mode(java, names, group)
        async with java.consumer(names, group=group, topic=TOPIC, instance="one", pop=True) as one:
            early = await one.messages(20)
            hanging = {"pop": True, "invisibleMs": 5_000, "hang": True, "threads": 1}
            async with java.consumer(names, group=group, topic=TOPIC, instance="two", **hanging) as two:
                held = asyncio.ensure_future(two.event("message"))
                sent = 0
                while not held.done():
                    await producer.send(topic=TOPIC, count=1, body=f"late{sent}")
                    sent += 1
                    # Who of the two waits longer gets the next one; the second waits only some seconds after its start.
                    await asyncio.wait([held], timeout=0.2)
                await two.kill()
            late = {body(message): message for message in await one.messages(sent)}

    assert sorted(f"early-{number}".encode() for number in range(20)) == sorted(map(body, early))
    assert all("POP_CK" in message["properties"] for message in early)
    assert {f"late{number}-0".encode() for number in range(sent)} == late.keys()
    assert (0, 1) == (held.result()["reconsumeTimes"], late[body(held.result())]["reconsumeTimes"])


async def test_what_a_java_listener_refuses_comes_again_later(cluster: EmbeddedCluster, java: Java) -> None:
    """F9, K1, V1: its client changes the invisible time to 10 s; a tag filter works as ever."""
    names, group = cluster.name_servers, "refusing"
    async with java.producer(names) as producer:
        await producer.send(topic=TOPIC, count=4, body="other", tags="B")
        await producer.send(topic=TOPIC, count=2, body="wanted", tags="A", key="k")
    await pop_mode(java, names, group)
    options = {"pop": True, "expression": "A", "failFirst": 1}

    async with java.consumer(names, group=group, topic=TOPIC, **options) as consumer:
        messages = await consumer.messages(4)

    first, again = messages[:2], messages[2:]
    assert [b"wanted-0", b"wanted-1"] == sorted(map(body, first)) == sorted(map(body, again))
    assert ([0, 0], [1, 1]) == tuple([message["reconsumeTimes"] for message in some] for some in (first, again))
    assert {message["msgId"] for message in first} == {message["msgId"] for message in again}
    assert {"A"} == {message["tags"] for message in again}


async def test_what_was_sent_back_before_the_switch_to_pop_comes_to_java(cluster: EmbeddedCluster, java: Java) -> None:
    """F9, H1, V1: its consumers in pop mode pull the group's retry topic, whose queues the broker shares out."""
    names, group = cluster.name_servers, "switched"
    seen = Collector()

    async def refuse(message: ReceivedMessage, context: ConsumeContext) -> None:
        await seen(message)
        context.delay_level = 1
        raise ValueError("not today")

    async with Producer("shop", name_servers=names) as producer:
        await producer.send(Message(TOPIC, b"bad"))
    pushing = PushConsumer(group, refuse, name_servers=names, start=StartPosition.FIRST)
    pushing.subscribe(TOPIC)
    async with pushing:
        await seen.wait(1)
    async with Admin(names) as admin:
        await admin.groups.set_mode(group, TOPIC, RequestMode.POP)
    async with java.consumer(names, group=group, topic=TOPIC, pop=True) as popping:
        (again,) = await popping.messages(1)

    assert (b"bad", TOPIC, 1) == (body(again), again["topic"], again["reconsumeTimes"])
    assert "POP_CK" not in again["properties"]


async def test_java_reads_what_becomes_of_handles_that_passed_the_proxy(cluster: EmbeddedCluster, java: Java) -> None:
    """F9, V1, issue 13.15: they have nine fields; a change that is refused is told as such, not as a broken answer."""
    names, group = cluster.name_servers, "proxied"
    async with Producer("shop", name_servers=names) as producer:
        for number in range(2):
            await producer.send(Message(TOPIC, b"%d" % number))
    address = cluster.brokers[0].address
    async with java.popper(names, address=address, broker="broker-a", group=group, topic=TOPIC) as popper:
        found: list[str] = []
        while len(found) < 2:
            found += [f"{message['handle']} 4096" for message in (await popper.ask("pop"))["messages"]]
        acked = await popper.ask("ack", handle=found[0])
        changed = await popper.ask("change", handle=found[1])
        refused = await popper.ask("change", handle=found[0])

    assert ["OK", "OK", "NO_EXIST"] == [answer["status"] for answer in (acked, changed, refused)]
