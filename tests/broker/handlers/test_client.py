"""Heartbeats, members, locks and assignments, as clients call them (D3, F2, G1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import (
    AssignmentQuery,
    Assignments,
    ClientCheck,
    ConsumerData,
    Heartbeat,
    LockedQueues,
    MemberList,
    MessageModel,
    QueueLocks,
    SubscriptionData,
)
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.codes import BINARY, RequestCode, ResponseCode
from ternmq.wire.requests import ConsumerGroup, UnregisterClient
from ternmq.wire.requests_admin import Topic
from tests.broker.handlers.conftest import Client, Connect, broker_config, connecting, store_config
from tests.recordings import VERSIONS, requests


async def members(client: Client, group: str) -> list[str]:
    response = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup(consumer_group=group))
    return decode(response.body, MemberList).consumer_id_list if response.code == ResponseCode.SUCCESS else []


# --- Members (D3) -----------------------------------------------------------------------------------------------


async def test_members_of_a_group_are_told_of_each_other(connect: Connect) -> None:
    """D3: when one comes, when one goes, and when one hangs up."""
    one, two, three = await connect(), await connect(), await connect()
    await one.consume("a", "g", "orders")
    assert await one.told.get() == "g"
    await two.consume("b", "g", "orders")
    await three.consume("c", "g", "orders")
    for client in (one, two):
        assert [await client.told.get() for _ in range(2)] == ["g", "g"]
    assert await members(one, "g") == ["a", "b", "c"]

    await three.ok(RequestCode.UNREGISTER_CLIENT, UnregisterClient(client_id="c", consumer_group="g"))
    assert await one.told.get() == "g"
    assert await members(one, "g") == ["a", "b"]

    two.peer.close()
    assert await one.told.get() == "g"
    assert await members(one, "g") == ["a"]


async def test_a_group_can_ask_not_to_be_told(client: Client, connect: Connect) -> None:
    """D2, D3: notifyConsumerIdsChangedEnable=false."""
    quiet = SubscriptionGroupConfig(group_name="quiet", notify_consumer_ids_changed_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(quiet))

    await client.consume("a", "quiet", "orders")
    await (await connect()).consume("b", "quiet", "orders")
    await client.consume("a", "loud", "orders")

    assert await client.told.get() == "loud"  # nothing came before it


async def test_a_group_nobody_is_in_is_an_error_that_keeps_old_assignments(client: Client) -> None:
    """remoting.md: a client that is answered an empty list would drop its queues."""
    response = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup(consumer_group="g"))

    assert response.code == ResponseCode.SYSTEM_ERROR


async def test_a_heartbeat_brings_the_retry_topic(client: Client) -> None:
    """H1: whose route the consumer asks for next."""
    await client.consume("a", "g", "orders")

    await client.ok(RequestCode.GET_TOPIC_CONFIG, Topic(topic="%RETRY%g"))


async def test_an_unknown_group_does_not_spoil_a_heartbeat(tmp_path: Path) -> None:
    """D2, D3: autoCreateSubscriptionGroup=false; the other groups of the client count."""
    config = broker_config(auto_create_subscription_group=False)
    async with Broker(config, store_config(tmp_path)) as broker, connecting(broker) as connect:
        client = await connect()
        consumers = [ConsumerData(group_name=group) for group in ("nobody-made-it", "TOOLS_CONSUMER")]

        body = encode(Heartbeat(client_id="a", consumer_data_set=consumers))
        await client.ok(RequestCode.HEART_BEAT, None, body)

        assert await members(client, "nobody-made-it") == []
        assert await members(client, "TOOLS_CONSUMER") == ["a"]


async def test_a_heartbeat_that_is_no_heartbeat_is_refused(client: Client) -> None:
    """B5."""
    for body in (b"", b"nonsense", b"[]", b'{"clientID":5}'):
        assert (await client.call(RequestCode.HEART_BEAT, None, body)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_heartbeats_are_answered(client: Client, version: str) -> None:
    """D3, V1: Java's and its binary headers."""
    for request in requests(version, RequestCode.HEART_BEAT):
        response = await client.ok(RequestCode.HEART_BEAT, None, request.body, form=request.serial)
        assert response.version >= 232, "less makes consumers with SQL filters refuse to start"

    said = [decode(request.body, Heartbeat).client_id for request in requests(version, RequestCode.HEART_BEAT)]
    assert len(await members(client, "golden_push")) == 1  # all came over this one connection
    assert (await members(client, "golden_push"))[0] in said


