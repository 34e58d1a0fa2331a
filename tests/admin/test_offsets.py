"""Groups moved through the admin: reset and cloned, with and without members (D4, L2)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.admin.offsets import Move
from ternmq.client.config import ClientConfig
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, GroupMissing, InvalidName, NotFound, RouteMissing
from ternmq.message import Message
from ternmq.wire.bodies.clients import MessageModel
from tests.admin.conftest import QUEUES, Timed
from tests.client.listening import Collector

FIRST, LAST = StartPosition.FIRST, StartPosition.LAST


async def commit(name_servers: str, *offsets: int, group: str = "billing") -> None:
    """Progress of a group without members, in the first queues."""
    async with PullConsumer(group, name_servers=name_servers) as consumer:
        for queue, queue_offset in zip(QUEUES, offsets, strict=False):
            await consumer.commit(queue, queue_offset)


# --- Without members ----------------------------------------------------------------------------------------------


async def test_offsets_are_told_where_there_are_some(timed: Timed, admin: Admin) -> None:
    """D4: 0 is progress, and none is none."""
    for number in range(3):
        await timed.send(b"%d" % number)
    await commit(timed.name_servers, 2)

    assert {QUEUES[0]: 2} == await admin.offsets.of("billing")
    assert {QUEUES[0]: 2} == await admin.offsets.of("billing", topic="orders")
    assert {} == await admin.offsets.of("billing", topic="others")


async def test_a_group_is_rewound_to_the_millisecond(timed: Timed, admin: Admin) -> None:
    """L2."""
    times = []
    for number in range(4):
        await timed.send(b"%d" % number, after_ms=1)
        times.append(timed.clock.now_ms())
    await commit(timed.name_servers, 4, 0)

    for time_ms, expected in ((times[2], 2), (times[1] + 1, 2), (times[1], 1), (times[3] + 1, 4), (0, 0)):
        moves = await admin.offsets.reset("billing", "orders", StartPosition.at(time_ms))
        assert (QUEUES[0], expected) == (moves[0].queue, moves[0].after)
        assert {QUEUES[0]: expected, QUEUES[1]: 0} == await admin.offsets.of("billing")
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=times[2])
    assert 2 == (await admin.offsets.reset("billing", "orders", StartPosition.at(moment)))[0].after


async def test_a_group_goes_to_the_first_and_to_the_last(timed: Timed, admin: Admin) -> None:
    """D4: forward too."""
    for number in range(3):
        await timed.send(b"%d" % number)
    await commit(timed.name_servers, 1)

    assert [Move(QUEUES[0], 1, 3), Move(QUEUES[1], None, 0)] == await admin.offsets.reset("billing", "orders", LAST)
    assert [Move(QUEUES[0], 3, 0), Move(QUEUES[1], 0, 0)] == await admin.offsets.reset("billing", "orders", FIRST)


async def test_a_plan_changes_nothing(timed: Timed, admin: Admin) -> None:
    """D4."""
    await timed.send(b"0")
    await commit(timed.name_servers, 1)

    planned = await admin.offsets.reset("billing", "orders", FIRST, dry_run=True)

    assert {QUEUES[0]: 1} == await admin.offsets.of("billing")
    assert planned == await admin.offsets.reset("billing", "orders", FIRST)


async def test_what_does_not_exist_is_not_moved(timed: Timed, admin: Admin) -> None:
    """D4: and no group is made by a typing error."""
    await commit(timed.name_servers, 0)

    with pytest.raises(GroupMissing, match="group 'biling' does not exist; see `tern group list`"):
        await admin.offsets.reset("biling", "orders", FIRST)
    with pytest.raises(RouteMissing, match="no name server knows the topic 'ordres'"):
        await admin.offsets.reset("billing", "ordres", FIRST)
    with pytest.raises(GroupMissing):
        await admin.offsets.of("biling")
    assert "biling" not in await admin.groups.names()


# --- Members are there --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_server", [True, False], ids=["as RocketMQ 5", "as RocketMQ 4.9"])
async def test_members_go_on_where_they_are_sent(on_server: bool) -> None:
    """D4, L2: at once, and the broker keeps the new progress."""
    seen = Collector()
    async with (
        EmbeddedCluster(settings={"useServerSideResetOffset": on_server}) as cluster,
        Admin(cluster.name_servers) as admin,
        Producer("shop", name_servers=cluster.name_servers) as producer,
    ):
        client = ClientConfig(cluster.name_servers, persist_offset_interval_ms=10)
        await admin.topics.create("orders", queues=1)
        for number in range(3):
            await producer.send(Message("orders", b"%d" % number))
        async with PushConsumer("billing", seen, client=client, start=FIRST) as consumer:
            consumer.subscribe("orders")
            assert ["0", "1", "2"] == await seen.bodies(3)
            await progress(admin, 3)

            (move,) = await admin.offsets.reset("billing", "orders", FIRST)

            assert ["0", "1", "2"] * 2 == await seen.bodies(6)
            assert Move(QUEUES[0], 3, 0) == move
        assert {QUEUES[0]: 3} == await admin.offsets.of("billing", topic="orders")


async def test_in_broadcasting_every_member_goes_back(timed: Timed, admin: Admin, tmp_path: Path) -> None:
    """D4, F5: each keeps its own progress."""
    for number in range(2):
        await timed.send(b"%d" % number)
    config = PushConfig(model=MessageModel.BROADCASTING, start=FIRST, offsets_directory=tmp_path)
    members = [Collector(), Collector()]
    async with AsyncExitStack() as stack:
        for name, seen in zip(("one", "two"), members, strict=True):
            client = ClientConfig(timed.name_servers, instance_name=name)
            consumer = PushConsumer("billing", seen, client=client, config=config)
            consumer.subscribe("orders")
            await stack.enter_async_context(consumer)
            assert ["0", "1"] == await seen.bodies(2)

        await admin.offsets.reset("billing", "orders", FIRST)

        for seen in members:
            assert ["0", "1"] * 2 == await seen.bodies(4)


async def progress(admin: Admin, queue_offset: int) -> None:
    """Wait until the group has reported so much."""
    async with asyncio.timeout(20):
        while (await admin.offsets.of("billing", topic="orders")).get(QUEUES[0]) != queue_offset:
            await asyncio.sleep(0.01)


# --- Cloning ------------------------------------------------------------------------------------------------------


async def test_a_clone_stands_where_its_source_stands(timed: Timed, admin: Admin) -> None:
    """D4: a group that did not exist is made, like its source."""
    for number in range(3):
        await timed.send(b"%d" % number)
    await commit(timed.name_servers, 2)
    await commit(timed.name_servers, 1, 0, group="known")

    assert [Move(QUEUES[0], None, 2)] == await admin.offsets.clone("billing", "fresh")
    assert [Move(QUEUES[0], 1, 2)] == await admin.offsets.clone("billing", "known", topic="orders")

    assert {QUEUES[0]: 2} == await admin.offsets.of("fresh")
    assert {QUEUES[0]: 2, QUEUES[1]: 0} == await admin.offsets.of("known")


async def test_what_cannot_be_cloned_says_why(timed: Timed, admin: Admin) -> None:
    """D4."""
    await commit(timed.name_servers, 0)

    with pytest.raises(NotFound, match=r"'billing' has no offsets on topic 'others'; see `tern group progress bill"):
        await admin.offsets.clone("billing", "fresh", topic="others")
    with pytest.raises(GroupMissing, match="group 'biling' does not exist"):
        await admin.offsets.clone("biling", "fresh")
    with pytest.raises(InvalidName):
        await admin.offsets.clone("billing", "with blank")
    async with PushConsumer("live", lambda _message: None, name_servers=timed.name_servers) as consumer:
        consumer.subscribe("orders")
        await consumer.ready()
        with pytest.raises(ConfigError, match="'live' has 1 active members, which would overwrite the offsets; stop"):
            await admin.offsets.clone("billing", "live")
