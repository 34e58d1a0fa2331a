"""What slaves have acknowledged, and what a send makes of it (O2)."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.errors import ConfigError, ServiceNotAvailable
from ternmq.replication.config import BrokerRole, ReplicationConfig
from ternmq.replication.replicas import Replicas
from ternmq.wire.codes import ResponseCode

MIB = 1 << 20


class Log:
    end = 1000 * MIB


def replicas(**settings: object) -> Replicas:
    return Replicas(ReplicationConfig(**settings), lambda: Log.end)  # type: ignore[arg-type]


def test_any_slave_is_enough_by_default() -> None:
    """O2: RocketMQ 4.9's rule; the fastest slave counts."""
    slaves = replicas()
    heard: list[str] = []
    slaves.replicated.call_when(Log.end + 10, lambda: heard.append("replicated"))
    slaves.joined("line 1", "a:1", Log.end)
    slaves.joined("line 2", "a:2", 0)
    slaves.acked("line 1", Log.end + 9)
    assert not heard
    slaves.acked("line 1", Log.end + 10)
    assert ["replicated"] == heard


def test_two_connections_of_one_slave_are_one_copy() -> None:
    """O2: replicas are counted by broker."""
    slaves = replicas(in_sync_replicas=3)
    slaves.joined("line 1", "a:1", Log.end + 50)
    slaves.joined("line 2", "a:1", Log.end + 60)
    assert Log.end == slaves.replicated.value
    slaves.joined("line 3", "a:2", Log.end + 40)
    assert Log.end + 40 == slaves.replicated.value
    slaves.acked("line 3", Log.end + 55)
    assert Log.end + 55 == slaves.replicated.value
    slaves.acked("line 3", Log.end + 99)
    assert Log.end + 60 == slaves.replicated.value


def test_a_slave_that_is_gone_is_no_copy() -> None:
    """O2: its machine may be the one that is lost."""
    slaves = replicas(in_sync_replicas=3)
    slaves.joined("line 1", "a:1", Log.end + 50)
    slaves.left("line 1")
    slaves.joined("line 2", "a:2", Log.end + 50)
    assert Log.end == slaves.replicated.value
    slaves.left("never joined")


def test_acknowledgements_never_go_back() -> None:
    """O2: a slave that lost its end comes back with less; what was told stays told."""
    slaves = replicas()
    slaves.joined("line 1", "a:1", Log.end + 50)
    slaves.acked("line 1", Log.end + 20)
    assert Log.end + 50 == slaves.status()[0].acked
    slaves.left("line 1")
    slaves.joined("line 2", "a:1", Log.end + 20)
    assert Log.end + 50 == slaves.replicated.value


def test_a_send_does_not_wait_when_no_slave_keeps_up() -> None:
    """O2: SLAVE_NOT_AVAILABLE without a slave within 256 MiB; with inSyncReplicas a send waits anyway."""
    slaves = replicas()
    assert ResponseCode.SLAVE_NOT_AVAILABLE == slaves.check_wait(Log.end)
    slaves.joined("line 1", "a:1", Log.end - 256 * MIB)
    assert ResponseCode.SLAVE_NOT_AVAILABLE == slaves.check_wait(Log.end)
    slaves.acked("line 1", Log.end - 256 * MIB + 1)
    assert 0 == slaves.check_wait(Log.end)
    assert 0 == replicas(in_sync_replicas=2).check_wait(Log.end)


def test_a_master_without_slaves_goes_on_alone_later_than_any_sender_waits() -> None:
    """O2: what waits for safe records goes on; a sender never hears from this that a slave has its message."""
    log = Log()
    slaves = Replicas(ReplicationConfig(), lambda: log.end)
    begin = log.end
    slaves.joined("line 1", "a:1", log.end)
    slaves.left("line 1")
    log.end = begin + 10
    slaves.go_on_alone(100.0)
    log.end = begin + 20
    slaves.go_on_alone(103.0)
    assert begin == slaves.replicated.value
    slaves.go_on_alone(103.1)
    assert begin + 10 == slaves.replicated.value
    slaves.go_on_alone(106.2)
    assert begin + 20 == slaves.replicated.value
    log.end = begin + 30
    slaves.joined("line 2", "a:1", begin)
    slaves.go_on_alone(120.0)
    slaves.left("line 2")
    slaves.go_on_alone(120.1)
    assert begin + 20 == slaves.replicated.value


