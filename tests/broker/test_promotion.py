"""A slave becomes the master of its name, and the old master a slave (O1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ternmq.admin.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.broker.roles import Role
from ternmq.errors import BrokerRefused
from ternmq.replication.slave import SlaveState
from ternmq.store.inspect.compare import compare
from ternmq.store.inspect.dump import RecordChoice, records
from ternmq.store.inspect.view import StoreView
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.replication import BrokerStatus, EpochCache
from ternmq.wire.bodies.routes import RegistrationBody, crc_of
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import OffsetReply, QueryOffset, UpdateOffset
from ternmq.wire.requests_admin import HandOver, RegisterBroker
from tests.broker.calls import dialled
from tests.broker.test_replicating import broker, has_all, names, pair, parts_of, slave, state_of, until

__all__ = ["names"]


async def promote(names: str, target: Broker, *, force: bool = False, role: str = "") -> BrokerStatus:
    async with Admin(names) as admin:
        return await admin.brokers.promote(target.address, force=force, role=role)


async def sent(target: Broker, *bodies: bytes) -> None:
    async with dialled(target.address) as caller:
        for body in bodies:
            await caller.sent("orders", body)


async def bodies(target: Broker) -> list[bytes]:
    async with dialled(target.address) as caller:
        return await caller.bodies("orders")


def differences(one: Path, two: Path) -> list[str]:
    """What ``tern store diff`` finds in log, queues and index."""
    found = compare(StoreView(one), StoreView(two))
    return [f"{each.part} {each.name}: {each.what}" for each in found if each.part != "table"]


async def test_a_live_master_hands_over_and_follows_the_new_one(tmp_path: Path, names: str) -> None:
    """O1: no message is lost, ids are swapped, and both logs stay equal."""
    async with pair(tmp_path, names, brokerRole="SYNC_MASTER") as (old, new):
        await sent(old, *(b"%d" % number for number in range(20)))
        told = await promote(names, new)

        assert ("SYNC_MASTER", 0, 101, 1) == (told.role, told.broker_id, told.epoch, told.former_id)
        assert (Role.SLAVE, Role.MASTER) == (old.roles.role, new.roles.role)
        assert (1, 0) == (old.roles.broker_id, new.roles.broker_id)
        await until(lambda: state_of(old) is SlaveState.FOLLOWING)
        await sent(new, b"20", b"21")
        await has_all(old, new)
        assert [b"%d" % number for number in range(22)] == await bodies(new) == await bodies(old)
        async with dialled(old.address) as caller:
            assert ResponseCode.SERVICE_NOT_AVAILABLE == (await caller.send("orders", b"not here")).code
        # And back again.
        assert 200 == (await promote(names, old)).epoch
        await until(lambda: state_of(new) is SlaveState.FOLLOWING)
        await sent(old, b"22")
        await has_all(new, old)
        async with dialled(new.address) as caller:
            cache = decode((await caller.call(RequestCode.GET_BROKER_EPOCH_CACHE)).body, EpochCache)
        assert [1, 101, 200] == [each.epoch for each in cache.epoch_list]
        assert cache.epoch_list[1].end_offset == cache.epoch_list[2].start_offset < cache.max_offset
    assert [] == differences(tmp_path / "one", tmp_path / "two")


async def test_the_role_survives_restarts_whatever_the_settings_say(
    tmp_path: Path, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: a file wins over brokerRole and brokerId, with a line in the log; without the file the settings count."""
    async with pair(tmp_path, names) as (old, new):
        await sent(old, b"1")
        await promote(names, new)
        await until(lambda: state_of(old) is SlaveState.FOLLOWING)
    with caplog.at_level(logging.WARNING):
        async with slave(tmp_path / "two", names) as new, broker(tmp_path / "one", names) as old:
            assert (Role.MASTER, Role.SLAVE) == (new.roles.role, old.roles.role)
            await until(lambda: state_of(old) is SlaveState.FOLLOWING)
            await sent(new, b"2")
            await has_all(old, new)
    assert "To undo this, stop it and remove" in caplog.text
    for name in ("one", "two"):
        (tmp_path / name / "config" / "role.json").unlink()
    async with broker(tmp_path / "one", names) as old:
        assert Role.MASTER is old.roles.role


