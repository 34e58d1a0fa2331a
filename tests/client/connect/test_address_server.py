"""Clients that find their name servers through an HTTP address server (A6)."""

from __future__ import annotations

import pytest

from ternmq import Admin, ClientConfig, Message, Producer, PushConsumer, StartPosition
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, NameServersUnreachable
from tests.net.address_servers import Listing, address_server


async def test_a_client_sends_and_consumes_with_a_url_in_place_of_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A6: as an argument, and from the environment."""
    async with EmbeddedCluster() as cluster:
        with address_server(Listing(cluster.name_servers + "\n")) as listing:
            async with Producer("shop", name_servers=listing.url) as producer:
                await producer.send(Message("orders", b"1"))
            monkeypatch.setenv("NAMESRV_ADDR", listing.url)
            async with PushConsumer("billing", start=StartPosition.FIRST) as consumer:
                consumer.subscribe("orders")
                async for message in consumer:
                    assert b"1" == message.body
                    break
            async with Admin() as admin:
                assert [cluster.name_servers] == await admin.name_servers.all()
                await admin.topics.create("ordered", order=True)
                await admin.topics.delete("ordered")


async def test_a_client_follows_name_servers_that_have_moved() -> None:
    """A6: when none of the last list answers, the address server is asked at once."""
    async with EmbeddedCluster() as old, EmbeddedCluster() as new:
        with address_server(Listing(old.name_servers)) as listing:
            async with Admin(listing.url) as admin:
                [before] = await admin.brokers.all()
                listing.body = "127.0.0.1:1"
                assert await admin._instance.name_servers.address_server.refresh()  # type: ignore[union-attr]
                listing.body = new.name_servers
                [after] = await admin.brokers.all()
    assert before.address != after.address


async def test_a_client_works_on_while_the_address_server_is_down() -> None:
    """A6."""
    async with EmbeddedCluster() as cluster:
        with address_server(Listing(cluster.name_servers)) as listing:
            producer = await Producer("shop", name_servers=listing.url).__aenter__()
            await producer.send(Message("orders", b"1"))
        await producer.send(Message("others", b"2"))
        await producer.__aexit__(None, None, None)


async def test_without_any_list_the_error_names_the_address_server() -> None:
    with address_server(Listing("", status=500)) as listing:
        async with Admin(listing.url) as admin:
            with pytest.raises(NameServersUnreachable, match=r"address server http://127.* HTTP status 500; start it"):
                await admin.brokers.all()


@pytest.mark.parametrize("given", ["http://a/x;b:9876", ["http://a/x", "http://b/x"]])
def test_a_url_stands_alone(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="must stand alone"):
        ClientConfig(given)
