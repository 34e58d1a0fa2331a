"""Fixtures for the tests with Apache's programs: each server starts once a directory of tests, since an idle
one of RocketMQ's takes a fifth of a core; each Java version once a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from ternmq import Admin, EmbeddedCluster
from ternmq.client.config import ClientConfig
from ternmq.wire.auth import Credentials
from tests.auth.accounts import BOSS, acl_in
from tests.interop import jvm, rocketmq
from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ

#: What the clients in other languages send to: consumers learn of later ones after 30 s.
TOPICS: Final = ("orders", "steps", "questions")
#: A client in another language: it may send and read everything, and manage nothing.
PEER: Final = Credentials("peer-key", "secret-of-the-peer")
_ACCOUNTS: Final = f"""\
accounts:
- accessKey: {BOSS.access_key}
  secretKey: {BOSS.secret_key}
  admin: true
- accessKey: {PEER.access_key}
  secretKey: {PEER.secret_key}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


@pytest.fixture
async def signed_cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """Name server and broker of ours with access control."""
    conf = acl_in(tmp_path / "conf", _ACCOUNTS)
    (conf / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    async with EmbeddedCluster(settings={"aclEnable": True, "aclPath": conf}) as cluster:
        config = ClientConfig(cluster.name_servers, access_key=BOSS.access_key, secret_key=BOSS.secret_key)
        async with Admin(config=config) as admin:
            for topic in TOPICS:
                await admin.topics.create(topic)
        yield cluster


@pytest.fixture(scope="package")
def rocketmq_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Name server and broker of RocketMQ 4.9.4."""
    with rocketmq.cluster("4.9.4", tmp_path_factory.mktemp("rocketmq-4")) as servers:
        yield servers


@pytest.fixture(scope="package")
def rocketmq_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Name server and broker of RocketMQ 5.2.0."""
    with rocketmq.cluster("5.2.0", tmp_path_factory.mktemp("rocketmq-5")) as servers:
        yield servers


@pytest.fixture(params=["rocketmq_4", "rocketmq_5"])
def any_rocketmq(request: pytest.FixtureRequest) -> RocketMQ:
    """Each RocketMQ version in turn."""
    servers = request.getfixturevalue(request.param)
    assert isinstance(servers, RocketMQ)
    return servers


@pytest.fixture(params=jvm.mostly("5.2.0"), ids=lambda version: f"java-{version}")
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Java:
    """Java clients of 5.2.0, and of 4.9.4 at night."""
    return Java(request.param, tmp_path)


@pytest.fixture(params=jvm.HEADER_FORMS, ids="{0[0]}-{0[1]}".format)
def java_any_header(request: pytest.FixtureRequest, tmp_path: Path) -> Java:
    """Java clients of each version, with another form of the header each."""
    version, form = request.param
    return Java(version, tmp_path, binary=form == "ROCKETMQ")