def test_with_in_sync_replicas_a_master_never_goes_on_alone() -> None:
    """O2: who asks for copies waits for them."""
    log = Log()
    slaves = Replicas(ReplicationConfig(in_sync_replicas=2), lambda: log.end)
    log.end += 10
    slaves.go_on_alone(100.0)
    slaves.go_on_alone(110.0)
    assert log.end - 10 == slaves.replicated.value


def test_messages_are_refused_while_too_few_copies_keep_up() -> None:
    """O2: minInSyncReplicas counts the master; so producers move to another broker at once."""
    slaves = replicas(min_in_sync_replicas=2)
    with pytest.raises(ServiceNotAvailable, match="only 1 of 2 copies") as refusal:
        slaves.check_write()
    assert refusal.value.retriable
    slaves.joined("line 1", "a:1", Log.end)
    slaves.check_write()
    slaves.left("line 1")
    with pytest.raises(ServiceNotAvailable):
        slaves.check_write()
    replicas().check_write()


def test_settings_are_checked_when_they_are_made() -> None:
    """T2: with the name that the file has."""
    assert 1 == ReplicationConfig().waited_slaves
    assert 0 == ReplicationConfig(in_sync_replicas=1, broker_role=BrokerRole.SYNC_MASTER).waited_slaves
    for settings, name in (
        ({"ha_listen_port": 70_000}, "haListenPort"),
        ({"in_sync_replicas": 0}, "inSyncReplicas"),
        ({"min_in_sync_replicas": 0}, "minInSyncReplicas"),
        ({"ha_transfer_batch_size": 1 << 30}, "haTransferBatchSize"),
        ({"ha_allowed_addresses": ("10.0.0",)}, "haAllowedAddresses"),
        ({"ha_housekeeping_interval": 5000}, "haHousekeepingInterval"),
    ):
        with pytest.raises(ConfigError, match=name):
            ReplicationConfig(**settings)


def test_a_slave_is_in_sync_when_it_has_once_had_all() -> None:
    """O2: an empty slave of a small log lacks less than 256 MiB, and is no copy; senders wait for it all the same."""
    end = [10 * MIB]
    slaves = Replicas(ReplicationConfig(min_in_sync_replicas=2), lambda: end[0])
    slaves.joined("line", "a:1", 0)
    assert (0, 1) == (slaves.in_sync, slaves.near)
    with pytest.raises(ServiceNotAvailable, match="minInSyncReplicas"):
        slaves.check_write()
    assert 0 == slaves.check_wait(end[0])
    end[0] = 20 * MIB
    slaves.acked("line", 10 * MIB - 1)
    assert 0 == slaves.in_sync
    slaves.acked("line", 10 * MIB)
    assert {"a:1": True} == slaves.in_sync_by_replica()
    slaves.check_write()
    end[0] = 300 * MIB
    assert 0 == slaves.in_sync


async def test_a_replica_is_waited_for() -> None:
    """O1: a master that hands over waits for one slave, not for any."""
    slaves = Replicas(ReplicationConfig(), lambda: 100)
    slaves.joined("one", "a:1", 100)
    assert await slaves.has_all("a:1", 100, 1)
    assert not await slaves.has_all("a:2", 100, 1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(slaves.has_all("a:2", 100, 60_000))
        await asyncio.sleep(0)
        slaves.joined("two", "a:2", 50)
        slaves.acked("two", 100)
    assert waiting.result()
