"""Brokers as master and slaves of one name (O1–O4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.replicating import Replicating
from ternmq.broker.roles import Role, Term
from ternmq.config import Settings
from ternmq.env import Env
from ternmq.errors import ConfigError, NetworkError, NotMaster
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.handshake import Refusal
from ternmq.replication.slave import SlaveState
from ternmq.replication.stream import PROBE, pack_report
from ternmq.store.config import StoreConfig
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import TopicRouteBody
from ternmq.wire.bodies.stats import HaStatus
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import OffsetReply, QueryOffset, RecallMessage, UpdateOffset
from ternmq.wire.requests_admin import RouteQuery
from tests.auth.accounts import BOSS, acl_in
from tests.auth.accounts import dialled as signed
from tests.broker.calls import dialled, v2

LONG_S: Final = 60.0
SMALL: Final = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    # A machine with much to do must not make a broker refuse what a test sends.
    "waitTimeMillsInSendQueue": 60_000,
}


@pytest.fixture
async def names() -> AsyncIterator[str]:
    """A name server."""
    async with NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"), Env()) as server:
        yield f"127.0.0.1:{server.port}"


def broker(root: Path, names: str, **settings: object) -> Broker:
    flags = {
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": 0,
        "brokerName": "broker-a",
        "namesrvAddr": names,
        "storePathRootDir": root,
        **SMALL,
        **settings,
    }
    own = Settings.gather(flags=[f"{key}={value}" for key, value in flags.items()])
    replication = own.build(ReplicationConfig)
    return Broker(own.build(BrokerConfig), own.build(StoreConfig), Env(), replication=replication)


def slave(root: Path, names: str, number: int = 1, **settings: object) -> Broker:
    return broker(root, names, brokerRole="SLAVE", brokerId=number, **settings)


@asynccontextmanager
async def pair(tmp_path: Path, names: str, **settings: object) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master and its slave, which follows it."""
    async with broker(tmp_path / "one", names, **settings) as master, slave(tmp_path / "two", names) as copy:
        await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
        yield master, copy


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not is_true():
            await asyncio.sleep(0.01)


def parts_of(running: Broker) -> Replicating:
    assert running.replicating is not None
    return running.replicating


def state_of(running: Broker) -> SlaveState | None:
    follower = parts_of(running).slave
    return follower.state if follower is not None else None


async def has_all(copy: Broker, master: Broker) -> None:
    """Wait until a slave has all of its master's messages."""
    await until(lambda: parts_of(copy)._store.dispatched == parts_of(master)._store.written)


async def copies_tables(copy: Broker) -> None:
    """Wait until a slave has copied the tables once more, from the beginning."""
    metadata = parts_of(copy).metadata
    assert metadata is not None
    metadata._period_s = 0.01
    rounds = metadata.rounds
    await until(lambda: metadata.rounds > rounds + 1)


async def route_of(names: str, topic: str) -> TopicRouteBody:
    async with dialled(names) as caller:
        response = await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic=topic))
        assert response.code == 0, response.remark
        return decode(bytes(response.body), TopicRouteBody)


async def test_a_slave_finds_its_master_by_the_name_server_and_serves_its_messages(tmp_path: Path, names: str) -> None:
    """O1, O3: it registers with its id, answers pulls, also ones that wait, and refuses messages."""
    async with (
        pair(tmp_path, names) as (master, copy),
        dialled(master.address) as sender,
        dialled(copy.address) as reader,
    ):
        for number in range(20):
            await sender.sent("orders", b"%d" % number)
        await has_all(copy, master)
        assert (Role.MASTER, Role.SLAVE) == (master.roles.role, copy.roles.role)
        await copies_tables(copy)
        assert [b"%d" % number for number in range(20)] == await reader.bodies("orders")

        waiting = asyncio.create_task(reader.arrived("orders", 21))
        await sender.sent("orders", b"20")
        assert b"20" == bytes((await waiting)[-1].body)

        await has_all(copy, master)
        await until(lambda: not any(each.diff for each in parts_of(master).ha_status().ha_connection_info))
        end = parts_of(master).log_end
        told = decode((await sender.call(RequestCode.GET_BROKER_HA_STATUS)).body, HaStatus)
        (line,) = told.ha_connection_info
        assert (True, end, 1) == (told.master, told.master_commit_log_max_offset, told.in_sync_slave_nums)
        assert (end, 0, True, end) == (line.slave_ack_offset, line.diff, line.in_sync, line.transfer_from_where)
        told = decode((await reader.call(RequestCode.GET_BROKER_HA_STATUS)).body, HaStatus)
        client = told.ha_client_runtime_info
        assert client is not None
        assert (False, end, True) == (told.master, client.max_offset, client.is_activated)
        now_ms = Env().clock.now_ms()
        assert now_ms - LONG_S * 1000 < client.last_read_timestamp <= now_ms
        assert now_ms - LONG_S * 1000 < client.last_write_timestamp <= now_ms

        refused = await reader.send("orders", b"not here")
        assert ResponseCode.SERVICE_NOT_AVAILABLE == refused.code
        route = await route_of(names, "orders")
        (data,) = route.broker_datas
        assert {0: master.address, 1: copy.address} == data.broker_addrs


