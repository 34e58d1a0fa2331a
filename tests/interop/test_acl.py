"""Access control across the two worlds: Java's clients and tools on ours, ours on RocketMQ's (N1, V1, V2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.client.config import ClientConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import BrokerRefused, SendFailed
from ternmq.message import Message, ReceivedMessage
from tests.auth.accounts import ACCOUNTS, BILLING, BOSS, SHOP, acl_in
from tests.interop import jvm, rocketmq
from tests.interop.java import Java, PeerFailed
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """Name server and broker of ours, both with access control."""
    conf = acl_in(tmp_path / "conf")
    (conf / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    async with EmbeddedCluster(settings={"aclEnable": True, "aclPath": conf}) as cluster:
        yield cluster


@pytest.mark.parametrize(("version", "form"), jvm.HEADER_FORMS)
async def test_java_clients_sign_and_are_let_in(
    cluster: EmbeddedCluster, version: str, form: str, tmp_path: Path
) -> None:
    """N1, V1: with the headers of both forms, heartbeats, pulls, offsets and retries."""
    names, binary = cluster.name_servers, form == "ROCKETMQ"
    shop = Java(version, tmp_path / "shop", binary=binary, credentials=(SHOP.access_key, SHOP.secret_key))
    billing = Java(version, tmp_path / "billing", binary=binary, credentials=(BILLING.access_key, BILLING.secret_key))
    stranger = Java(version, tmp_path / "stranger", binary=binary)
    wrong = Java(version, tmp_path / "wrong", binary=binary, credentials=(SHOP.access_key, "not-the-secret"))
    async with Admin(config=ClientConfig(names, access_key=BOSS.access_key, secret_key=BOSS.secret_key)) as admin:
        await admin.topics.create("orders", queues=1)

    async with (
        billing.consumer(names, group="billing", topic="orders", failFirst=1) as consumer,
        shop.producer(names) as producer,
    ):
        sent = await producer.send(topic="orders", count=3, key="k", properties={"城市": "杭州"})
        # The first delivery of each is refused: it goes to the retry topic and comes from there.
        received = await consumer.messages(6)
        with pytest.raises(PeerFailed, match="no permission for topic:'payments'"):
            await producer.send(topic="payments", count=1)
    for java, sentence in ((stranger, "is not signed"), (wrong, "signature is not valid")):
        async with java.producer(names) as producer:
            with pytest.raises(PeerFailed, match=sentence):
                await producer.send(topic="orders")

    assert ["SEND_OK"] * 3 == [result.get("status") for result in sent]
    assert 6 == len(received)


@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_mqadmin_manages_accounts(cluster: EmbeddedCluster, version: str, tmp_path: Path) -> None:
    """N1, D6: 50 to 54 as the tools of both versions have them."""
    names = cluster.name_servers
    boss = Java(version, tmp_path / "boss", credentials=(BOSS.access_key, BOSS.secret_key))
    shop = Java(version, tmp_path / "shop", credentials=(SHOP.access_key, SHOP.secret_key))
    file = tmp_path / "conf" / "plain_acl.yml"
    arguments = ("updateAclConfig", "-c", "DefaultCluster", "-a", "fresh-key", "-s", "secret-of-fresh")

    made = await boss.admin(names, *arguments, "-t", "orders=PUB|SUB,payments=DENY", "-g", "billing=SUB", "-m", "false")
    text = file.read_text()
    versions = await boss.admin(names, "clusterAclConfigVersion", "-c", "DefaultCluster")
    if version < "5":
        # Later tools have no such command.
        shown = await boss.admin(names, "getAclConfig", "-c", "DefaultCluster")
        assert "fresh-key" in shown
        assert "secret-of" not in shown
    white = await boss.admin(names, "updateGlobalWhiteAddr", "-c", "DefaultCluster", "-g", "10.10.154.1,10.10.154.2")
    deleted = await boss.admin(names, "deleteAclConfig", "-c", "DefaultCluster", "-a", "fresh-key")
    created = await boss.admin(names, "updateTopic", "-c", "DefaultCluster", "-t", "fresh", "-r", "1", "-w", "1")
    refused = await shop.admin(names, *arguments)

    # mqadmin reports errors on stderr only.
    errors = "\n".join(path.read_text() for path in sorted((tmp_path / "boss").rglob("stderr.log")))
    assert "success" in made, errors
    assert "orders=PUB|SUB" in text
    assert "plain_acl.yml" in versions or "broker-a" in versions
    assert "success" in white, errors
    assert "success" in deleted, errors
    assert "success" in created, errors
    assert "success" not in refused
    after = file.read_text()
    assert "fresh-key" not in after
    assert "10.10.154.2" in after


# --- Our clients on RocketMQ --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=jvm.VERSIONS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A RocketMQ broker with ``aclEnable``."""
    directory = tmp_path_factory.mktemp("guarded")
    # RocketMQ asks for permissions for topics that clients look at by themselves, too.
    acl_in(directory / "broker-a" / "conf", ACCOUNTS)
    with rocketmq.cluster(request.param, directory, settings={"aclEnable": "true"}) as servers:
        yield servers


async def test_our_clients_are_let_in_by_rocketmq(guarded: RocketMQ) -> None:
    """N1, V2: producer, consumer with retries, and admin."""
    serialization = jvm.form_for(guarded.version)
    boss, shop, billing = (
        ClientConfig(guarded.address, access_key=one.access_key, secret_key=one.secret_key, serialization=serialization)
        for one in (BOSS, SHOP, BILLING)
    )
    seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def listen(message: ReceivedMessage) -> None:
        await seen.put(message)
        if message.reconsume_times == 0:
            raise ValueError("once more")

    async with Admin(config=boss) as admin:
        await admin.topics.create("orders", queues=1)
    async with (
        PushConsumer("billing", listen, client=billing, start=StartPosition.FIRST) as consumer,
        Producer("shop", client=shop) as producer,
    ):
        consumer.subscribe("orders")
        await producer.send(Message("orders", serialization.encode(), keys="key"))
        found = [await asyncio.wait_for(seen.get(), 75) for _ in range(2)]
        while not any(message.reconsume_times for message in found):
            found.append(await asyncio.wait_for(seen.get(), 75))
        await producer.send_oneway(Message("orders", b"and one more"))
        while found[-1].body != b"and one more":
            found.append(await asyncio.wait_for(seen.get(), 75))
    assert serialization.encode() in {message.body for message in found}


async def test_rocketmq_refuses_our_clients_without_the_right_secret(guarded: RocketMQ) -> None:
    async with Admin(
        config=ClientConfig(guarded.address, access_key=BOSS.access_key, secret_key=BOSS.secret_key)
    ) as admin:
        await admin.topics.create("orders", queues=1)
    for client in (
        ClientConfig(guarded.address),
        ClientConfig(guarded.address, access_key=SHOP.access_key, secret_key="not-the-secret"),
        ClientConfig(guarded.address, access_key=BILLING.access_key, secret_key=BILLING.secret_key),
    ):
        async with Producer("shop", client=client) as producer:
            with pytest.raises((BrokerRefused, SendFailed), match="AclException") as refused:
                await producer.send(Message("orders", b"1"))
        assert "not-the-secret" not in str(refused.value)