async def test_filters_are_checked_before_a_consumer_starts(client: Client) -> None:
    """K1: tags are understood, SQL is not enabled."""

    async def check(kind: str) -> tuple[int, str]:
        data = SubscriptionData(topic="orders", sub_string="a > 5", expression_type=kind)
        body = encode(ClientCheck(client_id="a", group="g", subscription_data=data))
        response = await client.call(RequestCode.CHECK_CLIENT_CONFIG, None, body)
        return response.code, response.remark or ""

    assert (await check("TAG"))[0] == ResponseCode.SUCCESS
    code, remark = await check("SQL92")
    assert (code, "SQL92" in remark, "enablePropertyFilter=true" in remark) == (ResponseCode.SYSTEM_ERROR, True, True)


# --- Locks (F2) -------------------------------------------------------------------------------------------------


async def test_a_queue_is_locked_for_one_client_until_it_gives_it_back(client: Client) -> None:
    """F2."""
    await client.create_topic("orders")
    queues = [Queue.of(MessageQueue("orders", "broker-a", queue_id)) for queue_id in range(2)]

    async def lock(client_id: str, queues: list[Queue]) -> list[Queue]:
        body = encode(QueueLocks(client_id=client_id, consumer_group="g", queues=queues))
        return decode((await client.ok(RequestCode.LOCK_BATCH_MQ, None, body)).body, LockedQueues).queues

    assert await lock("a", queues[:1]) == queues[:1]
    assert await lock("b", queues) == queues[1:]
    assert await lock("b", [Queue(topic="nowhere", broker_name="broker-a", queue_id=0)]) == []

    unlock = encode(QueueLocks(client_id="a", consumer_group="g", queues=queues))
    await client.ok(RequestCode.UNLOCK_BATCH_MQ, None, unlock, form=BINARY)
    assert await lock("b", queues) == queues


# --- Assignment (G1) --------------------------------------------------------------------------------------------


async def assigned(client: Client, client_id: str, topic: str = "orders", **more: str) -> list[int] | None:
    asked = AssignmentQuery(client_id=client_id, consumer_group="g", topic=topic, **more)  # type: ignore[arg-type]
    response = await client.ok(RequestCode.QUERY_ASSIGNMENT, None, encode(asked))
    found = decode(response.body, Assignments).message_queue_assignments
    return None if found is None else [assignment.message_queue.queue_id for assignment in found]


async def test_the_broker_divides_queues_as_clients_would(client: Client, connect: Connect) -> None:
    """G1, G2: for a client with clientRebalance=false."""
    await client.create_topic("orders", queues=5)
    await client.consume("a", "g", "orders")
    await (await connect()).consume("b", "g", "orders")

    assert await assigned(client, "a") == [0, 1, 2]
    assert await assigned(client, "b") == [3, 4]
    assert await assigned(client, "a", strategy_name="AVG_BY_CIRCLE") == [0, 2, 4]
    both = [await assigned(client, one, strategy_name="CONSISTENT_HASH") or [] for one in ("a", "b")]
    assert sorted(both[0] + both[1]) == [0, 1, 2, 3, 4]
    assert await assigned(client, "a", message_model=MessageModel.BROADCASTING) == [0, 1, 2, 3, 4]


async def test_without_members_or_queues_a_client_keeps_what_it_has(client: Client) -> None:
    """remoting.md: no list is no answer, an empty list would be an order."""
    await client.create_topic("orders")
    assert await assigned(client, "a") is None
    await client.consume("a", "g", "orders")
    assert await assigned(client, "a", topic="nowhere") is None
    assert await assigned(client, "stranger") == []


async def test_an_unknown_strategy_is_refused_so_that_the_client_divides_itself(client: Client) -> None:
    asked = AssignmentQuery(client_id="a", consumer_group="g", topic="orders", strategy_name="MY_OWN")

    response = await client.call(RequestCode.QUERY_ASSIGNMENT, None, encode(asked))

    assert response.code == ResponseCode.INVALID_PARAMETER
    assert "AVG" in (response.remark or "")


async def test_one_way_requests_are_carried_out_and_not_answered(client: Client) -> None:
    """B2: an unregister sent one-way."""
    await client.consume("a", "g", "orders")
    client.peer.call_oneway(RequestCode.UNREGISTER_CLIENT, UnregisterClient(client_id="a", consumer_group="g"))

    while await members(client, "g"):
        await asyncio.sleep(0)