async def test_a_slave_has_the_tables_of_its_master(tmp_path: Path, names: str) -> None:
    """O4: topics, groups and offsets; also after changes, and after its own restart."""
    async with broker(tmp_path / "one", names) as master, dialled(master.address) as caller:
        await caller.sent("orders", b"1")
        await caller.heartbeat("readers", {"orders": "*"})
        commit = UpdateOffset(consumer_group="readers", topic="orders", queue_id=0, commit_offset=1)
        assert (await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        async with slave(tmp_path / "two", names) as copy:
            await has_all(copy, master)
            await copies_tables(copy)
            async with dialled(copy.address) as reader:
                asked = QueryOffset(consumer_group="readers", topic="orders", queue_id=0)
                response = await reader.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
                assert 1 == response.read(OffsetReply).queue_offset
                await caller.sent("others", b"2")
                await copies_tables(copy)
                await has_all(copy, master)
                assert [b"2"] == await reader.bodies("others")
    async with slave(tmp_path / "two", names) as copy, dialled(copy.address) as reader:
        # The master is gone: what it had can be read.
        assert [b"1"] == await reader.bodies("orders")
        assert [b"2"] == await reader.bodies("others")


async def test_a_sync_master_answers_when_a_slave_has_the_message(tmp_path: Path, names: str) -> None:
    """O2: and says so when there is none, or when it is late."""
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 500}
    async with broker(tmp_path / "one", names, **settings) as master, dialled(master.address) as sender:
        assert ResponseCode.SLAVE_NOT_AVAILABLE == (await sender.send("orders", b"0")).code
        async with slave(tmp_path / "two", names) as copy:
            await until(lambda: parts_of(master)._store.safety is not None and state_of(copy) is SlaveState.FOLLOWING)
            serving = parts_of(master).master
            assert serving is not None
            await until(lambda: serving.replicas.in_sync)
            await has_all(copy, master)
            for number in range(1, 10):
                await sender.sent("orders", b"%d" % number)
                assert parts_of(master)._store.written == parts_of(copy)._store.written
            (line,) = serving._lines
            # A slave that is connected and gets nothing.
            line._takes.clear()
            assert ResponseCode.FLUSH_SLAVE_TIMEOUT == (await sender.send("orders", b"late")).code
            line._takes.set()
            await sender.sent("orders", b"again")
        await until(lambda: not serving.replicas.in_sync)
        assert ResponseCode.SLAVE_NOT_AVAILABLE == (await sender.send("orders", b"alone")).code


async def test_a_slave_that_is_no_copy_follows_and_no_send_waits_for_it(tmp_path: Path, names: str) -> None:
    """O2, T1: one that leaves again, for a backup, must not be the reason of a SEND_OK."""
    settings = {"brokerRole": "SYNC_MASTER", "minInSyncReplicas": 2}
    async with (
        broker(tmp_path / "one", names, brokerRole="SYNC_MASTER") as master,
        dialled(master.address) as sender,
        slave(tmp_path / "two", names, countsAsCopy="false") as copy,
    ):
        await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
        assert ResponseCode.SLAVE_NOT_AVAILABLE == (await sender.send("orders", b"1")).code
        await has_all(copy, master)
        assert ResponseCode.SLAVE_NOT_AVAILABLE == (await sender.send("orders", b"2")).code
        serving = parts_of(master).master
        assert serving is not None
        assert (0, 1) == (serving.replicas.in_sync, len(serving.status()))
        assert not parts_of(master).keeps_up(1)
    async with (
        broker(tmp_path / "three", names, **settings) as master,
        dialled(master.address) as sender,
        slave(tmp_path / "four", names, countsAsCopy="false") as copy,
    ):
        await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
        assert ResponseCode.SERVICE_NOT_AVAILABLE == (await sender.send("orders", b"1")).code


async def test_in_sync_replicas_asks_for_a_number_of_copies(tmp_path: Path, names: str) -> None:
    """O2: RocketMQ 5's rule; 1 does not wait at all."""
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 300, "inSyncReplicas": 3}
    async with (
        broker(tmp_path / "one", names, **settings) as master,
        dialled(master.address) as sender,
        slave(tmp_path / "two", names) as first,
    ):
        await until(lambda: state_of(first) is SlaveState.FOLLOWING)
        assert ResponseCode.FLUSH_SLAVE_TIMEOUT == (await sender.send("orders", b"two copies")).code
        async with slave(tmp_path / "three", names, 2) as second:
            await has_all(second, master)
            async with asyncio.timeout(LONG_S):
                while (await sender.send("orders", b"three copies")).code:
                    # It may take longer than 300 ms on a busy machine.
                    await asyncio.sleep(0)
    async with (
        broker(tmp_path / "four", names, brokerRole="SYNC_MASTER", inSyncReplicas=1) as master,
        dialled(master.address) as sender,
    ):
        await sender.sent("orders", b"one copy")


