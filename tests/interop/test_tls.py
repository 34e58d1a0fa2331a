"""TLS across the two worlds: Java's clients on our servers, our clients on RocketMQ's (B4, N2, V1, V2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.admin.blocking import SyncAdmin
from ternmq.client.config import ClientConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, ReceivedMessage
from tests.auth.certificates import Certificates
from tests.interop import jvm, rocketmq
from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "dev")


def java_tls(certificates: Certificates) -> dict[str, str]:
    """System properties of a Java client that checks its servers, and shows its own certificate."""
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(certificates / "ca.pem"),
        "tls.client.certPath": str(certificates / "client.pem"),
        "tls.client.keyPath": str(certificates / "client.key"),
    }


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_java_clients_speak_tls_with_our_servers(
    certificates: Certificates, version: str, mode: str, tmp_path: Path
) -> None:
    """N2, V1: producer, consumer and mqadmin; with certificates of clients where TLS is enforced; plain ones beside
    them where it is not."""
    settings = {
        "tls.server.mode": mode,
        "tls.server.certPath": certificates / "server.pem",
        "tls.server.keyPath": certificates / "server.key",
        "tls.server.trustCertPath": certificates / "ca.pem",
        "tls.server.need.client.auth": "require" if mode == "enforcing" else "none",
        "tls.enable": "true",
        "tls.client.trustCertPath": certificates / "ca.pem",
        "tls.client.certPath": certificates / "client.pem",
        "tls.client.keyPath": certificates / "client.key",
    }
    secure = Java(version, tmp_path / "secure", properties=java_tls(certificates))
    plain = Java(version, tmp_path / "plain")
    async with EmbeddedCluster(settings=settings) as cluster:
        names = cluster.name_servers
        made = await secure.admin(names, "updateTopic", "-c", "DefaultCluster", "-t", "orders", "-r", "1", "-w", "1")
        async with (
            secure.consumer(names, group="billing", topic="orders") as consumer,
            (secure if mode == "enforcing" else plain).producer(names) as producer,
        ):
            sent = await producer.send(topic="orders", count=3, bodyBytes=100_000)
            received = await consumer.messages(3)

    assert "success" in made
    assert ["SEND_OK"] * 3 == [result.get("status") for result in sent]
    assert 3 == len(received)


@pytest.mark.parametrize("version", jvm.mostly("4.9.4"))
async def test_the_scenarios_of_rocketmqs_own_tests_of_tls_pass(
    certificates: Certificates, version: str, tmp_path: Path
) -> None:
    """N2, V1: TLS_IT, TLS_Mix_IT and TLS_Mix2_IT of RocketMQ's ``test`` module, with its clients and its assertion.

    They start their own servers in their own process, with the settings of a test (``tls.test.mode.enable``: the server
    shows a certificate that it generated, and the client checks none), so they cannot be run on other servers. What
    they do is done here: 16 messages, sent and received with TLS, sent plainly and received with TLS, and the reverse,
    on one port of a server that allows both. All bodies arrive.
    """
    settings = {
        "tls.server.mode": "permissive",
        "tls.server.certPath": certificates / "server.pem",
        "tls.server.keyPath": certificates / "server.key",
    }
    # As in those tests: each client decides by itself, and checks no certificate.
    secure = Java(version, tmp_path / "secure", properties={"tls.enable": "true", "tls.test.mode.enable": "true"})
    plain = Java(version, tmp_path / "plain", properties={"tls.enable": "false"})
    async with EmbeddedCluster(settings=settings) as cluster:
        names = cluster.name_servers
        for topic, sends, receives in (
            ("TLS_IT", secure, secure),
            ("TLS_Mix_IT", plain, secure),
            ("TLS_Mix2_IT", secure, plain),
        ):
            await asyncio.to_thread(_create, names, topic)
            async with (
                sends.producer(names, group=f"sends-{topic}") as producer,
                receives.consumer(names, group=f"receives-{topic}", topic=topic) as consumer,
            ):
                sent = await producer.send(topic=topic, count=16)
                received = await consumer.messages(16)

            assert ["SEND_OK"] * 16 == [result.get("status") for result in sent]
            assert {result["msgId"] for result in sent} == {message["msgId"] for message in received}


def _create(name_servers: str, topic: str) -> None:
    with SyncAdmin(name_servers) as admin:
        admin.topics.create(topic)


# --- Our clients on RocketMQ ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=jvm.VERSIONS)
def enforcing(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RocketMQ]:
    """RocketMQ's name server and broker with TLS on their ports, the broker enforcing it."""
    directory = tmp_path_factory.mktemp("enforcing")
    properties = {
        "tls.test.mode.enable": "false",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(certificates / "server.pem"),
        "tls.server.keyPath": str(certificates / "server.key"),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(certificates / "ca.pem"),
        # A broker that enforces TLS would use it to call its name server, and has no certificate to show.
        "tls.enable": "false",
    }
    # The test's own questions to the name server are plain.
    permissive = properties | {"tls.server.mode": "permissive"}
    with rocketmq.cluster(request.param, directory, properties=properties, namesrv_properties=permissive) as servers:
        yield servers


async def test_our_clients_speak_tls_with_rocketmq(enforcing: RocketMQ, certificates: Certificates) -> None:
    """N2, V2: admin, producer and consumer, with a certificate of their own."""
    config = ClientConfig(enforcing.address, tls=certificates.client(shows=True))
    seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def listen(message: ReceivedMessage) -> None:
        await seen.put(message)

    async with Admin(config=config) as admin:
        await admin.topics.create("orders", queues=1)
    async with (
        Producer("shop", client=config) as producer,
        PushConsumer("billing", listen, client=config, start=StartPosition.FIRST) as consumer,
    ):
        consumer.subscribe("orders")
        await producer.send(Message("orders", b"x" * 100_000))
        assert b"x" * 100_000 == (await asyncio.wait_for(seen.get(), 75)).body
