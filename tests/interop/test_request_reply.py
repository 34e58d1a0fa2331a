"""Requests and replies between Java and Python, on TernMQ and on RocketMQ (V1, V2, E7)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.client.config import ClientConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, ReceivedMessage
from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop

TIMEOUT_MS = 30_000


@dataclass(slots=True, frozen=True)
class Servers:
    """Whose servers, and which Java clients meet ours there."""

    name: str
    name_servers: str
    java: Java


@pytest.fixture(params=["ternmq-4.9.4", "ternmq-5.2.0", "rocketmq_4", "rocketmq_5"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    kind, _, version = request.param.partition("-")
    if kind == "ternmq":
        async with EmbeddedCluster(brokers=2) as cluster:
            yield Servers(kind, cluster.name_servers, Java(version, tmp_path))
    else:
        running: RocketMQ = request.getfixturevalue(kind)
        yield Servers(kind, running.address, Java(running.version, tmp_path))


async def test_java_and_python_answer_each_other(servers: Servers) -> None:
    """V1, V2, E7: each as the one who asks and as the one who answers, and Java with itself; large bodies, too."""
    names, java = servers.name_servers, servers.java
    client = ClientConfig(names)
    async with Producer("python", client=client) as producer:

        async def listener(message: ReceivedMessage) -> None:
            await producer.reply(message, b"re: " + message.body, properties={"城市": "杭州"})

        consumer = PushConsumer("python-repliers", listener, client=client, start=StartPosition.FIRST)
        consumer.subscribe("for-python")
        # The topics first, on all brokers, so that no client waits for the next poll of the routes.
        async with Admin(names) as admin:
            await admin.topics.create("for-java")
            await admin.topics.create("for-python")
        async with (
            consumer,
            java.replier(names, group="java-repliers", topic="for-java") as replier,
            java.producer(names, timeoutMs=TIMEOUT_MS) as requester,
        ):
            ours = await asyncio.gather(
                *(
                    producer.request(Message("for-java", body), timeout_ms=TIMEOUT_MS)
                    for body in (b"one", b"two", b"large " * 10_000)
                )
            )
            assert [b"re: one", b"re: two", b"re: " + b"large " * 10_000] == [reply.body for reply in ours]
            replied = [await replier.event("replied") for _ in range(3)]
            assert ["SEND_OK"] * 3 == [event["status"] for event in replied]

            theirs = await requester.send(topic="for-python", mode="request", count=2, bodyBytes=10_000)
            bodies = [base64.b64decode(result["body"]) for result in theirs]
            assert [b"re: body-0", b"re: body-1"] == [body.rstrip(b".") for body in bodies]
            assert [10_004, 10_004] == [len(body) for body in bodies]
            assert {"杭州"} == {result["properties"]["城市"] for result in theirs}

            among_java = await requester.send(topic="for-java", mode="request", count=2)
            assert [b"re: body-0", b"re: body-1"] == [base64.b64decode(result["body"]) for result in among_java]
