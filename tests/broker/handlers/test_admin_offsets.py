"""Offsets of whole groups, as tools move them (D4, D6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import MessageModel, QueueOffsets
from ternmq.wire.bodies.codec import by_queue, decode
from ternmq.wire.bodies.stats import CorrectionOffsets, TimeSpans
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import (
    OffsetReply,
    PullMessage,
    PullReply,
    PullSysflag,
    QueryOffset,
    QueueBounds,
    ResetOffset,
    UnregisterClient,
    UpdateOffset,
)
from ternmq.wire.requests_admin import CloneGroupOffset, CorrectionOffset, TopicOfGroup
from tests.broker.handlers.conftest import Client, Connect, broker_config, connecting, store_config


async def offset_of(client: Client, group: str, topic: str = "orders") -> int | None:
    header = QueryOffset(consumer_group=group, topic=topic, queue_id=0, set_zero_if_not_found=False)
    response = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return response.read(OffsetReply).queue_offset if response.code == ResponseCode.SUCCESS else None


async def commit(client: Client, queue_offset: int, topic: str = "orders") -> None:
    header = UpdateOffset(consumer_group="g", topic=topic, queue_id=0, commit_offset=queue_offset)
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def reset(client: Client, time_ms: int = 0, **more: object) -> dict[int, int]:
    """The new offset of each queue, as the broker answers."""
    header = ResetOffset(topic="orders", group="g", time_ms=time_ms, **more)  # type: ignore[arg-type]  # test values
    response = await client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    table = by_queue(decode(response.body, QueueOffsets).offset_table)
    return {queue.queue_id: queue_offset for queue, queue_offset in table.items()}


async def prepare(client: Client) -> Client:
    """Three messages in queue 0 of two, of which the group ``g`` has consumed two."""
    await client.create_topic("orders", queues=2)
    await client.send("orders", b"1", b"2", b"3")
    await commit(client, 2)
    return client


@pytest.fixture
async def tool(client: Client) -> Client:
    return await prepare(client)


@pytest.fixture
async def connect_4(tmp_path: Path) -> AsyncIterator[Connect]:
    """To a broker that resets as RocketMQ 4.9 does."""
    config = broker_config(use_server_side_reset_offset=False)
    async with Broker(config, store_config(tmp_path)) as broker, connecting(broker) as connect:
        yield connect


# --- As RocketMQ 5: the answer to a pull ------------------------------------------------------------------------


async def pull(client: Client, queue_offset: int, *, wait: bool = False, commit_offset: int | None = None) -> Response:
    sysflag = (PullSysflag.SUSPEND if wait else 0) | (PullSysflag.COMMIT_OFFSET if commit_offset is not None else 0)
    header = PullMessage(
        consumer_group="g",
        topic="orders",
        queue_id=0,
        queue_offset=queue_offset,
        count_max=1,
        sysflag=sysflag,
        commit_offset=commit_offset or 0,
        suspend_timeout_ms=60_000,
    )
    return await client.call(RequestCode.PULL_MESSAGE, header)


async def test_the_next_pull_is_sent_to_the_new_offset(tool: Client) -> None:
    """D4, L2: once; what the member commits before it knows does not count."""
    await tool.consume("a", "g", "orders")

    assert await reset(tool, time_ms=0) == {0: 0, 1: 0}
    await commit(tool, 3)
    moved = await pull(tool, 3, commit_offset=3)
    served = await pull(tool, 0)

    reply = moved.read(PullReply)
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert (reply.next_offset, reply.min_offset, reply.max_offset) == (0, 0, 3)
    assert (served.code, await offset_of(tool, "g")) == (ResponseCode.SUCCESS, 0)
    await commit(tool, 1)
    assert await offset_of(tool, "g") == 1


async def test_a_held_pull_is_answered_with_the_new_offset_at_once(tool: Client, connect: Connect) -> None:
    """D4, F8: not when the next message comes; pulls of other groups stay held."""
    member, other = await connect(), await connect()
    await member.consume("a", "g", "orders")
    held = asyncio.ensure_future(pull(member, 3, wait=True))
    await member.ok(RequestCode.GET_MAX_OFFSET, QueueBounds(topic="orders", queue_id=0))
    foreign = PullMessage(
        consumer_group="others",
        topic="orders",
        queue_id=0,
        queue_offset=3,
        count_max=1,
        sysflag=PullSysflag.SUSPEND | PullSysflag.SUBSCRIPTION,
        suspend_timeout_ms=60_000,
        subscription="*",
    )
    still_held = asyncio.ensure_future(other.call(RequestCode.PULL_MESSAGE, foreign))
    await other.ok(RequestCode.GET_MAX_OFFSET, QueueBounds(topic="orders", queue_id=0))

    await reset(tool, queue_id=0, queue_offset=1, force=True)

    assert (await held).read(PullReply).next_offset == 1
    assert not still_held.done()
    await tool.send("orders", b"4")
    assert (await still_held).code == ResponseCode.SUCCESS


async def test_a_member_that_is_there_already_is_served(tool: Client) -> None:
    """D4: it would take «go to where you are» for an error."""
    await tool.consume("a", "g", "orders")

    await reset(tool, queue_id=0, queue_offset=1, force=True)

    assert (await pull(tool, 1)).code == ResponseCode.SUCCESS
    assert (await pull(tool, 2)).code == ResponseCode.SUCCESS


async def test_a_group_without_members_is_just_moved(tool: Client) -> None:
    """D4: and who joins later is not told again; commits count at once."""
    assert await reset(tool, time_ms=0) == {0: 0, 1: 0}
    assert await offset_of(tool, "g") == 0

    await commit(tool, 1)
    await tool.consume("a", "g", "orders")
    assert (await offset_of(tool, "g"), (await pull(tool, 2)).code) == (1, ResponseCode.SUCCESS)


async def test_a_second_reset_replaces_one_that_no_member_knows_of(tool: Client) -> None:
    """D4: also when the members have left meanwhile."""
    await tool.consume("a", "g", "orders")
    await reset(tool, time_ms=0)
    assert (await reset(tool, time_ms=-1, force=True))[0] == 3
    assert (await pull(tool, 0)).read(PullReply).next_offset == 3

    await reset(tool, time_ms=0)
    await tool.ok(RequestCode.UNREGISTER_CLIENT, UnregisterClient(client_id="a", consumer_group="g"))
    await reset(tool, queue_id=0, queue_offset=2, force=True)
    assert await offset_of(tool, "g") == 2
    await commit(tool, 1)
    assert await offset_of(tool, "g") == 1


async def test_nothing_is_reset_that_does_not_exist(tool: Client) -> None:
    """D4: typing errors would stay in the table for ever."""
    for topic, group, code in (
        ("nowhere", "g", ResponseCode.TOPIC_NOT_EXIST),
        ("orders", "nobody", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ):
        header = ResetOffset(topic=topic, group=group, time_ms=0)
        assert (await tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == code


async def test_only_a_forced_reset_moves_forward(tool: Client) -> None:
    """D4."""
    await tool.consume("a", "g", "orders")

    assert (await reset(tool, time_ms=-1))[0] == 2
    assert (await reset(tool, time_ms=-1, force=True))[0] == 3
    assert (await reset(tool, time_ms=2**45, force=True))[0] == 3


async def test_a_reset_can_name_a_queue_and_an_offset(tool: Client) -> None:
    """D4: RocketMQ 5's tools; what lies outside the queue is brought back into it."""
    await tool.consume("a", "g", "orders")

    assert await reset(tool, queue_id=0, queue_offset=1, force=True) == {0: 1}
    assert await reset(tool, queue_id=0, queue_offset=99, force=True) == {0: 3}
    assert await reset(tool, queue_id=-1, queue_offset=-1) == {0: 0, 1: 0}