async def test_messages_are_refused_while_too_few_copies_keep_up(tmp_path: Path, names: str) -> None:
    """O2: minInSyncReplicas; producers go to another broker."""
    async with broker(tmp_path / "one", names, minInSyncReplicas=2) as master, dialled(master.address) as sender:
        refused = await sender.send("orders", b"0")
        assert ResponseCode.SERVICE_NOT_AVAILABLE == refused.code
        assert "minInSyncReplicas" in (refused.remark or "")
        assert 0 == parts_of(master)._store.max_offset("orders", 0)
        async with slave(tmp_path / "two", names) as copy:
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            serving = parts_of(master).master
            assert serving is not None
            await until(lambda: serving.replicas.in_sync)
            await sender.sent("orders", b"1")


async def test_nothing_can_be_pushed_to_a_slave(tmp_path: Path, names: str) -> None:
    """N1, O1: it makes its connection, and takes none."""
    async with slave(tmp_path / "two", names) as copy:
        assert copy.replicating is not None
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", copy.replicating.port)


async def test_a_slave_can_be_told_its_master_without_a_name_server(tmp_path: Path) -> None:
    """O1, O4: haMasterAddress; a TernMQ master says where its tables are."""
    async with broker(tmp_path / "one", "") as master, dialled(master.address) as sender:
        await sender.sent("orders", b"1")
        address = f"127.0.0.1:{parts_of(master).port}"
        async with slave(tmp_path / "two", "", haMasterAddress=address) as copy:
            await has_all(copy, master)
            await until(lambda: parts_of(copy).metadata is not None)
            await copies_tables(copy)
            async with dialled(copy.address) as reader:
                assert [b"1"] == await reader.bodies("orders")


async def test_roles_and_ports_that_cannot_be_are_refused(tmp_path: Path, names: str) -> None:
    """O1: at start, with a sentence."""
    with pytest.raises(ConfigError, match="brokerId"):
        broker(tmp_path / "one", names, brokerRole="SLAVE")
    async with broker(tmp_path / "one", names) as master:
        port = parts_of(master).port
        with pytest.raises(NetworkError, match="in use"):
            async with broker(tmp_path / "two", names, brokerName="broker-b", haListenPort=port):
                pass


async def test_roles_can_be_swapped_by_settings(tmp_path: Path, names: str) -> None:
    """O1, O2: the slave becomes master with a restart, and the old master follows it; nothing is lost."""
    async with pair(tmp_path, names, brokerRole="SYNC_MASTER") as (master, copy), dialled(master.address) as sender:
        serving = parts_of(master).master
        assert serving is not None
        await until(lambda: serving.replicas.in_sync)
        for number in range(10):
            await sender.sent("orders", b"%d" % number)
        await copies_tables(copy)
    async with broker(tmp_path / "two", names) as master, dialled(master.address) as sender:
        await sender.sent("orders", b"10")
        async with slave(tmp_path / "one", names) as copy, dialled(copy.address) as reader:
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            await sender.sent("orders", b"11")
            await has_all(copy, master)
            expected = [b"%d" % number for number in range(12)]
            assert expected == await reader.bodies("orders") == await sender.bodies("orders")


async def test_a_master_that_was_deposed_does_not_overwrite_messages(tmp_path: Path, names: str) -> None:
    """O1: it has a message that the new master never had. It keeps it, and says why it does not follow."""
    async with pair(tmp_path, names) as (master, copy), dialled(master.address) as sender:
        await sender.sent("orders", b"on both")
        await has_all(copy, master)
        await copies_tables(copy)
    async with broker(tmp_path / "one", names) as master, dialled(master.address) as sender:
        await sender.sent("orders", b"only on the old master")
    async with broker(tmp_path / "two", names) as master, dialled(master.address) as sender:
        await sender.sent("orders", b"only on the new master")
        async with slave(tmp_path / "one", names) as copy, dialled(copy.address) as reader:
            await until(lambda: state_of(copy) is SlaveState.REFUSED)
            follower = parts_of(copy).slave
            assert follower is not None
            assert Refusal.OTHER_HISTORY is follower.refusal
            assert [b"on both", b"only on the old master"] == await reader.bodies("orders")


