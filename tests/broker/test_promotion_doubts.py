"""What speaks against a promotion, or against a master, and failures on the way (O1)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ternmq.broker.broker import Broker
from ternmq.broker.roles import Role
from ternmq.errors import BrokerRefused
from ternmq.net.endpoint import bind
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.replication.session import MustCut
from ternmq.replication.slave import SlaveState
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.replication import BrokerStatus
from ternmq.wire.bodies.routes import RegistrationBody, crc_of
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import PromoteBroker, RegisterBroker
from tests.broker.calls import dialled
from tests.broker.test_promotion import bodies, promote, sent
from tests.broker.test_replicating import LONG_S, broker, has_all, names, pair, parts_of, slave, state_of, until

__all__ = ["names"]


@asynccontextmanager
async def listed(names: str, address: str, broker_id: int) -> AsyncIterator[None]:
    """A broker that name servers know until the end of the block."""
    async with dialled(names) as caller:
        body = encode(RegistrationBody())
        header = RegisterBroker(
            broker_name="broker-a",
            broker_address=address,
            cluster_name="DefaultCluster",
            ha_address="127.0.0.1:2",
            broker_id=broker_id,
            body_crc32=crc_of(body),
        )
        assert 0 == (await caller.call(RequestCode.REGISTER_BROKER, header, body)).code
        yield


class Node:
    """A broker of which only the state is known."""

    def __init__(self, status: BrokerStatus) -> None:
        self.status = status

    def tell(self, _peer: Peer, _request: Request[Any]) -> Reply:
        return Reply(body=encode(self.status))


@asynccontextmanager
async def node(names: str, broker_id: int, **status: Any) -> AsyncIterator[Node]:
    """A broker that tells this state, and is listed by a name server."""
    told = Node(BrokerStatus(**{"cluster": "DefaultCluster", "broker": "broker-a", "broker_id": broker_id, **status}))
    routes: dict[int, Route] = {RequestCode.GET_BROKER_STATUS: Route(told.tell, "work", ANY_CALLER)}
    async with Server.running(routes, Lanes([LaneConfig("work")])) as server:
        bound = bind("127.0.0.1", 0)
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        told.status = replace(told.status, address=address)
        await server.serve(bound)
        async with listed(names, address, broker_id):
            yield told


async def takes_messages(target: Broker) -> bool:
    async with dialled(target.address) as caller:
        return (await caller.send("orders", b"1")).code != ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_slave_that_cannot_be_asked_may_have_more(tmp_path: Path, names: str) -> None:
    """O1: under SYNC_MASTER one slave is enough, and it may be the other one: its messages would be cut off."""
    async with slave(tmp_path / "two", names, 2) as new, listed(names, "127.0.0.1:1", 1):
        with pytest.raises(BrokerRefused, match="may have more messages than this one"):
            await promote(names, new, role="SYNC_MASTER")
        assert Role.SLAVE is new.roles.role
        assert "SYNC_MASTER" == (await promote(names, new, force=True, role="SYNC_MASTER")).role


async def test_a_broker_that_tells_an_epoch_without_a_next_one_spoils_no_other(tmp_path: Path, names: str) -> None:
    """O1: the next number would not fit into the file of epochs, and the broker would not start again."""
    async with slave(tmp_path / "two", names, 2) as new, node(names, 1, role="SLAVE", epoch=(1 << 63) - 1):
        with pytest.raises(BrokerRefused, match=r"tells epoch 9223372036854775807.*stop it"):
            await promote(names, new, role="SYNC_MASTER")
        assert Role.SLAVE is new.roles.role
        assert 102 == (await promote(names, new, force=True, role="SYNC_MASTER")).epoch
    async with slave(tmp_path / "two", names, 2) as again:
        await until(lambda: again.roles.is_master)


async def test_a_live_master_hands_over_although_another_slave_is_silent(tmp_path: Path, names: str) -> None:
    """O1: the new master has all that its master had."""
    async with pair(tmp_path, names) as (old, new), listed(names, "127.0.0.1:1", 2):
        await sent(old, b"1")
        await promote(names, new)
        assert (Role.SLAVE, Role.MASTER) == (old.roles.role, new.roles.role)


async def test_a_master_does_not_step_down_for_a_promotion_that_is_refused(tmp_path: Path, names: str) -> None:
    """O1: a slave has more than its master, which lost the end of its log."""
    async with pair(tmp_path, names) as (old, new):
        await sent(old, b"1")
        await has_all(new, old)
        async with node(names, 2, role="SLAVE", epoch=1, log_end=1 << 30):
            with pytest.raises(BrokerRefused, match="bytes more than its master: promote that one"):
                await promote(names, new)
            assert (Role.MASTER, Role.SLAVE) == (old.roles.role, new.roles.role)
            await sent(old, b"2")


@pytest.mark.parametrize("force", [False, True])
async def test_a_promotion_waits_for_the_end_of_another_one(tmp_path: Path, names: str, force: bool) -> None:
    """O1: also by force; the other broker answers, so its change has an end."""
    async with slave(tmp_path / "two", names, 2) as new, node(names, 1, role="SLAVE", is_changing=True) as rival:
        with pytest.raises(BrokerRefused, match="is being promoted, or hands over"):
            await promote(names, new, force=force, role="SYNC_MASTER")
        assert Role.SLAVE is new.roles.role
        rival.status = replace(rival.status, is_changing=False)
        assert 102 == (await promote(names, new, force=force, role="SYNC_MASTER")).epoch


async def test_a_broker_without_a_role_has_not_agreed_to_a_promotion(tmp_path: Path, names: str) -> None:
    """O1: it is being started as master, or in doubt, and may have messages that the slave lacks."""
    async with slave(tmp_path / "two", names) as new, node(names, 0, role="NONE", epoch=1):
        with pytest.raises(BrokerRefused, match="has no role yet; ask again when it has"):
            await promote(names, new, role="SYNC_MASTER")
        assert Role.SLAVE is new.roles.role
        assert 101 == (await promote(names, new, force=True, role="SYNC_MASTER")).epoch


async def test_a_later_master_that_is_being_started_counts(tmp_path: Path, names: str) -> None:
    """O1: both return at the same time. The older one would take messages, and lose them again."""
    async with node(names, 0, role="NONE", epoch=2) as later, broker(tmp_path / "one", names) as master:
        assert Role.NONE is master.roles.role
        assert not await takes_messages(master)
        # It is told to be the slave of another one: then this broker may begin.
        later.status = replace(later.status, role="SLAVE")
        await until(lambda: master.roles.is_master)
        await sent(master, b"1")


async def test_a_master_that_has_no_role_yet_and_the_same_epoch_does_not_count(tmp_path: Path, names: str) -> None:
    """O1: else two brokers that are started together would wait for each other."""
    async with node(names, 0, role="NONE", epoch=1), broker(tmp_path / "one", names) as master:
        assert await takes_messages(master)


async def test_another_broker_at_the_address_of_an_old_master_is_none(tmp_path: Path, names: str) -> None:
    """O1: a name server lists the address of a machine that is gone; a broker of another name has it now."""
    async with node(names, 0, broker="broker-b", role="ASYNC_MASTER", epoch=9), broker(tmp_path / "one", names) as one:
        assert Role.MASTER is one.roles.role
        assert await takes_messages(one)
    async with node(names, 0, broker="broker-b", role="ASYNC_MASTER", epoch=9), slave(tmp_path / "two", names) as two:
        assert 101 == (await promote(names, two, role="ASYNC_MASTER")).epoch


async def test_a_broker_that_is_promoted_while_it_closes_keeps_its_log(tmp_path: Path, names: str) -> None:
    """O1: it was about to cut its log, as a slave."""
    async with broker(tmp_path / "one", names) as one:
        await sent(one, b"1", b"2")
        before = parts_of(one)
        one._must_cut(MustCut(before.log_end // 2, 2))
        await until(lambda: one.replicating is not before and one.roles.is_master)
        assert [b"1", b"2"] == await bodies(one)


async def test_a_broker_that_cannot_be_opened_again_says_so(tmp_path: Path, names: str) -> None:
    """O1: whatever the reason is. It would look alive, and serve nothing."""

    async def fail() -> None:
        raise ValueError("a part failed")

    async with slave(tmp_path / "one", names) as one:
        one._lifetime._exit.push_async_callback(fail)
        one._must_cut(MustCut(1, 2))
        with pytest.raises(ValueError, match="a part failed"):
            async with asyncio.timeout(LONG_S):
                await one.failed()


async def test_a_new_master_opens_its_port_when_another_program_leaves_it(
    tmp_path: Path, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: a slave does not hold the port for slaves before its promotion."""
    async with slave(tmp_path / "two", names) as new, slave(tmp_path / "three", names, 2) as other:
        taken = socket.create_server(("127.0.0.1", parts_of(new).port))
        try:
            await promote(names, new, role="ASYNC_MASTER")
            await until(lambda: "slaves cannot fetch the log" in caplog.text)
            assert "haListenPort" in caplog.text
        finally:
            taken.close()
        await until(lambda: state_of(other) is SlaveState.FOLLOWING)


async def test_a_master_whose_new_epoch_cannot_be_written_stays_the_master(tmp_path: Path) -> None:
    """O1: by force, and without a name server, whose next answer would let it begin."""
    async with broker(tmp_path / "one", "") as one:
        await sent(one, b"1")
        # The place of the file is taken.
        (tmp_path / "one" / "epochFileCheckpoint").mkdir()
        async with dialled(one.address) as caller:
            answer = await caller.call(RequestCode.PROMOTE_BROKER, PromoteBroker(force=True))
        assert 0 != answer.code
        await until(lambda: one.roles.is_master)
        await sent(one, b"2")
        assert [b"1", b"2"] == await bodies(one)


async def test_a_master_that_steps_down_takes_an_id_that_no_slave_has(tmp_path: Path, names: str) -> None:
    """O1: two slaves with one id would end each other's connections. The new master has no former id to give."""
    async with broker(tmp_path / "one", names) as first, broker(tmp_path / "two", names) as second:
        async with listed(names, "127.0.0.1:1", 1):
            await promote(names, first, force=True)
            await until(lambda: second.roles.role is Role.SLAVE)
            assert 2 == second.roles.broker_id
        await until(lambda: state_of(second) is SlaveState.FOLLOWING)