# --- As RocketMQ 4.9: a call to each member ---------------------------------------------------------------------


async def pushed(members: Sequence[Client]) -> None:
    """Each member has been told the new offset, 0."""
    for member in members:
        header, body = await member.resets.get()
        assert (header.group, header.topic) == ("g", "orders")
        assert by_queue(decode(body, QueueOffsets).offset_table)[MessageQueue("orders", "broker-a", 0)] == 0
        # Go's client crashes on valid JSON here (remoting.md).
        assert body.startswith(b'{"offsetTable":{{"brokerName":"broker-a",')


async def test_a_reset_is_pushed_to_every_member(connect_4: Connect) -> None:
    """D4: a client's reset is pushed to it."""
    tool = await prepare(await connect_4())
    members = [await connect_4(), await connect_4()]
    for number, member in enumerate(members):
        await member.consume(f"member-{number}", "g", "orders")

    assert await reset(tool, time_ms=0) == {0: 0, 1: 0}

    await pushed(members)


async def test_in_broadcasting_a_reset_is_always_pushed(tool: Client, connect: Connect) -> None:
    """D4, F5: each member has an offset of its own."""
    members = [await connect(), await connect()]
    for number, member in enumerate(members):
        await member.consume(f"member-{number}", "g", "orders", message_model=MessageModel.BROADCASTING)

    assert await reset(tool, time_ms=0) == {0: 0, 1: 0}

    await pushed(members)
    assert (await pull(members[0], 1)).code == ResponseCode.SUCCESS


