"""Many rows behind one that holds them: no take reads all of them, and none waits longer than it must (J3)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from sqlalchemy import create_engine

from ternmq import EmbeddedCluster, Message
from ternmq.errors import InvalidMessage, NetworkError
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.engines import EngineDatabase
from ternmq.outbox.rules import judge
from ternmq.outbox.schema import Dialect, ddl
from ternmq.outbox.spool import executing
from ternmq.outbox.table import OutboxTable
from tests.databases import Database
from tests.outbox.test_relay import contents, relaying, save, some, take
from tests.outbox.topics import bodies_of

HOLD_MS = 600_000


@pytest.fixture
async def database(any_database: Database) -> AsyncIterator[EngineDatabase]:
    engine = create_engine(any_database.url())
    made = EngineDatabase(engine)
    await made.create()
    yield made
    await made.close()
    engine.dispose()


async def fail_first(database: EngineDatabase, error: Exception, *, now_ms: int) -> int:
    """The first row is dead, or waits; returns its id."""
    [first, *_] = await take(database, "r0", rows_max=1)
    verdict = judge(first, error, now_ms=now_ms, config=OutboxConfig())
    await database.run(lambda execute: database.table.fail(execute, [verdict], owner="r0"))
    return first.id


@pytest.mark.parametrize("how", ["retry", "retry all", "discard"])
async def test_rows_behind_a_dead_one_are_due_when_an_operator_has_settled_it(
    database: EngineDatabase, how: str
) -> None:
    """J3: until then takes do not see them."""
    await save(database, *some("a", *range(7)), *some("b", 1))
    dead = await fail_first(database, InvalidMessage("no"), now_ms=0)

    assert [b"b1"] == contents(await take(database, "r1", rows_max=4, now_ms=1_000))
    table = database.table
    due = f"SELECT COUNT(*) FROM {table.name} WHERE state = 0 AND due_ms <= 1000"
    # More were not in the way.
    assert [(2,)] == list((await database.run(lambda execute: execute(due))).rows)
    match how:
        case "retry":
            await database.run(lambda execute: table.retry(execute, [dead]))
        case "retry all":
            await database.run(lambda execute: table.retry(execute, None))
        case _:
            await database.run(lambda execute: table.discard(execute, [dead]))
    expected = [b"a%d" % number for number in range(how == "discard", 7)]
    assert expected == contents(await take(database, "r2", now_ms=1_000))


async def test_rows_behind_a_dead_one_are_found_when_another_program_deleted_it(database: EngineDatabase) -> None:
    """J3: with plain SQL; it takes a while."""
    await save(database, *some("a", *range(5)))
    dead = await fail_first(database, InvalidMessage("no"), now_ms=0)
    assert [] == await take(database, "r1", rows_max=4, now_ms=1_000)
    await database.run(lambda execute: execute(f"DELETE FROM {database.table.name} WHERE id = {dead}"))

    assert [] == await take(database, "r2", rows_max=4, now_ms=1_000 + HOLD_MS - 1)
    assert [b"a1", b"a2", b"a3", b"a4"] == contents(await take(database, "r3", now_ms=1_000 + HOLD_MS))


async def test_rows_behind_one_that_waits_are_due_with_it(database: EngineDatabase) -> None:
    """J3: an outage makes the first row of each key wait."""
    await save(database, *some("a", *range(6)))
    await fail_first(database, NetworkError("no broker"), now_ms=1_000)

    assert [] == await take(database, "r1", rows_max=4, now_ms=1_500)
    assert [] == await take(database, "r2", rows_max=4, now_ms=1_999)
    assert [b"a%d" % number for number in range(6)] == contents(await take(database, "r3", now_ms=2_000))


async def test_rows_behind_one_that_is_being_sent_stay_due(database: EngineDatabase) -> None:
    """J3: it may be sent in the next moment."""
    await save(database, *some("a", *range(6)))
    [first] = await take(database, "r1", rows_max=1, now_ms=1_000)

    assert [] == await take(database, "r2", rows_max=4, now_ms=1_000)
    await database.run(lambda execute: database.table.delete(execute, [first.id], owner="r1"))
    assert [b"a1", b"a2", b"a3", b"a4"] == contents(await take(database, "r3", rows_max=4, now_ms=1_000))


async def test_a_relay_that_takes_single_rows_looks_behind_those_that_are_held(database: EngineDatabase) -> None:
    """J3: however few rows a take may have."""
    await save(database, *some("a", 0, 1), *some("b", 1))
    await fail_first(database, InvalidMessage("no"), now_ms=0)

    assert [b"b1"] == contents(await take(database, "r1", rows_max=1, now_ms=1_000))


async def test_a_key_with_more_rows_than_a_take_looks_at_holds_up_no_others(database: EngineDatabase) -> None:
    """J3: while its first row is being sent by another relay, or one that was killed."""
    await save(database, *some("a", *range(100)), *some("b", 1))
    await take(database, "r1", rows_max=1, now_ms=1_000)

    assert [b"b1"] == contents(await take(database, "r2", rows_max=4, now_ms=1_000))


async def test_rows_that_a_killed_relay_had_taken_are_recalled_too(database: EngineDatabase) -> None:
    """J3: their leases are over when they are postponed."""
    await save(database, *some("a", *range(6)))
    taken = await take(database, "killed", now_ms=0)
    later_ms = 10_000_000
    [first] = await take(database, "r0", rows_max=1, now_ms=later_ms)
    verdict = judge(first, InvalidMessage("no"), now_ms=later_ms, config=OutboxConfig())
    await database.run(lambda execute: database.table.fail(execute, [verdict], owner="r0"))
    assert [] == await take(database, "r1", rows_max=4, now_ms=later_ms)

    await database.run(lambda execute: database.table.retry(execute, None))

    assert contents(taken) == contents(await take(database, "r2", now_ms=later_ms))


def steps_behind_a_dead_row(count: int) -> tuple[int, int]:
    """What SQLite does for one take with so many rows behind a dead one, at first and in the end, in units of 100 of
    its instructions."""
    table = OutboxTable("ternmq_outbox", Dialect.SQLITE)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in ddl(Dialect.SQLITE):
            connection.execute(statement)
        connection.executemany(
            "INSERT INTO ternmq_outbox (topic, body, message, order_key, state) VALUES ('orders', 'x', '{}', 'k', ?)",
            [(int(number == 0),) for number in range(count)],
        )
        steps = 0

        def count_one() -> int:
            nonlocal steps
            steps += 1
            return 0

        def one_take() -> int:
            taken = table.take(
                executing(connection),
                owner="a",
                now_ms=1,
                lease_ms=9,
                rows_max=100,
                bytes_max=1 << 20,
                hold_ms=HOLD_MS,
            )
            assert [] == taken.rows
            return taken.postponed

        connection.set_progress_handler(count_one, 100)
        one_take()
        first, steps = steps, 0
        while one_take():
            steps = 0
        return first, steps


def test_a_take_does_not_read_all_rows_behind_a_dead_one() -> None:
    """J3: neither the first one, nor those that follow when the rows are out of the way."""
    first, last = steps_behind_a_dead_row(5_000)
    many_first, many_last = steps_behind_a_dead_row(50_000)

    assert many_first < 2 * first
    assert many_last < 2 * last < first


async def test_one_sweep_finds_what_is_behind_thousands_of_held_rows(
    cluster: EmbeddedCluster, database: EngineDatabase
) -> None:
    """J3: they are moved out of the way, portion by portion."""
    topic = f"held-{database.table.dialect.value}"
    await save(database, *(Message(topic, b"%d" % n, sharding_key="dead") for n in range(400)))
    await fail_first(database, InvalidMessage("no"), now_ms=0)
    await save(database, Message(topic, b"other", sharding_key="other"), Message(topic, b"free"))

    async with relaying(database, cluster, OutboxConfig(rows_max=4)) as relay:
        assert 2 == await relay.sweep()
    assert {b"other", b"free"} == set(await bodies_of(cluster.name_servers, topic))
