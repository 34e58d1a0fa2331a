"""A group of three brokers in this process, on real sockets and files (P4): clients, tools and roles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, CorruptFile, InvalidParameter, TernError
from ternmq.message import Message, SendStatus
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.codes import RequestCode
from tests.auth.certificates import Certificates
from tests.replication.world import until


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(raft=3) as cluster:
        yield cluster


def id_of(broker: Broker) -> str:
    assert broker.group is not None
    return broker.group.config.d_leger_self_id


async def led(cluster: EmbeddedCluster) -> Broker:
    await until(lambda: cluster.leader() is not None)
    leader = cluster.leader()
    assert leader is not None
    return leader


async def test_the_leader_is_broker_0_and_the_others_have_their_number(cluster: EmbeddedCluster) -> None:
    """P4, as RocketMQ's tools know it: n0 follows as 1, n1 as 2."""
    leader = await led(cluster)
    async with Admin(cluster.name_servers) as admin:

        async def ids() -> dict[int, str]:
            return {each.broker_id: each.address for each in await admin.brokers.all()}

        expected = {0: leader.address} | {
            int(id_of(each)[1:]) + 1: each.address for each in cluster.brokers if each is not leader
        }
        async with asyncio.timeout(30):
            while await ids() != expected:
                await asyncio.sleep(0.01)


async def test_tools_see_term_role_and_lag_of_each_member(cluster: EmbeddedCluster) -> None:
    """P4: in the state of a broker, and in that of the group."""
    leader = await led(cluster)
    async with (
        Admin(cluster.name_servers) as admin,
        Producer("shop", name_servers=cluster.name_servers) as producer,
        ClientInstance(ClientConfig(cluster.name_servers)) as instance,
    ):
        await producer.send(Message("orders", b"1"))
        members = {member.member: member for member in await admin.raft.status()}
        for broker in cluster.brokers:
            response = await instance.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = decode(response.body, KvTable).table
            is_leader = broker is leader
            member = members[id_of(broker)]
            assert ("leader" if is_leader else "follower") == table["raftRole"] == member.role
            assert str(member.term) == table["raftTerm"]
            assert id_of(leader) == table["raftLeader"]
            assert is_leader == (table["raftHasLease"] == "true") == member.has_lease
            assert int(table["raftLastIndex"]) - int(table["raftCommitIndex"]) == int(table["raftCommitLag"])
            assert member.last_index - member.commit_index == member.commit_lag
            assert (-1 < int(table["raftFollowerLagBytes"])) == is_leader
            assert int(table["raftCommitLagBytes"]) >= 0
            assert "" == table["raftTrouble"]


async def test_a_transfer_moves_the_master_and_a_producer_follows(cluster: EmbeddedCluster) -> None:
    """P4: no restart, and nothing acknowledged is lost."""
    first = await led(cluster)
    to = next(each for each in cluster.brokers if each is not first)
    async with Producer("shop", name_servers=cluster.name_servers) as producer, Admin(cluster.name_servers) as admin:
        receipts = [await producer.send(Message("orders", b"%d" % number)) for number in range(20)]
        assert id_of(to) == await admin.raft.transfer(to=id_of(to))
        await until(lambda: cluster.leader() is to)
        receipts += [await producer.send(Message("orders", b"%d" % number), timeout_ms=60_000) for number in range(20)]
        assert {SendStatus.OK} == {receipt.status for receipt in receipts}
        members = await admin.raft.status()
        assert [id_of(to)] == [member.member for member in members if member.role == "leader"]
        assert {id_of(to)} == {member.leader for member in members}
        with pytest.raises(InvalidParameter, match="'n7' cannot lead"):
            await admin.raft.transfer(to="n7")
        with pytest.raises(ConfigError, match="no broker nothing is a Raft group"):
            await admin.raft.transfer("nothing")


async def test_a_follower_refuses_messages_and_copies_tables(cluster: EmbeddedCluster) -> None:
    """P4: topics that were made on the leader are known to the next one, also before they have messages."""
    leader = await led(cluster)
    async with Admin(cluster.name_servers) as admin:
        await admin.topics.create("orders", queues=3)
        assert leader.group is not None
        await until(
            lambda: all(
                each.group is not None and each.group.tables_copied > 0
                for each in cluster.brokers
                if each is not leader
            )
        )
        await admin.raft.transfer()
        await until(lambda: cluster.leader() not in (None, leader))
        async with asyncio.timeout(30):
            while len((await admin.topics.route("orders")).queue_datas) != 1:
                await asyncio.sleep(0.01)
        [queues] = (await admin.topics.route("orders")).queue_datas
        assert 3 == queues.write_queue_nums


async def test_a_group_of_one_leads_itself() -> None:
    async with (
        EmbeddedCluster(raft=1) as cluster,
        Producer("shop", name_servers=cluster.name_servers) as producer,
    ):
        assert SendStatus.OK is (await producer.send(Message("orders", b"hello"))).status


async def test_a_member_without_its_vote_does_not_start(tmp_path: Path) -> None:
    """P1: the file was removed alone; the member would vote again in a term in which it has voted."""
    async with (
        EmbeddedCluster(raft=1, directory=tmp_path) as cluster,
        Producer("shop", name_servers=cluster.name_servers) as producer,
    ):
        await producer.send(Message("orders", b"hello"))
    _remove_votes(tmp_path)
    with pytest.raises(CorruptFile, match="currterm does not show a term and a vote"):
        async with EmbeddedCluster(raft=1, directory=tmp_path):
            pass


def _remove_votes(directory: Path) -> None:
    for path in directory.rglob("currterm"):
        path.unlink()


async def test_a_message_that_does_not_want_to_wait_waits_for_the_majority(tmp_path: Path) -> None:
    """P4: DLedger ignores WAIT=false, too; an answer without a majority would be a promise that is not kept."""
    async with EmbeddedCluster(raft=3, directory=tmp_path) as cluster:
        leader = await led(cluster)
        assert leader.group is not None
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            await producer.send(Message("orders", b"first"))
            for other in cluster.brokers:
                if other is not leader:
                    assert other.group is not None
                    other.group.node.links.hold()
            with pytest.raises(TernError):
                await producer.send(Message("orders", b"second", wait_store_ok=False), timeout_ms=20_000)


@pytest.mark.parametrize("wrong", [{"raft": 10}, {"raft": 3, "slaves": 1}])
def test_a_cluster_that_cannot_work_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        EmbeddedCluster(**wrong)  # type: ignore[arg-type]


async def test_members_speak_tls_where_brokers_do(tmp_path: Path) -> None:
    """N1, P3: the port of the members takes no plain connection, and the group works."""
    certificates = Certificates(tmp_path / "dev")
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificates / "server.pem",
        "tls.server.keyPath": certificates / "server.key",
        "tls.enable": True,
        "tls.client.trustCertPath": certificates / "ca.pem",
    }
    async with EmbeddedCluster(raft=3, settings=settings) as cluster:
        leader = await led(cluster)
        assert leader.group is not None
        config = ClientConfig(cluster.name_servers, tls=certificates.client())
        async with Producer("shop", client=config) as producer:
            assert SendStatus.OK is (await producer.send(Message("orders", b"hello"))).status
        host, port = leader.group.config.me.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"TERNRAFT")
        with contextlib.suppress(ConnectionResetError):
            assert b"" == await reader.read()
        writer.close()
