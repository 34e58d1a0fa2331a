"""The ready checker, on real SQLite files (J2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from ternmq import EmbeddedCluster, Message, Outcome, Producer, SyncProducer, TransactionTable
from ternmq.errors import ConfigError
from ternmq.message import ReceivedMessage
from tests.client.send.test_transaction import QUICK, bodies, is_settled, until
from tests.manual_clock import ManualClock


class Begun:
    """A transaction that has begun."""

    def __init__(self, transaction_id: str) -> None:
        self.id = transaction_id


def asked(clock: ManualClock, transaction_id: str) -> ReceivedMessage:
    """A check of a transaction that began now."""
    now_ms = clock.now_ms()
    return ReceivedMessage(
        topic="orders",
        body=b"",
        properties={},
        broker_name="broker-a",
        queue_id=0,
        queue_offset=0,
        log_offset=0,
        message_id=transaction_id,
        offset_id="",
        born_time_ms=now_ms,
        born_host="",
        store_time_ms=now_ms,
        store_host="",
        reconsume_times=0,
        flag=0,
        sysflag=0,
        store_bytes=0,
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    yield engine
    engine.dispose()


def test_a_row_means_commit_and_none_means_not_yet_and_then_never(engine: Engine) -> None:
    """J2: what was refused cannot be committed any more."""
    clock = ManualClock()
    table = TransactionTable(engine, patience_s=60, clock=clock)
    table.create()
    table.create()
    paid, late = asked(clock, "paid"), asked(clock, "late")
    with engine.begin() as connection:
        connection.execute(table.insert(Begun("paid")))

    assert (Outcome.COMMIT, Outcome.UNKNOWN) == (table(paid), table(late))
    clock.advance(61)
    assert (Outcome.COMMIT, Outcome.ROLLBACK) == (table(paid), table(late))
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(table.insert(Begun("late")))
    assert Outcome.ROLLBACK == table(late)


def test_a_local_transaction_that_is_not_committed_yet_is_not_refused_under_its_feet(engine: Engine) -> None:
    """J2: the database decides which of the two was first; the checker answers later, or raises."""
    clock = ManualClock()
    table = TransactionTable(engine, patience_s=0, clock=clock)
    table.create()
    slow = asked(clock, "slow")
    quick_to_fail = create_engine(engine.url, connect_args={"timeout": 0.1})
    other = TransactionTable(quick_to_fail, patience_s=0, clock=clock)
    with engine.begin() as connection:
        connection.execute(table.insert(Begun("slow")))
        with pytest.raises(Exception, match="locked"):
            other(slow)
    assert Outcome.COMMIT == other(slow)
    quick_to_fail.dispose()


def test_old_rows_are_deleted_by_the_application(engine: Engine) -> None:
    """J2"""
    clock = ManualClock()
    table = TransactionTable(engine, name="tx", metadata=MetaData(), clock=clock)
    table.create()
    with engine.begin() as connection:
        connection.execute(table.insert(Begun("old")))
        clock.advance(86_400)
        connection.execute(table.insert(Begun("new")))
        assert 1 == connection.execute(table.delete_older(3600)).rowcount
    with engine.connect() as connection:
        assert ["new"] == list(connection.execute(select(table.table.c.transaction_id)).scalars())


def test_a_table_needs_an_engine(engine: Engine) -> None:
    """Bad input"""
    with pytest.raises(ConfigError, match="invalid engine"):
        TransactionTable("sqlite://")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="invalid patience_s"):
        TransactionTable(engine, patience_s=-1)
    with pytest.raises(ConfigError, match=r"use `table.create\(\)`"):
        asyncio.run(TransactionTable(engine).create_async())


def test_work_and_message_agree_after_a_crash(engine: Engine) -> None:
    """J1, J2: with a real broker; what was committed is delivered though the end was never said."""
    table = TransactionTable(engine, patience_s=0.2)
    table.create()
    payments = Table("payments", MetaData(), Column("amount", Integer))
    payments.create(engine)

    with EmbeddedCluster(settings=QUICK) as cluster:
        with SyncProducer("shop", name_servers=cluster.name_servers, checker=table, topics=["orders"]) as producer:
            with producer.transaction(Message("orders", b"paid")) as tx, engine.begin() as connection:
                connection.execute(insert(payments).values(amount=1))
                connection.execute(table.insert(tx))
            with (
                pytest.raises(ZeroDivisionError),
                producer.transaction(Message("orders", b"failed")) as tx,
                engine.begin() as connection,
            ):
                connection.execute(insert(payments).values(amount=2))
                connection.execute(table.insert(tx))
                _ = 1 / 0
            # These two die before they can say how they ended.
            for body, commits in ((b"committed", True), (b"lost", False)):
                with pytest.raises(KeyboardInterrupt), producer.transaction(Message("orders", body)) as tx:
                    if commits:
                        with engine.begin() as connection:
                            connection.execute(insert(payments).values(amount=3))
                            connection.execute(table.insert(tx))
                    raise KeyboardInterrupt
            asyncio.run(until(lambda: is_settled(cluster)))
        assert [b"committed", b"paid"] == asyncio.run(bodies(cluster))
    with engine.connect() as connection:
        assert 2 == connection.execute(select(func.count()).select_from(payments)).scalar()


async def test_an_engine_with_asyncio(tmp_path: Path) -> None:
    """J2"""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    table = TransactionTable(engine, patience_s=0.2)
    with pytest.raises(ConfigError, match="create_async"):
        table.create()
    await table.create_async()
    async with EmbeddedCluster(settings=QUICK) as cluster:
        async with Producer("shop", name_servers=cluster.name_servers, checker=table) as producer:
            async with producer.transaction(Message("orders", b"paid")) as tx, engine.begin() as connection:
                await connection.execute(table.insert(tx))
            for body, commits in ((b"committed", True), (b"lost", False)):
                with pytest.raises(asyncio.CancelledError):
                    async with producer.transaction(Message("orders", body)) as tx:
                        if commits:
                            async with engine.begin() as connection:
                                await connection.execute(table.insert(tx))
                        raise asyncio.CancelledError
            await until(lambda: is_settled(cluster))
        assert [b"committed", b"paid"] == await bodies(cluster)
    await engine.dispose()