async def test_an_old_master_that_returns_is_cut_to_the_common_history(
    tmp_path: Path, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: what only it has is kept aside, offsets behind the new end are corrected, and it follows."""
    async with slave(tmp_path / "two", names) as new:
        async with broker(tmp_path / "one", names) as old:
            await until(lambda: state_of(new) is SlaveState.FOLLOWING)
            await sent(old, *(b"%d" % number for number in range(10)))
            await has_all(new, old)
            await parts_of(new).end_following()
            # What no slave gets before the machine fails.
            await sent(old, *(b"lost %d" % number for number in range(5)))
            async with dialled(old.address) as caller:
                header = UpdateOffset(consumer_group="billing", topic="orders", queue_id=0, commit_offset=15)
                await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            end = parts_of(new).log_end
        parts_of(new).begin_following()
        assert (101, end) == ((told := await promote(names, new, role="ASYNC_MASTER")).epoch, told.log_end)
        await sent(new, *(b"new %d" % number for number in range(3)))
        with caplog.at_level(logging.WARNING):
            async with broker(tmp_path / "one", names) as old:
                await until(lambda: state_of(old) is SlaveState.FOLLOWING)
                await has_all(old, new)
                assert (Role.SLAVE, 1) == (old.roles.role, old.roles.broker_id)
                assert await bodies(new) == await bodies(old)
                async with dialled(old.address) as caller:
                    asked = QueryOffset(consumer_group="billing", topic="orders", queue_id=0)
                    answer = await caller.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
                    assert 10 == answer.read(OffsetReply).queue_offset
    assert [] == differences(tmp_path / "one", tmp_path / "two")
    (kept,) = [path for path in (tmp_path / "one" / "cut").iterdir() if path.is_dir()]
    found = [bytes(record.body) for record in records(StoreView(kept), RecordChoice())]
    assert [b"lost %d" % number for number in range(5)] == found
    assert "with 5 messages off the log" in caplog.text
    assert str(kept) in caplog.text


@asynccontextmanager
async def listed(names: str, address: str = "127.0.0.1:1") -> AsyncIterator[None]:
    """A master that name servers know and that cannot be reached, until the end of the block."""
    async with dialled(names) as caller:
        body = encode(RegistrationBody())
        header = RegisterBroker(
            broker_name="broker-a",
            broker_address=address,
            cluster_name="DefaultCluster",
            ha_address="127.0.0.1:2",
            broker_id=0,
            body_crc32=crc_of(body),
        )
        assert 0 == (await caller.call(RequestCode.REGISTER_BROKER, header, body)).code
        yield


async def masters(names: str) -> list[str]:
    async with Admin(names) as admin:
        return [each.address for each in await admin.brokers.all() if each.broker_id == 0]


async def test_a_slave_is_not_promoted_while_its_master_may_be_alive(tmp_path: Path, names: str) -> None:
    """O1: name servers list it, and it cannot be reached; by force it is promoted, and replaces it there."""
    async with listed(names), slave(tmp_path / "two", names) as new:
        with pytest.raises(BrokerRefused, match="name servers still list it"):
            await promote(names, new, role="ASYNC_MASTER")
        assert (Role.SLAVE, 1) == (new.roles.role, new.roles.broker_id)
        with pytest.raises(BrokerRefused, match="does not know its role"):
            await promote(names, new, force=True)
        assert "ASYNC_MASTER" == (await promote(names, new, force=True, role="ASYNC_MASTER")).role
        assert [new.address] == await masters(names)
        await sent(new, b"1")
        for role, reason in (("", "is not a slave"), ("SLAVE", "expected SYNC_MASTER or ASYNC_MASTER")):
            with pytest.raises(BrokerRefused, match=reason):
                await promote(names, new, role=role)


async def test_a_master_takes_no_messages_while_another_one_may_be_the_later(
    tmp_path: Path, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: it is listed and does not answer. When the name server forgets it, the broker begins its term."""
    with caplog.at_level(logging.ERROR):
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(AsyncExitStack())
            await other.enter_async_context(listed(names))
            master = await stack.enter_async_context(broker(tmp_path / "one", names))
            assert Role.NONE is master.roles.role
            async with dialled(master.address) as caller:
                assert ResponseCode.SERVICE_NOT_AVAILABLE == (await caller.send("orders", b"1")).code
            await other.aclose()
            await until(lambda: master.roles.is_master)
            await sent(master, b"1")
    assert "takes no messages until it answers" in caplog.text


async def test_two_masters_of_one_epoch_are_refused(tmp_path: Path, names: str) -> None:
    """O1: two brokers of one name and id; the second one takes no messages."""
    async with broker(tmp_path / "one", names) as first, broker(tmp_path / "two", names) as second:
        assert (Role.MASTER, Role.NONE) == (first.roles.role, second.roles.role)
        assert [first.address] == await masters(names)
        await sent(first, b"1")


async def test_an_operator_decides_between_two_masters(tmp_path: Path, names: str) -> None:
    """O1: a new epoch, by force; the other one becomes its slave, and what only it has is kept aside."""
    async with broker(tmp_path / "one", names) as first, broker(tmp_path / "two", names) as second:
        await sent(first, b"1")
        assert Role.NONE is second.roles.role
        assert 100 == (await promote(names, first, force=True)).epoch
        await until(lambda: second.roles.role is Role.SLAVE)
        await until(lambda: state_of(second) is SlaveState.FOLLOWING)
        await sent(first, b"2")
        await has_all(second, first)


async def test_the_slave_with_the_most_messages_is_promoted(tmp_path: Path, names: str) -> None:
    """O1: another one is refused, because a slave that has more would have to be cut."""
    async with slave(tmp_path / "two", names) as less, slave(tmp_path / "three", names, 2) as more:
        async with broker(tmp_path / "one", names) as master:
            await until(lambda: {SlaveState.FOLLOWING} == {state_of(less), state_of(more)})
            await sent(master, b"1")
            await has_all(less, master)
            await parts_of(less).end_following()
            await sent(master, b"2")
            await has_all(more, master)
        parts_of(less).begin_following()
        with pytest.raises(BrokerRefused, match="bytes more than this one"):
            await promote(names, less, role="ASYNC_MASTER")
        await promote(names, more)
        await until(lambda: state_of(less) is SlaveState.FOLLOWING)
        await has_all(less, more)
    assert [] == differences(tmp_path / "two", tmp_path / "three")


async def test_a_promotion_that_is_asked_for_twice_happens_once(tmp_path: Path, names: str) -> None:
    """O1: the second request, also one by force, is refused, or finds that all is done."""
    async with pair(tmp_path, names) as (old, new):
        await sent(old, b"1")
        await has_all(new, old)
        first, second = await asyncio.gather(
            promote(names, new), promote(names, new, force=True), return_exceptions=True
        )
        assert all(isinstance(each, BrokerRefused | BrokerStatus) for each in (first, second))
        await until(lambda: {Role.MASTER, Role.SLAVE} == {old.roles.role, new.roles.role})
        master, copy = (old, new) if old.roles.role is Role.MASTER else (new, old)
        await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
        await sent(master, b"2")
        await has_all(copy, master)
        assert [b"1", b"2"] == await bodies(master)


async def test_a_master_that_is_promoted_by_force_is_not_replaced_by_its_slave_meanwhile(
    tmp_path: Path, names: str
) -> None:
    """O1: it has no role for a moment, and has agreed to nothing; its slave lacks a message."""
    async with pair(tmp_path, names) as (old, new):
        await sent(old, b"1")
        await has_all(new, old)
        await parts_of(new).end_following()
        await sent(old, b"2")
        first, second = await asyncio.gather(
            promote(names, old, force=True), promote(names, new), return_exceptions=True
        )
        assert 100 == first.epoch if isinstance(first, BrokerStatus) else isinstance(first, BrokerRefused)
        assert isinstance(second, BrokerRefused)
        await until(lambda: old.roles.is_master)
        assert Role.SLAVE is new.roles.role
        assert [b"1", b"2"] == await bodies(old)
        parts_of(new).begin_following()
        await has_all(new, old)


async def test_messages_of_a_later_epoch_count_more_than_bytes(tmp_path: Path, names: str) -> None:
    """O1: a slave that was away for a promotion may have more bytes, and none of what was acknowledged since."""
    async with AsyncExitStack() as stack:
        later = await stack.enter_async_context(slave(tmp_path / "three", names, 2))
        async with broker(tmp_path / "one", names) as master, slave(tmp_path / "two", names) as longer:
            await until(lambda: {SlaveState.FOLLOWING} == {state_of(longer), state_of(later)})
            await sent(master, b"1")
            await has_all(later, master)
            await parts_of(later).end_following()
            await sent(master, b"only here" * 100)
            await has_all(longer, master)
        parts_of(later).begin_following()
        async with slave(tmp_path / "four", names, 3) as copy:
            await promote(names, later, role="ASYNC_MASTER")
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            await sent(later, b"2")
            await has_all(copy, later)
            await stack.aclose()
            async with slave(tmp_path / "two", names) as longer:
                assert parts_of(longer).log_end > parts_of(copy).log_end
                with pytest.raises(BrokerRefused, match="has messages of epoch 102, and this one none after epoch 1"):
                    await promote(names, longer, role="ASYNC_MASTER")
                await promote(names, copy)
                await until(lambda: state_of(longer) is SlaveState.FOLLOWING)
                await has_all(longer, copy)
                assert [b"1", b"2"] == await bodies(longer)


@pytest.mark.parametrize("blocked", ["epochFileCheckpoint", "config/role.json"])
async def test_a_slave_that_cannot_write_its_role_stays_a_slave(tmp_path: Path, names: str, blocked: str) -> None:
    """O1: as with a full disk. It follows as before; after a handover the old master can be promoted again."""
    async with slave(tmp_path / "two", names) as new:
        async with broker(tmp_path / "one", names) as old:
            await until(lambda: state_of(new) is SlaveState.FOLLOWING)
            await sent(old, b"1")
            await has_all(new, old)
        # Nothing can be written over a directory.
        (tmp_path / "two" / blocked).mkdir()
        with pytest.raises(BrokerRefused, match="two"):
            await promote(names, new, role="ASYNC_MASTER")
        assert Role.SLAVE is new.roles.role
        async with broker(tmp_path / "one", names) as old:
            await until(lambda: state_of(new) is SlaveState.FOLLOWING)
            await sent(old, b"2")
            await has_all(new, old)
            with pytest.raises(BrokerRefused, match="two"):
                await promote(names, new)
            assert {Role.SLAVE} == {old.roles.role, new.roles.role}
            await promote(names, old)
            await sent(old, b"3")
            (tmp_path / "two" / blocked).rmdir()
            await until(lambda: state_of(new) is SlaveState.FOLLOWING)
            await has_all(new, old)
            assert [b"1", b"2", b"3"] == sorted(await bodies(new))


async def test_a_master_does_not_hand_over_to_a_slave_that_lacks_messages(tmp_path: Path, names: str) -> None:
    """O1: it stays the master, and goes on."""
    async with pair(tmp_path, names) as (old, new):
        await sent(old, b"1")
        async with dialled(old.address) as caller:
            header = HandOver(broker_id=7, broker_address="127.0.0.1:1", ha_address="127.0.0.1:2")
            response = await caller.call(RequestCode.HAND_OVER, header)
        assert ResponseCode.SERVICE_NOT_AVAILABLE == response.code
        assert "slave 7 does not keep up" in (response.remark or "")
        await sent(old, b"2")
        await has_all(new, old)


async def test_status_tells_role_log_and_lag(tmp_path: Path, names: str) -> None:
    """O1: of the master with its slaves, and of the slave."""
    async with pair(tmp_path, names) as (old, new):
        await sent(old, b"1", b"2")
        await has_all(new, old)
        await until(lambda: not any(each.lag_bytes for each in parts_of(old).status().slaves))
        async with Admin(names) as admin:
            master, copy = [each.status for each in await admin.brokers.status("broker-a")]
        assert master is not None
        assert copy is not None
        assert ("ASYNC_MASTER", "SLAVE", 1, 2) == (master.role, copy.role, master.epoch, copy.messages)
        assert 0 == master.log_begin < master.log_end == copy.log_end
        (line,) = master.slaves
        assert (1, "sending", 0, 0, True) == (line.broker_id, line.state, line.lag_bytes, line.lag_ms, line.in_sync)
        assert copy.master is not None
        assert "following" == copy.master.state
