"""The safety net of producers without a database (J3)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq import EmbeddedCluster, Message, ProducerConfig
from ternmq.errors import InvalidMessage, NotRunning, OutboxFailed
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.spool import SpoolFile, SpoolingProducer, SyncSpoolingProducer
from tests.interop.rocketmq import free_port
from tests.outbox.topics import bodies_of, messages_of, wait_until

QUICK = OutboxConfig(sweep_interval_ms=20, backoff_ms=20, backoff_max_ms=50)
#: An outage must be noticed soon.
IMPATIENT = ProducerConfig(send_timeout_ms=500)


async def waiting(path: Path) -> int:
    file = SpoolFile(path)
    try:
        return (await file.run(lambda execute: file.table.status(execute, now_ms=0))).waiting
    finally:
        await file.close()


async def test_what_could_not_be_sent_is_sent_later_in_order(tmp_path: Path) -> None:
    """J3: messages of a key that is in the spool go behind it, also when brokers are back."""
    spool, port = tmp_path / "spool.db", free_port()
    names = f"127.0.0.1:{port}"
    async with SpoolingProducer("shop", spool, name_servers=names, producer=IMPATIENT, config=QUICK) as producer:
        assert not await producer.send(Message("orders", b"1", sharding_key="a"))
        assert not await producer.send(Message("orders", b"2", sharding_key="a"))
        assert not await producer.send(Message("orders", b"free"))
        async with EmbeddedCluster(settings={}, directory=tmp_path / "cluster") as cluster:
            # The port of the cluster is its own; a second producer has the same spool.
            names = cluster.name_servers
            async with SpoolingProducer("shop", spool, name_servers=names, config=QUICK) as second:
                await second.send(Message("orders", b"3", sharding_key="a"))

                async def all_sent() -> bool:
                    return 4 == len(await bodies_of(cluster.name_servers, "orders"))

                await wait_until(all_sent)

                async def is_empty() -> bool:
                    return 0 == await waiting(spool)

                await wait_until(is_empty)
                assert await second.send(Message("orders", b"4", sharding_key="a"))
            found = await messages_of(cluster.name_servers, "orders")
    assert [b"1", b"2", b"3", b"4"] == [one.body for one in found if one.body != b"free"]


async def test_what_brokers_refuse_is_not_spooled(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """J3: the application hears it at once."""
    async with SpoolingProducer("shop", tmp_path / "spool.db", name_servers=cluster.name_servers) as producer:
        assert await producer.send(Message("spooled", b"sent"))
        with pytest.raises(InvalidMessage, match="empty body"):
            await producer.send(Message("spooled", b""))
        sends = [producer.send(Message("spooled", b"%d" % n, sharding_key="a")) for n in range(20)]
        assert all(await asyncio.gather(*sends))
        assert 0 == producer.counters.sent_later
    with pytest.raises(NotRunning):
        await producer.send(Message("spooled", b"x"))
    assert 0 == await waiting(tmp_path / "spool.db")
    found = [message.body for message in await messages_of(cluster.name_servers, "spooled")]
    assert [b"%d" % n for n in range(20)] == [body for body in found if body != b"sent"]


async def test_a_spool_that_cannot_be_used_is_an_error_at_the_start(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """J3: not in an outage."""
    (tmp_path / "not.db").write_bytes(b"this is no database" * 100)
    for path in (tmp_path / "not.db", tmp_path / "missing" / "spool.db"):
        with pytest.raises(OutboxFailed, match="cannot use the spool"):
            async with SpoolingProducer("shop", path, name_servers=cluster.name_servers):
                pass


def test_programs_without_asyncio_have_it_too(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """J3"""
    producer = SyncSpoolingProducer("shop", tmp_path / "spool.db", name_servers=cluster.name_servers)
    with pytest.raises(NotRunning):
        producer.send(Message("spooled-sync", b"x"))
    with producer:
        assert producer.send(Message("spooled-sync", b"1"))
    with SyncSpoolingProducer(
        "shop", tmp_path / "spool.db", name_servers="127.0.0.1:1", producer=IMPATIENT
    ) as producer:
        assert not producer.send(Message("spooled-sync", b"2"))
    assert 1 == asyncio.run(waiting(tmp_path / "spool.db"))


async def test_a_full_disk_is_said_and_the_spool_works_again_afterwards(tmp_path: Path) -> None:
    """J3: SQLite may have ended the transaction then, or not."""
    file = SpoolFile(tmp_path / "spool.db")
    insert = "INSERT INTO ternmq_outbox (topic, body, message) VALUES ('orders', zeroblob(1000000), '{}')"
    await file.run(lambda execute: execute("PRAGMA max_page_count = 20"))
    for _ in range(2):
        with pytest.raises(OutboxFailed, match="database or disk is full"):
            await file.run(lambda execute: execute(insert))
    await file.run(lambda execute: execute("PRAGMA max_page_count = 1000000"))
    await file.run(lambda execute: execute(insert))
    await file.close()
