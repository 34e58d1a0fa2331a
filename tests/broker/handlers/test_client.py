"""Heartbeats, members, locks and assignments, as clients call them (D3, F2, G1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.handlers.client import LOCKS_MAX
from ternmq.broker.roles import Role, Term
from ternmq.errors import NotMaster
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


async def test_a_heartbeat_is_answered_with_the_difference_between_members(connect: Connect) -> None:
    """Issue 13, 14: each heartbeat of a group whose members subscribe differently, until they agree."""

    async def beat(client: Client, client_id: str, *topics: str) -> str | None:
        said = [SubscriptionData(topic=topic, sub_string="*") for topic in topics]
        data = ConsumerData(group_name="g", subscription_data_set=said)
        body = encode(Heartbeat(client_id=client_id, consumer_data_set=[data]))
        return (await client.ok(RequestCode.HEART_BEAT, None, body)).remark

    one, two = await connect(), await connect()
    assert not await beat(one, "a", "orders")
    for _ in range(2):
        remark = await beat(two, "b", "payments")
        assert remark is not None
        assert "the members of group g have different subscriptions" in remark
    assert remark == await beat(one, "a", "orders")

    assert not await beat(two, "b", "orders")


async def test_a_group_can_ask_not_to_be_told(client: Client, connect: Connect) -> None:
    """D2, D3: notifyConsumerIdsChangedEnable=false."""
    quiet = SubscriptionGroupConfig(group_name="quiet", notify_consumer_ids_changed_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(quiet))

    await client.consume("a", "quiet", "orders")
    await (await connect()).consume("b", "quiet", "orders")
    await client.consume("a", "loud", "orders")

    assert await client.told.get() == "loud"  # nothing came before it


async def test_a_group_without_members_is_an_error_that_keeps_old_assignments(client: Client) -> None:
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
    await client.consume("a", "g", "orders")
    queues = [Queue.of(MessageQueue("orders", "broker-a", queue_id)) for queue_id in range(2)]

    async def lock(client_id: str, queues: list[Queue], group: str = "g") -> list[Queue]:
        body = encode(QueueLocks(client_id=client_id, consumer_group=group, queues=queues))
        return decode((await client.ok(RequestCode.LOCK_BATCH_MQ, None, body)).body, LockedQueues).queues

    assert await lock("a", queues[:1]) == queues[:1]
    assert await lock("b", queues) == queues[1:]
    assert await lock("b", [Queue(topic="nowhere", broker_name="broker-a", queue_id=0)]) == []
    assert await lock("b", [Queue(topic="orders", broker_name="broker-a", queue_id=2)]) == []
    assert await lock("b", queues, "invented") == []

    unlock = encode(QueueLocks(client_id="a", consumer_group="g", queues=queues))
    await client.ok(RequestCode.UNLOCK_BATCH_MQ, None, unlock, form=BINARY)
    assert await lock("b", queues) == queues


async def test_only_a_master_grants_locks(broker: Broker, client: Client) -> None:
    """F2, I1: a client that has not heard of the new master yet renews at the old one; granted there, a queue would
    have two owners."""
    await client.create_topic("orders")
    await client.consume("a", "g", "orders")
    queue = Queue.of(MessageQueue("orders", "broker-a", 0))

    async def lock(client_id: str) -> tuple[int, list[Queue]]:
        body = encode(QueueLocks(client_id=client_id, consumer_group="g", queues=[queue]))
        response = await client.call(RequestCode.LOCK_BATCH_MQ, None, body)
        return response.code, decode(response.body, LockedQueues).queues if response.body else []

    assert await lock("a") == (ResponseCode.SUCCESS, [queue])
    broker.roles.step_down(NotMaster("another broker is the master"))
    assert await lock("a") == (ResponseCode.SERVICE_NOT_AVAILABLE, [])
    await broker.roles.become(Role.SLAVE, Term(2))
    assert await lock("a") == (ResponseCode.SERVICE_NOT_AVAILABLE, [])
    await broker.roles.become(Role.MASTER, Term(3))
    assert await lock("b") == (ResponseCode.SUCCESS, [queue])


async def test_queues_that_do_not_exist_are_not_locked(client: Client) -> None:
    """Issue 13, 4: they would fill the table."""
    await client.create_topic("orders")
    await client.consume("a", "g", "orders")
    queues = [Queue(topic="orders", broker_name="broker-a", queue_id=queue_id) for queue_id in (-1, 1, 2, 1 << 40)]
    body = encode(QueueLocks(client_id="a", consumer_group="g", queues=queues))
    response = await client.ok(RequestCode.LOCK_BATCH_MQ, None, body)
    assert queues[1:2] == decode(response.body, LockedQueues).queues


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
async def test_a_request_for_locks_names_so_many_queues_at_most(client: Client, code: int) -> None:
    """Issue 13, 4"""
    queue = b'{"brokerName":"b","queueId":0,"topic":"t"}'
    body = b'{"clientId":"a","consumerGroup":"g","mqSet":[' + b",".join([queue] * (LOCKS_MAX + 1)) + b"]}"
    response = await client.call(code, None, body)
    assert ResponseCode.INVALID_PARAMETER == response.code
    assert f"{LOCKS_MAX + 1} queues in one request, more than the {LOCKS_MAX}" in (response.remark or "")


# --- Subscriptions that are too large (issue 13, 4) -------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscriptions", "reason"),
    [
        (
            [SubscriptionData(topic=f"t{number}") for number in range(5_000)],
            "5000 topics, more than the 4096 that maxSub",
        ),
        ([SubscriptionData(topic="t", sub_string="x" * 20_000)], "has 20000 characters, more than the 16384 that maxF"),
        ([SubscriptionData(topic="t", tags_set=["a"] * 20_000)], "has 20000 characters, more than the 16384 that maxF"),
        ([SubscriptionData(topic="t", code_set=[1] * 20_000)], "has 20000 characters, more than the 16384 that maxF"),
        (
            [SubscriptionData(topic="t" * 100, sub_string="x" * 16_000)] * 70,
            "1127000 characters, more than the 1048576",
        ),
    ],
    ids=["topics", "expression", "tags", "codes", "all together"],
)
async def test_a_group_that_subscribes_to_too_much_is_left_out_and_the_others_are_not(
    client: Client, subscriptions: list[SubscriptionData], reason: str
) -> None:
    """Issue 13, 4: the reply names the group and the limit."""
    consumers = [
        ConsumerData(group_name="before", subscription_data_set=[SubscriptionData(topic="orders")]),
        ConsumerData(group_name="large", subscription_data_set=subscriptions),
        ConsumerData(group_name="after", subscription_data_set=[SubscriptionData(topic="orders")]),
    ]
    body = encode(Heartbeat(client_id="a", consumer_data_set=consumers))

    response = await client.call(RequestCode.HEART_BEAT, None, body)

    assert ResponseCode.INVALID_PARAMETER == response.code
    assert "large" in (response.remark or "")
    assert reason in (response.remark or "")
    assert [["a"], [], ["a"]] == [await members(client, group) for group in ("before", "large", "after")]


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


async def test_a_client_id_has_a_bound(client: Client) -> None:
    """D3, F2, issue 13, 6: it is kept with each group and lock."""
    client_id = "x" * 1_025
    heartbeat = Heartbeat(client_id=client_id, consumer_data_set=[ConsumerData(group_name="g")])
    locks = QueueLocks(client_id=client_id, consumer_group="g", queues=[])
    for code, body in ((RequestCode.HEART_BEAT, encode(heartbeat)), (RequestCode.LOCK_BATCH_MQ, encode(locks))):
        response = await client.call(code, None, body)

        assert ResponseCode.INVALID_PARAMETER == response.code
        assert "1025 characters" in (response.remark or "")


async def test_the_members_of_a_group_together_subscribe_to_so_many_topics(tmp_path: Path) -> None:
    """D3, issue 13, 6: each heartbeat of a group looks at all of them."""
    async with (
        Broker(broker_config(max_subscriptions_per_group=3), store_config(tmp_path)) as broker,
        connecting(broker) as connect,
    ):
        one, other = await connect(), await connect()
        await one.consume("a", "g", "t1", "t2")
        await other.consume("b", "g", "t2", "t3")

        body = Heartbeat(
            client_id="b",
            consumer_data_set=[
                ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic=t) for t in ("t3", "t4")])
            ],
        )
        response = await other.call(RequestCode.HEART_BEAT, None, encode(body))

        assert ResponseCode.INVALID_PARAMETER == response.code
        assert "4 topics" in (response.remark or "")
