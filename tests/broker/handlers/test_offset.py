"""Consumer offsets and the bounds of queues, as clients call them (D4, F3, F6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.env import Env
from ternmq.wire.codes import BINARY, JSON, RequestCode, ResponseCode
from ternmq.wire.header import Header
from ternmq.wire.requests import OffsetReply, QueryOffset, QueueBounds, SearchOffset, TimeReply, UpdateOffset
from tests.broker.handlers.conftest import Client, broker_config, connecting, store_config
from tests.manual_clock import ManualClock


async def offset_of(client: Client, code: int, header: Header) -> int:
    return (await client.ok(code, header)).read(OffsetReply).queue_offset


def where(topic: str = "orders", queue_id: int = 0, *, group: str = "g", set_zero: bool | None = None) -> QueryOffset:
    return QueryOffset(consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=set_zero)


def commit(queue_offset: int, topic: str = "orders", queue_id: int = 0) -> UpdateOffset:
    return UpdateOffset(consumer_group="g", topic=topic, queue_id=queue_id, commit_offset=queue_offset)


@pytest.mark.parametrize("form", [JSON, BINARY])
async def test_a_committed_offset_is_found_again(client: Client, form: int) -> None:
    """D4."""
    await client.create_topic("orders")

    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, commit(7), form=form)

    assert await offset_of(client, RequestCode.QUERY_CONSUMER_OFFSET, where()) == 7


async def test_a_one_way_commit_counts_too(client: Client) -> None:
    """D4: how consumers send it."""
    await client.create_topic("orders")
    client.peer.call_oneway(RequestCode.UPDATE_CONSUMER_OFFSET, commit(7))

    while await offset_of(client, RequestCode.QUERY_CONSUMER_OFFSET, where()) != 7:
        await asyncio.sleep(0)


async def test_offsets_are_there_after_a_restart(tmp_path: Path) -> None:
    """D4: saved at the end, whatever the interval."""
    for first in (True, False):
        async with Broker(broker_config(), store_config(tmp_path)) as broker, connecting(broker) as connect:
            client = await connect()
            if first:
                await client.create_topic("orders")
                await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, commit(7))
            assert await offset_of(client, RequestCode.QUERY_CONSUMER_OFFSET, where()) == 7


async def test_a_group_new_to_a_young_queue_begins_with_the_first_message(client: Client) -> None:
    """F6: unless it asks not to (RocketMQ 5)."""
    await client.create_topic("orders")
    await client.send("orders", b"1", b"2")

    assert await offset_of(client, RequestCode.QUERY_CONSUMER_OFFSET, where()) == 0
    assert await offset_of(client, RequestCode.QUERY_CONSUMER_OFFSET, where(queue_id=1)) == 0
    response = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, where(set_zero=False))
    assert response.code == ResponseCode.QUERY_NOT_FOUND


async def test_only_what_exists_can_be_committed(client: Client) -> None:
    """D4: typing errors would stay in the table for ever."""
    await client.create_topic("orders")

    for header, code in (
        (commit(7, topic="ordres"), ResponseCode.TOPIC_NOT_EXIST),
        (commit(-1), ResponseCode.INVALID_PARAMETER),
        (commit(7, queue_id=-1), ResponseCode.INVALID_PARAMETER),
    ):
        assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == code


async def test_the_bounds_of_a_queue_are_told(client: Client) -> None:
    """F3."""
    await client.send("orders", b"1", b"2", b"3")
    queue = QueueBounds(topic="orders", queue_id=0)

    assert await offset_of(client, RequestCode.GET_MAX_OFFSET, queue) == 3
    assert await offset_of(client, RequestCode.GET_MIN_OFFSET, queue) == 0
    assert await offset_of(client, RequestCode.GET_MAX_OFFSET, QueueBounds(topic="orders", queue_id=1)) == 0
    assert (await client.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)).read(TimeReply).time_ms > 0


async def test_an_offset_is_found_by_time(client: Client) -> None:
    """F6: the first message at or after a time; with UPPER the last at or before."""
    await client.send("orders", b"1", b"2", b"3")

    async def search(time_ms: int, boundary: str | None = None) -> int:
        header = SearchOffset(topic="orders", queue_id=0, time_ms=time_ms, boundary_type=boundary)
        return await offset_of(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    assert await search(0) == 0
    assert await search(2**45) == 3
    assert await search(2**45, "upper") == 2


async def test_both_boundaries_of_a_time_are_exact(tmp_path: Path) -> None:
    """L2, F6: as RocketMQ 5: LOWER is the first message at or after, UPPER the last at or before; many may share a
    millisecond, and the answer is never outside the queue."""
    clock = ManualClock()
    async with (
        Broker(broker_config(), store_config(tmp_path), Env(clock=clock)) as broker,
        connecting(broker) as connect,
    ):
        client = await connect()
        times = []
        for after_ms in (0, 1, 0, 0, 1, 5):
            clock.advance(after_ms / 1000)
            times.append(clock.now_ms())
            await client.send("orders", b"x")

        async def search(time_ms: int, boundary: str | None, queue_id: int = 0) -> int:
            header = SearchOffset(topic="orders", queue_id=queue_id, time_ms=time_ms, boundary_type=boundary)
            return await offset_of(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

        wanted = [0, times[0] - 1, times[0], times[1], times[4], times[4] + 1, times[5] - 1, times[5], times[5] + 1]
        assert [await search(at, None) for at in wanted] == [0, 0, 0, 1, 4, 5, 5, 5, 6]
        assert [await search(at, "Lower") for at in wanted] == [0, 0, 0, 1, 4, 5, 5, 5, 6]
        assert [await search(at, "UPPER") for at in wanted] == [0, 0, 0, 3, 4, 4, 4, 5, 5]
        # RocketMQ takes what it does not know for LOWER, and an empty queue for one that begins at 0.
        assert (await search(times[1], "sideways"), await search(times[1], "UPPER", 1)) == (1, 0)