async def test_a_group_without_members_cannot_be_told(connect_4: Connect) -> None:
    """D4: tools commit the offsets themselves then."""
    tool = await prepare(await connect_4())

    header = ResetOffset(topic="orders", group="g", time_ms=0)
    response = await tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert response.code == ResponseCode.CONSUMER_NOT_ONLINE


# --- Cloning ----------------------------------------------------------------------------------------------------


async def test_a_group_is_cloned_on_one_topic_or_on_all(tool: Client) -> None:
    """D4."""
    await tool.create_topic("other")
    await commit(tool, 0, "other")

    one = CloneGroupOffset(source_group="g", target_group="one", topic="orders")
    everything = CloneGroupOffset(source_group="g", target_group="all")
    for header in (one, everything):
        await tool.ok(RequestCode.CLONE_GROUP_OFFSET, header)

    assert (await offset_of(tool, "one"), await offset_of(tool, "one", "other")) == (2, None)
    assert (await offset_of(tool, "all"), await offset_of(tool, "all", "other")) == (2, 0)


async def test_the_times_of_a_queue_and_where_a_group_stands_in_it(tool: Client) -> None:
    """D4: 303, of RocketMQ's consoles."""
    header = TopicOfGroup(topic="orders", group="g")
    body = (await tool.ok(RequestCode.QUERY_CONSUME_TIME_SPAN, header)).body
    full, empty = sorted(decode(body, TimeSpans).consume_time_span_set, key=lambda span: span.message_queue.queue_id)
    assert 0 < full.min_time_stamp <= full.consume_time_stamp <= full.max_time_stamp
    assert full.delay_time >= 0
    assert (-1, -1, 0) == (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time)
    missing = await tool.call(RequestCode.QUERY_CONSUME_TIME_SPAN, TopicOfGroup(topic="nowhere", group="g"))
    assert ResponseCode.TOPIC_NOT_EXIST == missing.code


async def test_the_smallest_offset_of_all_groups_of_a_topic(tool: Client) -> None:
    """D4: 308; the group to compare with is told when it is behind them all."""
    late = UpdateOffset(consumer_group="late", topic="orders", queue_id=0, commit_offset=1)
    await tool.ok(RequestCode.UPDATE_CONSUMER_OFFSET, late)

    async def smallest(compare: str, filtered: str | None = None) -> dict[int, int]:
        header = CorrectionOffset(topic="orders", compare_group=compare, filter_groups=filtered)
        body = (await tool.ok(RequestCode.QUERY_CORRECTION_OFFSET, header)).body
        return dict(decode(body, CorrectionOffsets).correction_offsets)

    assert {0: 1} == await smallest("g")
    assert {0: 2} == await smallest("g", "late")
    assert {0: (1 << 63) - 1} == await smallest("late", "late")
    assert {} == await smallest("g", "g,late")
