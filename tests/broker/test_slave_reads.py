"""Reading from a slave, and the offsets that are committed there (O3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq.broker.broker import Broker
from ternmq.env import Env
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.replication.slave import SlaveState
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import OffsetReply, PullReply, PullSysflag, QueryOffset, ResetOffset, UpdateOffset
from ternmq.wire.requests_admin import Topic
from tests.broker.calls import Caller, dialled
from tests.broker.test_replicating import LONG_S, broker, copies_tables, has_all, parts_of, slave, state_of, until

GROUP: Final = "readers"


@pytest.fixture
async def names() -> AsyncIterator[str]:
    """A name server."""
    async with NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"), Env()) as server:
        yield f"127.0.0.1:{server.port}"


async def committed(caller: Caller) -> int:
    header = QueryOffset(consumer_group=GROUP, topic="orders", queue_id=0, set_zero_if_not_found=False)
    response = await caller.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return response.read(OffsetReply).queue_offset if response.code == 0 else -1


async def commit(caller: Caller, queue_offset: int) -> None:
    header = UpdateOffset(consumer_group=GROUP, topic="orders", queue_id=0, commit_offset=queue_offset)
    response = await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert response.code == 0, response.remark


async def pulled(caller: Caller, queue_offset: int, **fields: object) -> tuple[int, int, int]:
    """Code, suggested broker and next offset."""
    response = await caller.pull("orders", queue_offset, consumer_group=GROUP, **fields)
    reply = response.read(PullReply)
    return response.code, reply.suggested_broker_id, reply.next_offset


async def filled(tmp_path: Path, names: str, *, count: int) -> None:
    """A pair that has messages and a group with an offset, and is stopped."""
    async with broker(tmp_path / "one", names) as master, dialled(master.address) as sender:
        for number in range(count):
            await sender.sent("orders", b"%d" % number)
        await sender.heartbeat(GROUP, {"orders": "*"})
        await commit(sender, 1)
        async with slave(tmp_path / "two", names) as copy:
            await has_all(copy, master)
            await copies_tables(copy)


async def test_a_far_reader_is_sent_to_the_slave_and_back_at_the_end(tmp_path: Path, names: str) -> None:
    """O3: here everything is far, as nothing counts as in memory. Not while the slave is away."""
    settings: dict[str, Any] = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": 0}
    async with broker(tmp_path / "one", names, **settings) as master, dialled(master.address) as reader:
        for number in range(5):
            await reader.sent("orders", b"%d" % number)
        await reader.heartbeat(GROUP, {"orders": "*"})
        assert (0, 0, 1) == await pulled(reader, 0, count_max=1)
        async with slave(tmp_path / "two", names, **settings) as copy, dialled(copy.address) as on_slave:
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            await has_all(copy, master)
            await until(lambda: parts_of(master).keeps_up(1))
            await copies_tables(copy)
            assert not parts_of(master).keeps_up(2)
            assert (0, 1, 1) == await pulled(reader, 0, count_max=1)
            assert (0, 1, 2) == await pulled(on_slave, 1, count_max=1)
            assert (0, 0, 5) == await pulled(on_slave, 2, count_max=32)
            # It came back although it is far: it stays, until it has been at the end.
            assert (0, 0, 2) == await pulled(reader, 1, count_max=1)
            assert (0, 0, 5) == await pulled(reader, 4)
            assert (0, 1, 1) == await pulled(reader, 0, count_max=1)
        await until(lambda: not parts_of(master).keeps_up(1))


async def test_a_slave_does_not_correct_an_offset_that_its_master_may_have(tmp_path: Path, names: str) -> None:
    """O3: a reader beyond its end waits where it is; a master corrects it."""
    await filled(tmp_path, names, count=3)
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        assert (ResponseCode.PULL_NOT_FOUND, 0, 7) == await pulled(reader, 7)
        waits = PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND
        assert (ResponseCode.PULL_NOT_FOUND, 0, 7) == await pulled(reader, 7, sysflag=waits, suspend_timeout_ms=10)
        assert (ResponseCode.PULL_NOT_FOUND, 0, 3) == await pulled(reader, 3)
    async with broker(tmp_path / "one", names) as master, dialled(master.address) as reader:
        assert (ResponseCode.PULL_OFFSET_MOVED, 0, 3) == await pulled(reader, 7)


async def test_a_slave_corrects_an_offset_that_is_too_small_only_if_its_master_has_no_more(
    tmp_path: Path, names: str
) -> None:
    """O3: an empty slave may begin with the last file of its master (``syncFromLastFile``)."""
    body = b"x" * 600_000
    async with broker(tmp_path / "one", names) as master, dialled(master.address) as sender:
        # Three files of the log.
        for _ in range(3):
            await sender.sent("orders", body)
        await sender.heartbeat(GROUP, {"orders": "*"})
        async with slave(tmp_path / "two", names, syncFromLastFile="true") as copy, dialled(copy.address) as reader:
            await has_all(copy, master)
            await copies_tables(copy)
            assert (ResponseCode.PULL_NOT_FOUND, 0, 0) == await pulled(reader, 0)
            assert (0, 0, 3) == await pulled(reader, 2)
            metadata = parts_of(copy).metadata
            assert metadata is not None
            # The master has deleted its older files, too.
            metadata._period_s = 1000
            answer = None
            async with asyncio.timeout(60):
                while answer != (ResponseCode.PULL_OFFSET_MOVED, 0, 2):
                    # Again: a look at the master that is under way still finds them.
                    metadata.master_begin = parts_of(copy)._store.log.begin
                    answer = await pulled(reader, 0)


async def hands_over(copy: Broker, master: Broker) -> None:
    await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
    await has_all(copy, master)
    await copies_tables(copy)


async def test_offsets_that_were_committed_on_a_slave_return_to_the_master(tmp_path: Path, names: str) -> None:
    """O3: also after a restart of the slave, also when the master was restarted after that."""
    await filled(tmp_path, names, count=9)
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        assert 1 == await committed(reader)
        await commit(reader, 5)
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        assert 5 == await committed(reader)
        async with broker(tmp_path / "one", names) as master, dialled(master.address) as member:
            await hands_over(copy, master)
            assert (5, 5) == (await committed(member), await committed(reader))
            # From now on the master's counts again.
            await commit(member, 6)
            await copies_tables(copy)
            assert 6 == await committed(reader)


async def test_a_later_commit_or_reset_on_the_master_wins(tmp_path: Path, names: str) -> None:
    """O3: a member or a tool was faster than the slave."""
    await filled(tmp_path, names, count=9)
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        await commit(reader, 5)
    async with broker(tmp_path / "one", names) as master, dialled(master.address) as tool:
        reset = ResetOffset(topic="orders", group=GROUP, time_ms=0, force=True)
        assert 0 == (await tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code
        assert 0 == await committed(tool)
        async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
            await hands_over(copy, master)
            assert (0, 0) == (await committed(tool), await committed(reader))


async def test_an_offset_beyond_the_master_s_queue_leads_to_its_end(tmp_path: Path, names: str) -> None:
    """O3: and what the master does not know any more is dropped."""
    await filled(tmp_path, names, count=9)
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        await commit(reader, 100)
        await reader.heartbeat("strangers", {"orders": "*"})
        header = UpdateOffset(consumer_group="strangers", topic="orders", queue_id=0, commit_offset=3)
        await reader.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        async with broker(tmp_path / "one", names) as master, dialled(master.address) as member:
            await hands_over(copy, master)
            assert 9 == await committed(member)


async def test_a_topic_that_the_master_could_not_tell_of_can_be_read(tmp_path: Path, names: str) -> None:
    """O3, O4: the slave has its messages, and copies tables every 10 s only. A topic that was deleted stays deleted."""
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        async with broker(tmp_path / "one", names) as master, dialled(master.address) as sender:
            for topic in ("orders", "deleted"):
                await sender.sent(topic, b"1")
            await has_all(copy, master)
            await sender.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="deleted"))
            await copies_tables(copy)
            metadata = parts_of(copy).metadata
            assert metadata is not None
            metadata._period_s = 1000
            await sender.sent("bills", b"2", queue_id=1)
            await has_all(copy, master)
            assert ResponseCode.TOPIC_NOT_EXIST == (await reader.pull("bills", queue_id=1)).code
        async with asyncio.timeout(LONG_S):
            while await reader.bodies("bills", queue_id=1) != [b"2"]:
                await asyncio.sleep(0.05)
        assert [b"1"] == await reader.bodies("orders")
        assert ResponseCode.TOPIC_NOT_EXIST == (await reader.pull("deleted")).code
