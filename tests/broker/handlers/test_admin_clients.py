"""Who is connected, as tools ask (D3, D6)."""

from __future__ import annotations

from ternmq.wire.bodies.clients import ConsumerConnection, MessageModel, ProducerConnection, ProducerTable
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import ConsumerGroup, ProducerGroup
from tests.broker.handlers.conftest import Client, Connect


async def test_consumers_are_listed_with_their_subscriptions(client: Client, connect: Connect) -> None:
    """D6."""
    await client.consume("a", "g", "orders", message_model=MessageModel.BROADCASTING)
    await (await connect()).consume("b", "g", "orders", message_model=MessageModel.BROADCASTING)

    response = await client.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group="g"))

    found = decode(response.body, ConsumerConnection)
    assert [connection.client_id for connection in found.connection_set] == ["a", "b"]
    assert found.connection_set[0].client_addr == client.peer.local_address
    assert found.connection_set[0].language == "PYTHON"
    assert list(found.subscription_table) == ["orders"]
    assert found.connection_set[0].subscription_data_set is None
    assert found.message_model is MessageModel.BROADCASTING


async def test_members_that_differ_are_listed_with_what_each_subscribes(client: Client, connect: Connect) -> None:
    """Issue 13, 14: RocketMQ's tools pass the addition over."""
    await client.consume("a", "g", "orders")
    await (await connect()).consume("b", "g", "payments")

    response = await client.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group="g"))

    found = decode(response.body, ConsumerConnection)
    assert [["orders"], ["payments"]] == [
        [data.topic for data in connection.subscription_data_set or ()] for connection in found.connection_set
    ]
    assert {"orders", "payments"} == set(found.subscription_table)


async def test_a_group_that_is_not_online_is_told_so(client: Client) -> None:
    consumers = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group="g"))
    producers = await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroup(producer_group="pg"))

    assert (consumers.code, producers.code) == (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)


async def test_producers_are_listed(client: Client) -> None:
    """D6."""
    await client.produce("a", "pg")

    response = await client.ok(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroup(producer_group="pg"))
    assert [one.client_id for one in decode(response.body, ProducerConnection).connection_set] == ["a"]
    table = decode((await client.ok(RequestCode.GET_ALL_PRODUCER_INFO)).body, ProducerTable)
    (info,) = table.data["pg"]
    assert (info.client_id, info.remote_ip) == ("a", "127.0.0.1")
    assert info.last_update_timestamp > 1_600_000_000_000
