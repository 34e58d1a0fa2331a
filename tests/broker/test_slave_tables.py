"""What a slave has of its master beside the log: deletions, filters, delayed messages, tables in time (O4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.delay.rocketmq_timer import unpack_check_point
from ternmq.replication.handshake import Refusal
from ternmq.replication.slave import SlaveState
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.filters import FilterTable
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import OffsetReply, QueryOffset, UpdateOffset
from ternmq.wire.requests_admin import Topic
from tests.broker.calls import Caller, dialled
from tests.broker.test_replicating import (
    LONG_S,
    broker,
    copies_tables,
    has_all,
    names,
    pair,
    parts_of,
    slave,
    state_of,
    until,
)

__all__ = ["names"]


def store_of(running: Broker) -> MessageStore:
    return parts_of(running)._store


async def delete(caller: Caller, topic: str) -> None:
    assert (await caller.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic=topic))).code == 0


async def commit(caller: Caller, topic: str, queue_offset: int) -> None:
    header = UpdateOffset(consumer_group="readers", topic=topic, queue_id=0, commit_offset=queue_offset)
    assert (await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def committed(caller: Caller, topic: str) -> int:
    header = QueryOffset(consumer_group="readers", topic=topic, queue_id=0, set_zero_if_not_found=False)
    response = await caller.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return response.read(OffsetReply).queue_offset if response.code == 0 else -1


async def test_a_topic_is_deleted_on_a_slave_where_its_master_deleted_it(tmp_path: Path, names: str) -> None:
    """O4: also one that is made again at once: nothing of the old one is left, and all of the new one is there."""
    async with pair(tmp_path, names) as (master, copy), dialled(master.address) as sender:
        for number in range(5):
            await sender.sent("orders", b"old %d" % number)
            await sender.sent("others", b"%d" % number)
        await sender.heartbeat("readers", {"orders": "*"})
        await commit(sender, "orders", 5)
        await has_all(copy, master)
        await copies_tables(copy)
        async with dialled(copy.address) as reader:
            asked = QueryOffset(consumer_group="readers", topic="orders", queue_id=0)
            response = await reader.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            assert 5 == response.read(OffsetReply).queue_offset
            await delete(sender, "orders")
            await delete(sender, "others")
            await until(lambda: not store_of(copy).topics_with_messages().keys() & {"orders", "others"})
            response = await reader.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            # A group without an offset begins with the first message.
            assert 0 == response.read(OffsetReply).queue_offset

            # Deleted and made again between two looks of the slave.
            await sender.sent("orders", b"first")
            await delete(sender, "orders")
            await sender.sent("orders", b"new")
            await has_all(copy, master)
            assert (0, 1) == (store_of(copy).min_offset("orders", 0), store_of(copy).max_offset("orders", 0))
            await copies_tables(copy)
            assert [b"new"] == await reader.bodies("orders")


async def test_a_deletion_that_is_told_again_leaves_the_next_topic_of_that_name_alone(
    tmp_path: Path, names: str
) -> None:
    """O3, O4: each connection tells of it. Offsets that were committed on the slave since are returned."""
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        async with broker(tmp_path / "one", names) as master, dialled(master.address) as sender:
            await sender.sent("orders", b"old")
            await delete(sender, "orders")
            for number in range(5):
                await sender.sent("orders", b"%d" % number)
            await sender.heartbeat("readers", {"orders": "*"})
            await commit(sender, "orders", 1)
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            await has_all(copy, master)
            await copies_tables(copy)
            assert 1 == await committed(reader, "orders")
        await commit(reader, "orders", 4)
        async with broker(tmp_path / "one", names) as master, dialled(master.address) as sender:
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            await copies_tables(copy)
            assert (4, 4) == (await committed(reader, "orders"), await committed(sender, "orders"))


async def test_a_slave_that_was_away_hears_of_deletions(tmp_path: Path, names: str) -> None:
    """O4: a master remembers them for as long as its log reaches back."""
    async with broker(tmp_path / "one", names) as master, dialled(master.address) as sender:
        await sender.sent("orders", b"0")
        await sender.sent("others", b"0")
        async with slave(tmp_path / "two", names) as copy:
            await has_all(copy, master)
            assert {"orders", "others"} <= store_of(copy).topics_with_messages().keys()
        await delete(sender, "orders")
        await sender.sent("others", b"1")
        async with slave(tmp_path / "two", names) as copy:
            await has_all(copy, master)
            await until(lambda: "orders" not in store_of(copy).topics_with_messages())
        # And after a restart of both.
    async with slave(tmp_path / "two", names) as copy:
        assert "orders" not in store_of(copy).topics_with_messages()


async def test_a_slave_has_the_sql_filters_of_its_master(tmp_path: Path, names: str) -> None:
    """O4, K2: TernMQ's own request; one that the master has forgotten is forgotten here."""
    async with (
        broker(tmp_path / "one", names, enablePropertyFilter="true") as master,
        slave(tmp_path / "two", names, enablePropertyFilter="true") as copy,
        dialled(master.address) as sender,
        dialled(copy.address) as reader,
    ):
        await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
        await sender.sent("orders", b"1")
        await sender.heartbeat("readers", {"orders": "a > 5"}, kind="SQL92")

        async def filters() -> dict[str, str]:
            await copies_tables(copy)
            response = await reader.call(RequestCode.GET_ALL_CONSUMER_FILTER)
            table = decode(bytes(response.body), FilterTable).filter_data_by_topic
            return {group: data.expression for each in table.values() for group, data in each.group_filter_data.items()}

        assert {"readers": "a > 5"} == await filters()
        await sender.heartbeat("readers", {"orders": "a > 6"}, kind="SQL92", version=2)
        assert {"readers": "a > 6"} == await filters()


