"""Offsets of whole groups, as tools move them (D4, D6)."""

from __future__ import annotations

import pytest

from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import QueueOffsets
from ternmq.wire.bodies.codec import by_queue, decode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import OffsetReply, QueryOffset, ResetOffset, UpdateOffset
from ternmq.wire.requests_admin import CloneGroupOffset
from tests.broker.handlers.conftest import Client, Connect


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


@pytest.fixture
async def tool(client: Client) -> Client:
    """Three messages in queue 0 of two, of which the group ``g`` has consumed two."""
    await client.create_topic("orders", queues=2)
    await client.send("orders", b"1", b"2", b"3")
    await commit(client, 2)
    return client


async def test_a_reset_is_pushed_to_every_member(tool: Client, connect: Connect) -> None:
    """D4: a client's reset is pushed to it."""
    members = [await connect(), await connect()]
    for number, member in enumerate(members):
        await member.consume(f"member-{number}", "g", "orders")

    assert await reset(tool, time_ms=0) == {0: 0, 1: 0}

    for member in members:
        header, body = await member.resets.get()
        assert (header.group, header.topic) == ("g", "orders")
        assert by_queue(decode(body, QueueOffsets).offset_table)[MessageQueue("orders", "broker-a", 0)] == 0
        # Go's client crashes on valid JSON here (remoting.md).
        assert body.startswith(b'{"offsetTable":{{"brokerName":"broker-a",')


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


async def test_nobody_can_be_told_when_nobody_is_there(tool: Client) -> None:
    """D4: tools commit the offsets themselves then."""
    header = ResetOffset(topic="orders", group="g", time_ms=0)
    response = await tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert response.code == ResponseCode.CONSUMER_NOT_ONLINE

    header = ResetOffset(topic="nowhere", group="g", time_ms=0)
    response = await tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert response.code == ResponseCode.TOPIC_NOT_EXIST


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
