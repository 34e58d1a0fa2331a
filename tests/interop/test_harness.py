"""The harness itself: Apache's clients on Apache's servers, so that a red test elsewhere means TernMQ (V1, V2)."""

from __future__ import annotations

import pytest

from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop


async def test_java_clients_meet_on_rocketmq(any_rocketmq: RocketMQ, java: Java) -> None:
    """V1: what a producer sends, a push consumer receives, with Chinese text in properties."""
    topic = f"harness-{java.version.replace('.', '_')}"
    namesrv = any_rocketmq.address

    async with java.producer(namesrv) as producer:
        results = await producer.send(topic=topic, count=3, key="k", tags="A", properties={"城市": "杭州"})
        async with java.consumer(namesrv, group=topic, topic=topic, expression="A || B") as consumer:
            messages = await consumer.messages(3)

    assert {"SEND_OK"} == {result["status"] for result in results}
    assert {result["msgId"] for result in results} == {message["msgId"] for message in messages}
    assert {b"body-0", b"body-1", b"body-2"} == {message["body"] for message in messages}
    assert {"杭州"} == {message["properties"]["城市"] for message in messages}


async def test_mqadmin_prints_its_tables(any_rocketmq: RocketMQ, java: Java) -> None:
    """V1: Apache's own tool runs as a peer."""
    printed = await java.admin(any_rocketmq.address, "clusterList")

    assert "broker-a" in printed