async def test_a_master_of_a_new_term_serves_slaves_again(tmp_path: Path, names: str) -> None:
    """O1: the port belongs to the term; slaves connect again."""
    async with pair(tmp_path, names) as (master, copy), dialled(master.address) as sender:
        await sender.sent("orders", b"0")
        await has_all(copy, master)
        master.roles.step_down(NotMaster("for a moment"))
        assert ResponseCode.SERVICE_NOT_AVAILABLE == (await sender.send("orders", b"to nobody")).code
        await until(lambda: state_of(copy) is not SlaveState.FOLLOWING)
        await master.roles.become(Role.MASTER, Term(2))
        await sender.sent("orders", b"1")
        await has_all(copy, master)


async def test_a_slave_that_becomes_master_delivers_what_waits_for_its_time(tmp_path: Path, names: str) -> None:
    """O1, O4, I2: the schedule is folded from the log on the slave, too; it delivers nothing itself."""
    async with pair(tmp_path, names) as (master, copy), dialled(master.address) as sender:
        await sender.sent("orders", b"at once")
        await copies_tables(copy)
        await sender.sent("orders", b"later", properties={"TIMER_DELAY_MS": "12000"})
        await sender.sent("orders", b"by level", properties={"DELAY": "3"})
        await has_all(copy, master)
    async with broker(tmp_path / "two", names) as master, dialled(master.address) as reader:
        async with asyncio.timeout(LONG_S):
            while len(found := await reader.bodies("orders")) < 3:
                await asyncio.sleep(0.05)
        assert [b"at once", b"by level", b"later"] == [found[0], *sorted(found[1:])]


async def test_a_recall_is_answered_when_a_slave_has_it(tmp_path: Path, names: str) -> None:
    """O2, I2: a message that was taken back must not come after the master is lost."""
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 3_600_000}
    async with pair(tmp_path, names, **settings) as (master, copy), dialled(master.address) as sender:
        serving = parts_of(master).master
        assert serving is not None
        await until(lambda: serving.replicas.in_sync)
        sent = await sender.sent("orders", b"1", properties={"TIMER_DELAY_MS": "7200000", "UNIQ_KEY": "A1"})
        (line,) = serving._lines
        # A slave that is connected and gets nothing.
        line._takes.clear()
        header = RecallMessage(topic="orders", recall_handle=sent.recall_handle or "")
        recalled = asyncio.create_task(sender.call(RequestCode.RECALL_MESSAGE, header, timeout_ms=60_000))
        await until(lambda: recalled.done() or parts_of(master)._store.safety.waiting)
        assert not recalled.done()
        line._takes.set()
        assert ResponseCode.SUCCESS == (await recalled).code
        assert parts_of(master)._store.written == parts_of(copy)._store.written


async def test_a_master_with_access_control_gives_its_log_to_no_stranger(tmp_path: Path, names: str) -> None:
    """N1, O1: it serves addresses that are named, and slaves that sign."""
    acl_in(tmp_path / "conf")
    guarded = {"aclEnable": "true", "aclPath": tmp_path / "conf"}

    async def fetched(master: Broker, first: bytes) -> bytes:
        assert master.replicating is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", master.replicating.port)
        writer.write(first)
        try:
            return await asyncio.wait_for(reader.read(12), LONG_S)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async with broker(tmp_path / "one", names, **guarded) as master:
        assert b"" == await fetched(master, pack_report(0))
        # A challenge, and not a hello.
        first = await fetched(master, pack_report(PROBE))
        assert len(first) == 12
        assert int.from_bytes(first[8:], "big") < 60
        signing = slave(tmp_path / "two", names)
        signing._credentials = BOSS
        async with signed(master.address, BOSS) as sender, signing as copy:
            await sender.sent("orders", b"1")
            await has_all(copy, master)
            await copies_tables(copy)
    async with broker(tmp_path / "one", names, haAllowedAddresses="127.0.0.1", **guarded) as master:
        assert await fetched(master, pack_report(PROBE))


async def test_messages_are_refused_while_too_many_senders_wait_for_slaves(tmp_path: Path, names: str) -> None:
    """O2: QMQ's rule; producers use another broker at once. When a slave has the messages, more are taken."""
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 600_000, "slaveWaitingMax": 3}
    async with broker(tmp_path / "one", names, **settings) as master, dialled(master.address) as caller:

        async def send(body: bytes) -> Response:
            return await caller.call(RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=0), body, timeout_ms=60_000)

        waiting = [asyncio.create_task(send(b"%d" % number)) for number in range(3)]
        await until(lambda: parts_of(master)._store.safety.waiting == 3)
        refused = await send(b"too many")
        assert ResponseCode.SERVICE_NOT_AVAILABLE == refused.code
        assert "slaveWaitingMax" in (refused.remark or "")
        async with slave(tmp_path / "two", names):
            assert {ResponseCode.SUCCESS} == {(await each).code for each in waiting}
            assert ResponseCode.SUCCESS == (await send(b"again")).code
