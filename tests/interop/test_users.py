"""Users and policies across the two worlds: tools and clients of RocketMQ 5.3 on ours, ours on its broker (N1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from ternmq.admin import Admin
from ternmq.client.config import ClientConfig
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import BrokerRefused, SendFailed
from ternmq.message import Message, SendStatus
from tests.interop import jvm, rocketmq
from tests.interop.java import Java, PeerFailed
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop

VERSION: Final = jvm.USERS_VERSION
ROOT: Final = ("root", "password-of-root")
SETTINGS: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username": "root", "password": "password-of-root"}',
    "innerClientAuthenticationCredentials": '{"accessKey": "root", "secretKey": "password-of-root"}',
}
_AUTH: Final = "org.apache.rocketmq.auth"
#: RocketMQ has no default for them.
PROVIDERS: Final = {
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
CLUSTER: Final = ("-c", "DefaultCluster")


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(settings=SETTINGS) as cluster:
        yield cluster


async def test_mqadmin_and_clients_of_5_3_use_our_users(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """N1, D6, V1: 3001 to 3010."""
    names = cluster.name_servers
    root = Java(VERSION, tmp_path / "root", credentials=ROOT)

    await root.admin(names, "createUser", *CLUSTER, "-u", "shop", "-p", "password-of-shop")
    await root.admin(names, "createUser", *CLUSTER, "-u", "other", "-p", "password-of-other", "-t", "Super")
    users = await root.admin(names, "listUser", *CLUSTER)
    await root.admin(
        names,
        *("createAcl", *CLUSTER, "-s", "User:shop", "-r", "Topic:orders,Topic:pay*", "-a", "Pub,Get", "-d", "Allow"),
    )
    await root.admin(
        names, *("updateAcl", *CLUSTER, "-s", "User:shop", "-r", "Topic:payroll", "-a", "All", "-d", "Deny")
    )
    shown = await root.admin(names, "getAcl", *CLUSTER, "-s", "User:shop")
    listed = await root.admin(names, "listAcl", *CLUSTER, "-s", "shop", "-r", "payroll")
    await root.admin(names, "updateTopic", *CLUSTER, "-t", "orders", "-r", "1", "-w", "1")
    shop = Java(VERSION, tmp_path / "shop", credentials=("shop", "password-of-shop"))
    async with shop.producer(names) as producer:
        [sent] = await producer.send(topic="orders", count=1)
        with pytest.raises(PeerFailed, match="no permission for topic:'payroll'"):
            await producer.send(topic="payroll", count=1)
    await root.admin(names, "updateUser", *CLUSTER, "-u", "shop", "-s", "disable")
    async with shop.producer(names) as producer:
        with pytest.raises(PeerFailed, match="is not valid"):
            await producer.send(topic="orders", count=1)
    await root.admin(names, "deleteAcl", *CLUSTER, "-s", "User:shop")
    without = await root.admin(names, "getAcl", *CLUSTER, "-s", "User:shop")
    await root.admin(names, "deleteUser", *CLUSTER, "-u", "shop")
    left = await root.admin(names, "listUser", *CLUSTER)

    errors = "\n".join(path.read_text() for path in sorted((tmp_path / "root").rglob("stderr.log")))
    for word in ("root", "shop", "other", "Super", "Normal", "enable"):
        assert word in users, errors
    assert "password-of" not in users
    assert "SEND_OK" == sent.get("status")
    for word in ("Topic:orders", "Topic:pay*", "Topic:payroll", "Deny"):
        assert word in shown, errors
    assert "Topic:payroll" in listed
    assert "Topic:orders" not in listed
    assert "Topic:orders" not in without
    assert "other" in left
    assert "shop" not in left


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A broker of RocketMQ 5.3 with users."""
    with rocketmq.cluster(VERSION, tmp_path_factory.mktemp("guarded"), settings=SETTINGS | PROVIDERS) as servers:
        yield servers


@pytest.mark.nightly
async def test_our_admin_and_clients_use_the_users_of_rocketmq(guarded: RocketMQ) -> None:
    """N1, V2."""
    root = ClientConfig(guarded.address, access_key=ROOT[0], secret_key=ROOT[1])
    shop = ClientConfig(guarded.address, access_key="shop", secret_key="password-of-shop")
    async with Admin(config=root) as admin:
        await admin.topics.create("orders", queues=1)
        await admin.users.create("shop", "password-of-shop")
        await admin.users.decide("shop", "Topic:orders", ["Pub", "Get"])
        users = {(user.name, user.is_super) for user in await admin.users.all()}
        policies = [(one.user, one.resource, set(one.actions)) for one in await admin.users.policies("shop")]
    async with Producer("shop", client=shop) as producer:
        receipt = await producer.send(Message("orders", b"1"))
        with pytest.raises((BrokerRefused, SendFailed)) as refused:
            await producer.send(Message("payments", b"1"))

    assert {("root", True), ("shop", False)} <= users
    assert [("shop", "Topic:orders", {"Pub", "Get"})] == policies
    assert SendStatus.OK is receipt.status
    assert "password-of" not in str(refused.value)
