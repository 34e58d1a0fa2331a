"""Subscription groups and their progress, as tools ask (D2, D4, D6)."""

from __future__ import annotations

from pathlib import Path

from ternmq.broker.tables.offsets import Offsets
from ternmq.files import TableFile
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import GroupSubscription
from ternmq.wire.bodies.codec import by_queue, decode, encode
from ternmq.wire.bodies.groups import GroupConfigs, GroupReadable, GroupTable, SubscriptionGroupConfig
from ternmq.wire.bodies.stats import BrokerConsumeStats, ConsumeStats
from ternmq.wire.bodies.topics import TopicList
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import PullMessage, PullSysflag, QueryOffset, UpdateOffset
from ternmq.wire.requests_admin import (
    BrokerConsumeStatsQuery,
    ConsumeStatsQuery,
    DeleteGroup,
    Group,
    GroupForbidden,
    Topic,
    TopicOfGroup,
)
from tests.broker.handlers.conftest import Client
from tests.manual_clock import ManualClock


async def groups(client: Client) -> dict[str, SubscriptionGroupConfig]:
    response = await client.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return decode(response.body, GroupTable).subscription_group_table


async def commit(client: Client, topic: str, queue_offset: int, *, group: str = "g") -> None:
    header = UpdateOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=queue_offset)
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def progress(client: Client, **asked: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Consumer offset and end of each queue."""
    header = ConsumeStatsQuery(consumer_group="g", **asked)
    stats = decode((await client.ok(RequestCode.GET_CONSUME_STATS, header)).body, ConsumeStats)
    return {
        (queue.topic, queue.queue_id): (one.consumer_offset, one.broker_offset)
        for queue, one in by_queue(stats.offset_table).items()
    }


async def put_group(client: Client, group: str) -> None:
    body = encode(SubscriptionGroupConfig(group_name=group))
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


async def pulls(client: Client, queue_offset: int, *, count_max: int = 32) -> None:
    """A pull of the first queue of «orders»."""
    header = PullMessage(
        consumer_group="g",
        topic="orders",
        queue_id=0,
        queue_offset=queue_offset,
        count_max=count_max,
        sysflag=PullSysflag.SUBSCRIPTION,
        subscription="*",
    )
    await client.call(RequestCode.PULL_MESSAGE, header)


async def pull_offset(client: Client) -> int | None:
    header = ConsumeStatsQuery(consumer_group="g", topic="orders")
    stats = decode((await client.ok(RequestCode.GET_CONSUME_STATS, header)).body, ConsumeStats)
    return by_queue(stats.offset_table)[MessageQueue("orders", "broker-a", 0)].pull_offset


async def test_a_group_is_created_changed_shown_and_deleted(client: Client) -> None:
    """D2."""
    config = SubscriptionGroupConfig(group_name="g", retry_max_times=3, consume_broadcast_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(config))
    response = await client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Group(group="g"))
    assert decode(response.body, SubscriptionGroupConfig) == config
    assert (await groups(client))["g"] == config

    many = GroupConfigs(group_config_list=[SubscriptionGroupConfig(group_name=name) for name in ("h", "i")])
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, encode(many))
    assert {"g", "h", "i"} <= (await groups(client)).keys()

    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group_name="g"))
    missing = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Group(group="g"))
    assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_offsets_go_with_a_group_only_if_asked(client: Client) -> None:
    """D2, D4: 4.9 and 5.x name the flag differently."""
    await client.create_topic("orders")
    where = QueryOffset(consumer_group="g", topic="orders", queue_id=0, set_zero_if_not_found=False)
    for header, code in (
        (DeleteGroup(group_name="g"), ResponseCode.SUCCESS),
        (DeleteGroup(group_name="g", remove_offset=True), ResponseCode.QUERY_NOT_FOUND),
        (DeleteGroup(group_name="g", clean_offset=True), ResponseCode.QUERY_NOT_FOUND),
    ):
        await commit(client, "orders", 1)
        await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        assert (await client.call(RequestCode.QUERY_CONSUMER_OFFSET, where)).code == code


async def test_a_group_that_cannot_be_is_refused(client: Client) -> None:
    for body in (encode(SubscriptionGroupConfig(group_name="a b")), b"{}", b"nonsense"):
        response = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        assert response.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    response = await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group_name="TOOLS_CONSUMER"))
    assert response.code == ResponseCode.INVALID_PARAMETER


async def test_progress_is_offset_against_end(client: Client) -> None:
    """D4: the difference is the lag."""
    await client.create_topic("orders", queues=2)
    await client.send("orders", b"1", b"2", b"3")
    assert await progress(client) == {}
    await commit(client, "orders", 2)

    everything = {("orders", 0): (2, 3), ("orders", 1): (0, 0)}
    assert await progress(client) == everything
    assert await progress(client, topic="orders") == everything
    assert await progress(client, topic_list="orders;nowhere;") == everything
    assert await progress(client, topic="nowhere") == {}


async def test_a_topic_that_the_group_does_not_subscribe_to_any_more_is_left_out(client: Client) -> None:
    """D4: known only while it is online."""
    for topic in ("old", "orders"):
        await client.create_topic(topic, queues=1)
        await commit(client, topic, 0)
    assert set(await progress(client)) == {("old", 0), ("orders", 0)}

    await client.consume("a", "g", "orders")

    assert set(await progress(client)) == {("orders", 0)}


async def test_the_progress_of_all_groups_at_once(client: Client) -> None:
    """D4, D6: 317, all topics or the ordered ones."""
    await client.create_topic("orders", queues=1)
    await client.create_topic("steps", queues=1, order=True)
    await client.send("orders", b"1", b"2", b"3")
    await client.send("steps", b"1", b"2")
    for topic, group in (("orders", "g"), ("steps", "g"), ("orders", "h")):
        await commit(client, topic, 1, group=group)

    async def lags(*, is_order: bool) -> tuple[dict[str, list[int]], int]:
        header = BrokerConsumeStatsQuery(is_order=is_order)
        found = decode((await client.ok(RequestCode.GET_BROKER_CONSUME_STATS, header)).body, BrokerConsumeStats)
        by_group = {
            group: [queue.broker_offset - queue.consumer_offset for one in stats for queue in one.offset_table.values()]
            for table in found.consume_stats_list
            for group, stats in table.items()
        }
        return by_group, found.total_diff

    assert ({"g": [2, 1], "h": [2]}, 5) == await lags(is_order=False)
    assert ({"g": [1]}, 1) == await lags(is_order=True)


async def test_which_topics_a_group_reads_and_what_it_wants_of_them(client: Client) -> None:
    """D6: 343 and 345."""
    await client.create_topic("orders")
    await commit(client, "orders", 1)
    topics = decode((await client.ok(RequestCode.QUERY_TOPICS_BY_CONSUMER, Group(group="g"))).body, TopicList)
    assert ["orders"] == topics.topic_list

    async def wanted() -> str | None:
        header = TopicOfGroup(group="g", topic="orders")
        body = (await client.ok(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)).body
        found = decode(body, GroupSubscription).subscription_data
        return None if found is None else found.sub_string

    assert None is await wanted()
    await client.consume("me", "g", "orders")
    assert "*" == await wanted()


async def test_a_group_may_be_forbidden_to_read_a_topic(client: Client) -> None:
    """D2: 353, kept in the groups' file."""
    await client.create_topic("orders")
    await client.send("orders", b"1")
    await client.consume("me", "g", "orders")

    async def readable(asked: bool | None = None) -> bool:
        header = GroupForbidden(group="g", topic="orders", readable=asked)
        body = (await client.ok(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)).body
        return decode(body, GroupReadable).readable

    async def pull() -> int:
        header = PullMessage(consumer_group="g", topic="orders", queue_id=0, queue_offset=0, count_max=1, sysflag=0)
        return (await client.call(RequestCode.PULL_MESSAGE, header)).code

    assert (True, ResponseCode.SUCCESS) == (await readable(), await pull())
    assert (False, ResponseCode.NO_PERMISSION) == (await readable(asked=False), await pull())
    table = decode((await client.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body, GroupTable)
    assert {"g": {"orders": 4}} == table.forbidden_table
    assert (True, ResponseCode.SUCCESS) == (await readable(asked=True), await pull())
    unknown = GroupForbidden(group="g", topic="ordrs", readable=False)
    response = await client.call(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, unknown)
    assert ResponseCode.TOPIC_NOT_EXIST == response.code


async def test_progress_tells_how_far_a_group_has_pulled(client: Client) -> None:
    """D4, issue 13.15: what lies between that and the committed offset is in the members' hands."""
    await client.create_topic("orders", queues=1)
    await client.send("orders", b"0", b"1", b"2")
    await put_group(client, "g")
    assert 0 == await pull_offset(client)

    await pulls(client, 0, count_max=2)
    assert 2 == await pull_offset(client)
    await pulls(client, 2)
    await pulls(client, 3)  # finds nothing
    assert 3 == await pull_offset(client)

    # As a member does that begins anew; but never behind the committed offset.
    await pulls(client, 0, count_max=1)
    assert 1 == await pull_offset(client)
    await commit(client, "orders", 2)
    assert 2 == await pull_offset(client)


def test_a_group_that_was_reset_has_pulled_nothing_since(tmp_path: Path) -> None:
    """D4: a tool must not show messages in the members' hands that they will pull again."""
    offsets = Offsets(
        TableFile(tmp_path / "consumerOffset.json"), TableFile(tmp_path / "ownOffset.json"), ManualClock()
    )
    offsets.pulled("g", "orders", 0, 9)
    offsets.reset("g", "orders", 0, 3, has_readers=False)
    assert 3 == offsets.pull_offset("g", "orders", 0)


async def test_a_pull_by_a_group_that_does_not_exist_leaves_no_trace(client: Client) -> None:
    """D2, D4, issue 13: pulls by names that clients invent filled the table of pull offsets."""
    await client.create_topic("orders", queues=1)
    await client.send("orders", b"0")

    await pulls(client, 0)

    assert 0 == await pull_offset(client)


async def test_a_group_that_is_deleted_has_pulled_nothing(client: Client) -> None:
    """D4, issue 13.15: nor one of a deleted topic; the table has only what exists."""
    for forget, header in (
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group_name="g")),
        (RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="orders")),
    ):
        await client.create_topic("orders", queues=1)
        await client.send("orders", b"0")
        await put_group(client, "g")
        await pulls(client, 0, count_max=1)
        assert 1 == await pull_offset(client)

        await client.ok(forget, header)
        await client.create_topic("orders", queues=1)

        assert 0 == await pull_offset(client)
