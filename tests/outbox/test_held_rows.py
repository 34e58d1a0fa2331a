"""Many rows behind one that holds them: no take reads all of them, and none waits longer than it must (J3)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from random import Random

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from ternmq import EmbeddedCluster, Message
from ternmq.errors import InvalidMessage, NetworkError
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.engines import EngineDatabase
from ternmq.outbox.engines import executing as executing_by
from ternmq.outbox.entry import Row
from ternmq.outbox.rules import judge
from ternmq.outbox.schema import Dialect, ddl
from ternmq.outbox.spool import executing
from ternmq.outbox.table import Execute, OutboxTable, Result, Values
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


async def all_in_turn(database: EngineDatabase, *, rows_max: int, now_ms: int) -> list[list[bytes]]:
    """What one take after the other finds, if all of it can be sent."""
    found: list[list[bytes]] = []

    def take_and_delete(execute: Execute) -> list[Row]:
        owner = f"s{len(found)}"
        rows, _ = database.table.take(
            execute, owner=owner, now_ms=now_ms, lease_ms=9, rows_max=rows_max, bytes_max=1 << 20, hold_ms=HOLD_MS
        )
        if rows:
            database.table.delete(execute, [row.id for row in rows], owner=owner)
        return rows

    while rows := await database.run(take_and_delete):
        found.append(contents(rows))
    return found


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
            await database.run(lambda execute: table.discard(execute, [dead], now_ms=1_000))
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


async def test_rows_behind_one_that_failed_are_sent_when_it_was(database: EngineDatabase) -> None:
    """J3: an outage makes the first row of each key wait. It is tried alone; the others need not be due for that."""
    await save(database, *some("a", *range(30)))
    await fail_first(database, NetworkError("no broker"), now_ms=1_000)

    assert [] == await take(database, "r1", rows_max=4, now_ms=1_500)
    assert [] == await take(database, "r2", rows_max=100, now_ms=1_999)
    found = await all_in_turn(database, rows_max=10, now_ms=2_000)
    assert [[b"a0"], *([b"a%d" % n for n in range(first, min(first + 10, 30))] for first in (1, 11, 21))] == found


async def fail_all(database: EngineDatabase, *, now_ms: int) -> None:
    """One look of a relay while no broker can be reached."""
    table, config = database.table, OutboxConfig()

    def look(execute: Execute) -> int:
        rows, postponed = table.take(
            execute, owner="r1", now_ms=now_ms, lease_ms=9, rows_max=10, bytes_max=1 << 20, hold_ms=HOLD_MS
        )
        first = {row.order_key: row for row in reversed(rows)}.values()
        verdicts = [judge(row, NetworkError("no broker"), now_ms=now_ms, config=config) for row in first]
        if rows:
            table.fail(execute, verdicts, owner="r1")
            table.release(execute, [row.id for row in rows], owner="r1")  # the others
        return len(rows) + postponed

    while await database.run(look):
        pass


async def test_an_outage_does_not_write_the_rows_of_a_key_again_at_each_attempt(database: EngineDatabase) -> None:
    """J3: a key with a million rows would be written once a minute, in an outage of the brokers."""
    await save(database, *some("a", *range(200)), *some("b", 1))
    query = f"SELECT id, owner, due_ms FROM {database.table.name}"

    async def states() -> set[tuple[object, ...]]:
        return set(map(tuple, (await database.run(lambda execute: execute(query))).rows))

    written: list[int] = []
    for second in (1, 2, 4, 8, 16, 32):
        before = await states()
        await fail_all(database, now_ms=second * 1_000)
        written.append(len(await states() - before))
    assert written[0] > 150
    assert max(written[2:]) <= 4, "the first row of each key, and the one behind it"


async def test_a_first_row_that_is_to_be_sent_later_is_no_failed_one(database: EngineDatabase) -> None:
    """J3: of another program; those behind it are due with it."""
    await save(database, *some("a", *range(6)))
    name = database.table.name
    await database.run(lambda execute: execute(f"UPDATE {name} SET due_ms = 5000 WHERE id = 1"))

    assert [] == await take(database, "r1", rows_max=4, now_ms=1_000)
    assert [] == await take(database, "r2", rows_max=4, now_ms=4_999)
    assert [b"a%d" % number for number in range(6)] == contents(await take(database, "r3", now_ms=5_000))


async def test_rows_behind_one_that_is_to_be_sent_later_do_not_sleep_beyond_it(database: EngineDatabase) -> None:
    """J3: it cannot be marked, as what is marked is taken along; the rows behind it were asleep for ten minutes."""
    await save(database, *some("a", *range(10)))
    await fail_first(database, NetworkError("no broker"), now_ms=0)
    name = database.table.name
    await database.run(lambda execute: execute(f"UPDATE {name} SET due_ms = 5000 WHERE id = 2"))
    for _ in range(2):
        assert [] == await take(database, "r1", rows_max=4, now_ms=500)

    assert [[b"a0"]] == await all_in_turn(database, rows_max=4, now_ms=4_000)
    rest = await all_in_turn(database, rows_max=4, now_ms=5_000)
    assert [b"a%d" % number for number in range(1, 10)] == [body for bodies in rest for body in bodies]


async def test_rows_of_many_keys_that_sleep_are_all_taken_in_the_end(database: EngineDatabase) -> None:
    """J3: more keys than a take looks behind, more rows than it has place for."""
    keys = [f"k{number}" for number in range(30)]
    await save(database, *(message for number in range(4) for key in keys for message in some(key, number)))
    rows = await take(database, "r0", rows_max=len(keys), now_ms=0)
    verdicts = [judge(row, InvalidMessage("no"), now_ms=0, config=OutboxConfig()) for row in rows]
    await database.run(lambda execute: database.table.fail(execute, verdicts, owner="r0"))
    for number in range(9):
        assert [] == await take(database, f"r1.{number}", rows_max=20)
    await database.run(lambda execute: database.table.retry(execute, None))

    found = [body for bodies in await all_in_turn(database, rows_max=20, now_ms=1_000) for body in bodies]
    for key in keys:
        assert [b"%s%d" % (key.encode(), number) for number in range(4)] == [
            body for body in found if body[:-1] == key.encode()
        ]


@pytest.mark.parametrize("how", ["retry", "discard"])
@pytest.mark.parametrize("after", range(6))
async def test_rows_are_found_that_were_put_to_sleep_just_when_an_operator_settled_the_first(
    any_database: Database, how: str, after: int
) -> None:
    """J3: between any two statements of a take. They would be looked at minutes later."""
    patience: dict[str, dict[str, object]] = {
        "sqlite": {"timeout": 0.1},
        "postgresql": {"options": "-c lock_timeout=200ms"},
        "mysql": {"init_command": "SET innodb_lock_wait_timeout = 1"},
    }
    engine = create_engine(any_database.url())
    other = create_engine(any_database.url(), connect_args=patience[any_database.dialect])
    database, operators = EngineDatabase(engine), EngineDatabase(other)
    await database.create()
    await save(database, *some("a", *range(9)))
    dead = await fail_first(database, InvalidMessage("no"), now_ms=0)
    table = database.table

    def settle(execute: Execute) -> int:
        return table.retry(execute, [dead]) if how == "retry" else table.discard(execute, [dead], now_ms=1_000)

    is_settled, statements = False, 0

    def taking(execute: Execute) -> None:
        def counted(statement: str, values: Values | Sequence[Values] = (), /) -> Result:
            nonlocal is_settled, statements
            if statements == after and not is_settled:
                with contextlib.suppress(SQLAlchemyError), other.begin() as connection:
                    is_settled = settle(executing_by(connection)) == 1
            statements += 1
            return execute(statement, values)

        table.take(counted, owner="r1", now_ms=1_000, lease_ms=1, rows_max=4, bytes_max=1 << 20, hold_ms=HOLD_MS)

    await database.run(taking)
    assert statements > 5
    if not is_settled:  # its turn comes when the take has ended
        assert 1 == await operators.run(settle)
    found = [body for bodies in await all_in_turn(database, rows_max=4, now_ms=2_000) for body in bodies]
    assert [b"a%d" % number for number in range(how == "discard", 9)] == found
    await database.close()
    await operators.close()
    engine.dispose()
    other.dispose()


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


async def test_a_key_whose_first_row_was_taken_by_a_killed_relay_is_found_after_the_lease(
    database: EngineDatabase,
) -> None:
    """J3: the end of the lease is later than the time of the many rows behind it."""
    await save(database, *some("a", *range(100)))
    await take(database, "killed", rows_max=1, now_ms=1_000)

    assert [] == await take(database, "r1", rows_max=2, now_ms=60_999)
    assert [b"a0", b"a1"] == contents(await take(database, "r2", rows_max=2, now_ms=61_000))


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


def test_rows_that_others_take_between_two_looks_are_no_error() -> None:
    """J3: without locks of rows, all that was there may be gone."""
    table = OutboxTable("ternmq_outbox", Dialect.SQLITE)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in ddl(Dialect.SQLITE):
            connection.execute(statement)
        connection.execute("INSERT INTO ternmq_outbox (topic, body, message) VALUES ('orders', 'x', '{}')")
        execute = executing(connection)

        def taken_away(statement: str, values: Values | Sequence[Values] = (), /) -> Result:
            result = execute(statement, values)
            connection.execute("DELETE FROM ternmq_outbox")
            return result

        taken = table.take(taken_away, owner="r1", now_ms=1, lease_ms=9, rows_max=1, bytes_max=9, hold_ms=9)
    assert ([], 0) == taken


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


@pytest.mark.parametrize("first", range(0, 15, 5))
def test_no_row_sleeps_behind_none(first: int) -> None:
    """J3: whatever relays, operators and kills did, what waits is found without the end of its sleep; also behind rows
    of other programs that are to be sent later."""
    for seed in range(first, first + 5):
        live_with_hot_keys(seed)


def live_with_hot_keys(seed: int) -> None:
    random, table, never_ms = Random(seed), OutboxTable("ternmq_outbox", Dialect.SQLITE), 10**15
    rows_max, keys = random.choice((1, 3, 10)), random.choice((1, 3, 30))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in ddl(Dialect.SQLITE):
            connection.execute(statement)
        execute, now_ms, takes, leased = executing(connection), 1_000, 0, list[tuple[str, list[Row]]]()

        def take() -> int:
            nonlocal takes
            takes += 1
            rows, postponed = table.take(
                execute,
                owner=f"r{takes}",
                now_ms=now_ms,
                lease_ms=60_000,
                rows_max=rows_max,
                bytes_max=1 << 20,
                hold_ms=never_ms,
            )
            if rows:
                leased.append((f"r{takes}", rows))
            return len(rows) + postponed

        def settle() -> None:
            owner, rows = leased.pop(random.randrange(len(leased)))
            how, held = random.choice(("sent", "failed", "refused", "mixed", "killed")), set[str | None]()
            for row in rows if how != "killed" else ():
                if row.order_key in held:
                    table.release(execute, [row.id], owner=owner)
                elif how == "sent" or (how == "mixed" and random.random() < 0.6):
                    table.delete(execute, [row.id], owner=owner)
                else:
                    error = InvalidMessage("no") if how == "refused" else NetworkError("no broker")
                    table.fail(execute, [judge(row, error, now_ms=now_ms, config=OutboxConfig())], owner=owner)
                    held.add(row.order_key)

        for _ in range(random.randrange(20, 200)):
            match random.choice(("save", "take", "take", "settle", "settle", "retry", "discard", "time")):
                case "save":
                    key = f"t:{random.randrange(keys)}"
                    due_ms = random.choice((0, 0, 0, now_ms + 50_000))
                    connection.executemany(
                        "INSERT INTO ternmq_outbox (topic, body, message, order_key, due_ms) "
                        "VALUES ('t', 'x', '{}', ?, ?)",
                        [(key, due_ms)] * random.choice((1, 5, 60)),
                    )
                case "take":
                    take()
                case "settle" if leased:
                    settle()
                case "retry" | "discard" as how:
                    dead = [one.id for one in table.dead(execute, count_max=99)]
                    some_dead = random.sample(dead, random.randrange(len(dead) + 1))
                    if some_dead and how == "retry":
                        table.retry(execute, some_dead)
                    elif some_dead:
                        table.discard(execute, some_dead, now_ms=now_ms)
                case "time":
                    now_ms += random.choice((100, 5_000, 70_000))
        now_ms += 200_000
        table.retry(execute, None)
        leased.clear()
        while take():
            owner, rows = leased.pop() if leased else ("", [])
            for row in rows:
                earlier = "SELECT 1 FROM ternmq_outbox WHERE order_key = ? AND id < ?"
                assert connection.execute(earlier, (row.order_key, row.id)).fetchone() is None, f"seed {seed}: order"
                table.delete(execute, [row.id], owner=owner)
        left = connection.execute("SELECT COUNT(*) FROM ternmq_outbox").fetchone()
        assert left == (0,), f"seed {seed}: rows sleep behind none"


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
