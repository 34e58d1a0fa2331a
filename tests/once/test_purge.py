"""Stores forget keys as fast as guards add them, without a look at all keys, and without a wait for work (S1)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from ternmq.once.guard import Guard
from ternmq.once.keystore import ABANDONED_MS, KeyStore, State, claim, settle
from ternmq.once.memory import MemoryKeys
from ternmq.once.sqlalchemy import SqlAlchemyKeys, _identity
from ternmq.once.sqlite import _PURGE, SqliteKeys
from tests.databases import Database
from tests.manual_clock import ManualClock
from tests.once.test_contract import order


async def test_a_store_does_not_grow_however_fast_messages_come() -> None:
    """S1: 3,000 messages in one moment, and none of their keys is needed in the next."""
    clock = ManualClock()
    store = MemoryKeys(clock=clock)
    guard = Guard(store, scope="billing", keep_ms=1, clock=clock)
    for number in range(3_000):
        async with guard(order(f"order-{number}")) as first:
            assert first
        clock.advance(0.002)

    assert len(store._entries) <= 500


async def test_the_key_of_a_dead_owner_is_purged_after_a_day(store: KeyStore, clock: ManualClock) -> None:
    """S1: until then it tells how often it was claimed."""
    await store.change("dead", claim("a", 1_000))
    clock.advance((ABANDONED_MS + 999) / 1000)
    assert 0 == await store.purge(9)
    clock.advance(0.001)
    assert await store.purge(9) in (1, 0)  # Redis forgets by itself


def test_a_purge_of_a_file_reads_the_index(tmp_path: Path) -> None:
    """S1: with millions of keys, a look at each of them would take seconds of every minute."""
    with closing(SqliteKeys(tmp_path / "keys.db")) as keys, keys._transaction() as connection:
        values = {"now_ms": 1, "running": 0, "abandoned_ms": 1, "count_max": 1}
        plan = " ".join(str(row) for row in connection.execute(f"EXPLAIN QUERY PLAN {_PURGE}", values))
    assert "INDEX ternmq_once_until (until_ms<?)" in plan


async def test_a_purge_does_not_wait_for_work_on_other_keys(any_database: Database) -> None:
    """S1: MariaDB would read the whole table, and wait for the lock of a transaction that finishes a key."""
    if any_database.dialect == "sqlite":
        pytest.skip("SQLite has one writer")
    impatient = {"init_command": "SET innodb_lock_wait_timeout = 1"}
    engine = create_engine(any_database.url(), connect_args=impatient if any_database.dialect == "mysql" else {})
    clock = ManualClock()
    store = SqlAlchemyKeys(engine, clock=clock)
    await store.create()
    for number in range(20):
        await store.change(f"done-{number}", claim("a", 1_000))
        await store.change(f"done-{number}", settle("a", State.DONE, 1))
    clock.advance(1)
    await store.change("works", claim("a", 3_600_000))
    with engine.connect() as other, other.begin():
        other.execute(text("UPDATE ternmq_once SET state = 1 WHERE id = :id"), {"id": _identity("works")})
        assert 20 == await store.purge(100)
    engine.dispose()