async def test_an_empty_slave_gets_delayed_messages_that_the_log_has_forgotten(tmp_path: Path, names: str) -> None:
    """O4, I2: their records are in the files of their hour only, which come before the log."""
    settings = {"mappedFileSizeCommitLog": 1 << 16, "maxMessageSize": 8000, "fileReservedTime": 0}
    async with broker(tmp_path / "one", names, **settings) as master, dialled(master.address) as sender:
        await sender.sent("orders", b"late", properties={"TIMER_DELAY_MS": "15000"})
        for number in range(100):
            await sender.sent("others", b"%d" % number * 1000)
        store = store_of(master)
        async with asyncio.timeout(LONG_S):
            while not store.min_log_offset:
                assert (await sender.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
                await asyncio.sleep(0.1)
        async with slave(tmp_path / "two", names, **settings) as copy:
            await has_all(copy, master)
            await copies_tables(copy)
            assert store.min_log_offset >= store_of(copy).min_log_offset > 0
    async with broker(tmp_path / "two", names, **settings) as master, dialled(master.address) as reader:
        async with asyncio.timeout(LONG_S):
            while not await reader.bodies("orders"):
                await asyncio.sleep(0.05)
        assert [b"late"] == await reader.bodies("orders")


async def test_a_slave_keeps_its_tables_while_it_does_not_follow(tmp_path: Path, names: str) -> None:
    """O4: its master has lost its disk. It must not take the tables of an empty broker, nor delete its topics."""
    async with pair(tmp_path, names) as (master, copy), dialled(master.address) as sender:
        await sender.sent("orders", b"1")
        await sender.heartbeat("readers", {"orders": "*"})
        await commit(sender, "orders", 1)
        await has_all(copy, master)
        await copies_tables(copy)
    async with broker(tmp_path / "empty", names), slave(tmp_path / "two", names) as copy:
        await until(lambda: state_of(copy) is SlaveState.REFUSED)
        follower, metadata = parts_of(copy).slave, parts_of(copy).metadata
        assert follower is not None
        assert metadata is not None
        assert Refusal.AHEAD is follower.refusal
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(copies_tables(copy), 3.0)
        async with dialled(copy.address) as reader:
            assert [b"1"] == await reader.bodies("orders")
            asked = QueryOffset(consumer_group="readers", topic="orders", queue_id=0)
            response = await reader.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            assert 1 == response.read(OffsetReply).queue_offset


async def test_what_runs_on_a_master_only_stands_still_on_a_slave(tmp_path: Path, names: str) -> None:
    """O4, I1, I2: a slave delivers nothing itself; what its master delivers is in the log that both have."""
    async with pair(tmp_path, names) as (master, copy), dialled(master.address) as sender:
        await sender.sent("orders", b"by level", properties={"DELAY": "1"})
        await sender.sent("orders", b"by time", properties={"TIMER_DELAY_MS": "1000"})
        async with asyncio.timeout(LONG_S):
            while len(await sender.bodies("orders")) < 2:
                await asyncio.sleep(0.05)
        await has_all(copy, master)
        end = store_of(master).written
        ours, theirs = ((tmp_path / name / "commitlog" / f"{0:020}").read_bytes()[:end] for name in ("one", "two"))
        assert ours == theirs
        point = bytes((await sender.call(RequestCode.GET_TIMER_CHECK_POINT)).body)
        assert 56 == len(point)
        read_time_ms, queue_offset = unpack_check_point(point)
        assert read_time_ms > 1_600_000_000_000
        assert 1 == queue_offset
