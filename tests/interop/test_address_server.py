"""One address server for RocketMQ's programs and ours (A6)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ternmq import Admin
from ternmq.embedded import EmbeddedCluster
from tests.interop import jvm
from tests.interop.java import Java
from tests.net.address_servers import Listing, address_server

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_mqadmin_finds_our_name_server_at_the_same_url(version: str, tmp_path: Path) -> None:
    """A6: ``rocketmq.namesrv.domain`` is the host and port of the URL."""
    async with EmbeddedCluster() as cluster:
        with address_server(Listing(cluster.name_servers)) as listing:
            async with Admin(listing.url) as admin:
                await admin.topics.create("found-by-url")
            asked = listing.requests
            java = Java(version, tmp_path, properties={"rocketmq.namesrv.domain": urlsplit(listing.url).netloc})
            async with java.peer("admin", arguments=["topicList"]) as peer:
                listed = await peer.text()
            assert listing.requests > asked
    assert "found-by-url" in listed.split()
