"""Relays: order, leases, back-off, death, many at once; on each database (J3)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import create_engine

from ternmq import ClientConfig, EmbeddedCluster, Message
from ternmq.conflicts import is_conflict
from ternmq.env import Env
from ternmq.errors import (
    InvalidMessage,
    MessageIllegal,
    NetworkError,
    RouteMissing,
    SendFailed,
    SystemBusy,
    TernError,
    TopicMissing,
)
from ternmq.message import MessageQueue
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.engines import EngineDatabase
from ternmq.outbox.engines import executing as executing_by
from ternmq.outbox.entry import Row, order_key_of, to_entry
from ternmq.outbox.relay import Relay, gather_ms
from ternmq.outbox.rules import Failure, backoff_ms, failure_of, judge
from ternmq.outbox.schema import Dialect, ddl
from ternmq.outbox.sending import Parcel, plan
from ternmq.outbox.service import Service, unique_ids
from ternmq.outbox.spool import SpoolFile, executing
from ternmq.outbox.table import Execute, OutboxTable
from tests.databases import Database, postgresql
from tests.outbox.topics import bodies_of, messages_of, wait_until

T = TypeVar("T")

IDS = unique_ids(Env())


@pytest.fixture
async def database(any_database: Database) -> AsyncIterator[EngineDatabase]:
    engine = create_engine(any_database.url())
    made = EngineDatabase(engine)
    await made.create()
    yield made
    await made.close()
    engine.dispose()


async def save(database: EngineDatabase, *messages: Message) -> None:
    entries = [to_entry(message, message_id=IDS.next(), body_bytes_max=1 << 22) for message in messages]
    await database.run(lambda execute: database.table.insert(execute, entries, now_ms=Env().clock.now_ms()))


async def take(database: EngineDatabase, owner: str, *, rows_max: int = 100, now_ms: int = 1_000) -> list[Row]:
    taken = await database.run(
        lambda execute: database.table.take(
            execute, owner=owner, now_ms=now_ms, lease_ms=60_000, rows_max=rows_max, bytes_max=1 << 20, hold_ms=600_000
        )
    )
    return taken.rows


def some(key: str, *numbers: int) -> list[Message]:
    return [Message("orders", b"%s%d" % (key.encode(), number), sharding_key=key) for number in numbers]


def contents(rows: Sequence[Row]) -> list[bytes]:
    return [row.body for row in rows]


@asynccontextmanager
async def relaying(
    database: EngineDatabase | SpoolFile,
    cluster: EmbeddedCluster,
    config: OutboxConfig | None = None,
    *,
    sweeps: bool = False,
) -> AsyncIterator[Relay]:
    service = Service(
        [database],
        group="relay",
        client=ClientConfig(cluster.name_servers),
        config=config or OutboxConfig(),
        sweeps=sweeps,
    )
    async with service:
        yield service.relays[0]


# --- Taking ---------------------------------------------------------------------------------------------------


async def test_a_row_has_one_owner_and_another_one_after_the_lease(database: EngineDatabase) -> None:
    """J3: also without row locks."""
    await save(database, Message("orders", b"1"), Message("orders", b"2"))

    assert [b"1", b"2"] == contents(await take(database, "a", now_ms=1_000))
    assert [] == await take(database, "b", now_ms=61_000 - 1)
    rows = await take(database, "b", now_ms=61_000)
    assert [b"1", b"2"] == contents(rows)
    ids = [row.id for row in rows]
    assert 0 == await database.run(lambda execute: database.table.delete(execute, ids, owner="a"))
    assert 2 == await database.run(lambda execute: database.table.delete(execute, ids, owner="b"))


def steps_of_a_take(count: int, *, keys: int) -> int:
    """What SQLite does to take 100 of so many rows, in units of 100 of its instructions."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in ddl(Dialect.SQLITE):
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO ternmq_outbox (topic, body, message, order_key) VALUES ('orders', 'x', '{}', ?)",
        [(f"key-{number % keys}",) for number in range(count)],
    )
    steps = 0

    def count_one() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(count_one, 100)
    table = OutboxTable("ternmq_outbox", Dialect.SQLITE)
    rows, _ = table.take(executing(connection), owner="a", now_ms=1, lease_ms=9, rows_max=100, bytes_max=1 << 20)
    connection.close()
    assert list(range(1, 101)) == [row.id for row in rows]
    return steps


@pytest.mark.parametrize("keys", [1, 40])
def test_a_take_does_not_read_the_whole_backlog_of_its_keys(keys: int) -> None:
    """J3: after a long outage of the brokers, each take would cost as much as the table is long."""
    assert steps_of_a_take(20_000, keys=keys) < 2 * steps_of_a_take(500, keys=keys)


async def test_what_is_held_does_not_hide_the_rows_behind_it(database: EngineDatabase) -> None:
    """J3: more rows wait behind a dead one than a take looks at, at first."""
    await save(database, *some("a", *range(6)), *some("b", 1, 2), Message("orders", b"free"))
    [first, *_] = await take(database, "r1", rows_max=1)
    verdict = judge(first, InvalidMessage("no"), now_ms=0, config=OutboxConfig())
    await database.run(lambda execute: database.table.fail(execute, [verdict], owner="r1"))

    assert [b"b1", b"b2"] == contents(await take(database, "r2", rows_max=2))
    assert [b"free"] == contents(await take(database, "r3", rows_max=2))
    assert [] == await take(database, "r4", rows_max=2)


async def test_the_first_of_a_key_takes_the_others_along_and_holds_them(database: EngineDatabase) -> None:
    """J3: order per key; a failed one, and a dead one, hold their successors."""
    await save(database, *some("a", 1, 2, 3), *some("b", 1), Message("orders", b"free"))

    first = await take(database, "r1", rows_max=2)
    assert [b"a1", b"a2"] == contents(first)
    assert [b"b1", b"free"] == contents(await take(database, "r2"))
    assert [] == await take(database, "r3")
    verdict = judge(first[0], InvalidMessage("no"), now_ms=0, config=OutboxConfig())
    await database.run(lambda execute: database.table.fail(execute, [verdict], owner="r1"))
    await database.run(lambda execute: database.table.release(execute, [first[1].id], owner="r1"))
    assert [] == await take(database, "r4")
    dead = await database.run(lambda execute: database.table.dead(execute, count_max=5))
    assert ["no"] == [one.error for one in dead]
    assert 1 == await database.run(lambda execute: database.table.retry(execute, [dead[0].id]))
    assert [b"a1", b"a2", b"a3"] == contents(await take(database, "r5"))


async def test_a_take_is_bounded_in_bytes(database: EngineDatabase) -> None:
    """J3: the first message is taken whatever its size."""
    await save(database, *(Message("orders", bytes([n]) * 700_000) for n in (1, 2)), Message("orders", b"3"))

    assert [700_000] == [len(body) for body in contents(await take(database, "r1"))]
    assert [700_000, 1] == [len(body) for body in contents(await take(database, "r2"))]


async def test_two_relays_that_chose_the_same_rows_share_no_key(any_database: Database) -> None:
    """J3: without SKIP LOCKED, the slower one gives back what follows a row of the faster one."""
    engine = create_engine(any_database.url())
    database = EngineDatabase(engine)
    await database.create()
    await save(database, *some("a", 1, 2), Message("orders", b"free"))
    slow = OutboxTable(database.table.name, database.table.dialect)
    # It sees all rows; then the other one takes two of them.
    chosen, _ = await database.run(
        lambda execute: slow._chosen(execute, now_ms=1_000, rows_max=9, bytes_max=9_999, hold_ms=0)
    )
    assert [b"a1", b"a2"] == contents(await take(database, "fast", rows_max=2))
    await save(database, *some("a", 3))
    behind = max(chosen.sizes) + 1
    chosen.sizes[behind], chosen.keys[behind] = 1, "orders:a"
    slow._chosen = lambda execute, **_: (chosen, 0)  # type: ignore[method-assign]

    rows, _ = await database.run(
        lambda execute: slow.take(execute, owner="slow", now_ms=1_000, lease_ms=9, rows_max=9, bytes_max=9_999)
    )
    assert [b"free"] == contents(rows)
    status = await database.run(lambda execute: slow.status(execute, now_ms=1_001))
    assert (1, 3, 0) == (status.waiting, status.leased, status.dead)
    await database.close()
    engine.dispose()


def test_many_relays_at_once_take_each_row_once(any_database: Database) -> None:
    """J3: real transactions in real threads, no double work."""
    engine = create_engine(any_database.url(), connect_args={"timeout": 60} if any_database.dialect == "sqlite" else {})
    database = EngineDatabase(engine)
    asyncio.run(database.create())
    messages = [Message("orders", b"%d" % n, sharding_key=str(n % 7) if n % 2 else "") for n in range(200)]
    asyncio.run(save(database, *messages))
    taken: list[Row] = []
    table = database.table

    def relay(name: str) -> None:
        for round_ in range(400):
            owner = f"{name}.{round_}"
            rows, _ = database.run_here(
                partial(table.take, owner=owner, now_ms=1_000, lease_ms=60_000, rows_max=7, bytes_max=1 << 20)
            )
            taken.extend(rows)
            if rows:
                database.run_here(partial(table.delete, ids=[row.id for row in rows], owner=owner))
            elif len(taken) >= len(messages):
                return

    threads = [threading.Thread(target=relay, args=(f"r{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(message.body for message in messages) == sorted(contents(taken))
    asyncio.run(database.close())
    engine.dispose()


async def test_a_transaction_that_stays_open_holds_no_relay(any_database: Database) -> None:
    """J3: MariaDB would read the whole table for a change of most of its rows, and wait for the locks on it."""
    if any_database.dialect == "sqlite":
        pytest.skip("SQLite has one writer")
    impatient = {"init_command": "SET innodb_lock_wait_timeout = 1"}
    engine = create_engine(any_database.url(), connect_args=impatient if any_database.dialect == "mysql" else {})
    database = EngineDatabase(engine)
    await database.create()
    table = database.table
    entry = to_entry(Message("orders", b"open"), message_id=IDS.next(), body_bytes_max=1 << 22)
    with engine.connect() as other, other.begin():
        table.insert(executing_by(other), [entry], now_ms=0)
        await save(database, *(Message("orders", b"%d" % number) for number in range(20)))
        rows = await take(database, "r1")
        await database.run(lambda execute: table.release(execute, [row.id for row in rows], owner="r1"))
        rows = await take(database, "r2")
        assert 20 == await database.run(
            lambda execute: table.delete(execute, [row.id for row in rows], owner="r2"), is_single=True
        )
    await database.close()
    engine.dispose()


async def test_the_connection_of_a_relay_goes_back_as_it_came(any_database: Database) -> None:
    """J3: it commits each statement by itself while the relay has it; what fails leaves no transaction behind."""
    engine = create_engine(any_database.url(), pool_size=1, max_overflow=0)
    database = EngineDatabase(engine)
    await database.create()

    def fails(execute: Execute) -> None:
        database.table.insert(
            execute,
            [to_entry(Message("orders", b"never"), message_id=IDS.next(), body_bytes_max=1 << 22)],
            now_ms=0,
        )
        raise RuntimeError("an error")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="an error"):
            await database.run(fails)
        await save(database, Message("orders", b"1"))
        await database.close()
        with engine.connect() as connection:
            # Not committed.
            connection.exec_driver_sql(f"DELETE FROM {database.table.name}")
    with engine.connect() as connection:
        assert 2 == connection.exec_driver_sql(f"SELECT COUNT(*) FROM {database.table.name}").scalar()
        if any_database.dialect == "mysql":
            assert "REPEATABLE-READ" == connection.exec_driver_sql("SELECT @@tx_isolation").scalar()
    engine.dispose()


def test_messages_gather_for_longer_while_many_are_committed() -> None:
    """J3: from 500 a second on; never longer than a lease allows."""
    config = OutboxConfig(gather_ms=10)

    assert 10 == gather_ms(1, passed_ms=float("inf"), config=config)
    assert 10 == gather_ms(4, passed_ms=10, config=config)
    assert 50 == gather_ms(5, passed_ms=10, config=config)
    assert 10 == gather_ms(24, passed_ms=50, config=config)
    assert 0 == gather_ms(500, passed_ms=1, config=OutboxConfig(gather_ms=0))
    assert 25 == gather_ms(500, passed_ms=1, config=OutboxConfig(gather_ms=10, lease_ms=100))


# --- Sending --------------------------------------------------------------------------------------------------


async def test_messages_of_a_key_arrive_in_order_and_in_batches(
    cluster: EmbeddedCluster, database: EngineDatabase
) -> None:
    """J3: many keys on few queues, mixed with others."""
    topic = f"ordered-{database.table.dialect.value}"
    numbers = range(300)
    await save(
        database,
        *(Message(topic, b"%d:%d" % (n % 10, n), sharding_key=str(n % 10)) for n in numbers),
        *(Message(topic, b"free") for _ in range(50)),
    )
    async with relaying(database, cluster, OutboxConfig(rows_max=70)) as relay:
        assert 350 == await relay.sweep()

    found = [message.body for message in await messages_of(cluster.name_servers, topic) if message.body != b"free"]
    for key in range(10):
        expected = [b"%d:%d" % (key, n) for n in numbers if n % 10 == key]
        assert expected == [body for body in found if body.startswith(b"%d:" % key)]


async def test_a_refused_message_dies_with_its_reason_and_holds_its_key(
    cluster: EmbeddedCluster, database: EngineDatabase
) -> None:
    """J3: the others of its batch are sent; an operator lets it try again."""
    topic = f"refused-{database.table.dialect.value}"
    await save(
        database,
        Message(topic, b"1", sharding_key="a"),
        Message(topic, b"2", sharding_key="a"),
        Message(topic, b"3", sharding_key="b"),
    )
    await database.run(
        lambda execute: execute(f'UPDATE {database.table.name} SET message = \'{{"flag": "no number"}}\' WHERE id = 1')
    )
    async with relaying(database, cluster) as relay:
        assert 1 == await relay.sweep()

        async def is_readable() -> bool:
            return [b"3"] == await bodies_of(cluster.name_servers, topic)

        # A broker answers a send before readers see the message.
        await wait_until(is_readable)
        assert (1, 1) == (relay.counters.refusals, relay.counters.buried)
        dead = await database.run(lambda execute: database.table.dead(execute, count_max=5))
        assert "invalid column 'message'" in dead[0].error
        await database.run(lambda execute: execute(f"UPDATE {database.table.name} SET message = '{{}}' WHERE id = 1"))
        await database.run(lambda execute: database.table.retry(execute, None))
        assert 2 == await relay.sweep()
    assert {b"1", b"2", b"3"} == set(await bodies_of(cluster.name_servers, topic))


async def test_rows_of_other_languages_are_sent(cluster: EmbeddedCluster, database: EngineDatabase) -> None:
    """J3: the documented columns are enough, all others have defaults."""
    topic = f"others-{database.table.dialect.value}"
    await database.run(
        lambda execute: execute(
            f"INSERT INTO {database.table.name} (topic, body, message, order_key) "
            "VALUES (:topic, :body, :message, :key)",
            {"topic": topic, "body": b"from Go", "message": '{"tags": "new", "keys": ["k"]}', "key": "a"},
        )
    )
    async with relaying(database, cluster) as relay:
        assert 1 == await relay.sweep()

    (found,) = await messages_of(cluster.name_servers, topic)
    assert (b"from Go", "new", ("k",)) == (found.body, found.tags, found.keys)
    assert 32 == len(found.message_id)


async def test_while_no_broker_can_be_reached_messages_wait_and_do_not_die(database: EngineDatabase) -> None:
    """J3: an outage does not count as a refusal."""
    await save(database, Message("orders", b"1"), *some("a", 1, 2))
    service = Service(
        [database], group="r", client=ClientConfig("127.0.0.1:1"), config=OutboxConfig(refusals_max=1), sweeps=False
    )
    async with service:
        assert 0 == await service.relays[0].sweep()
        assert 0 == service.relays[0].counters.buried
    rows = await database.run(
        lambda execute: execute(f"SELECT attempts, refusals, state FROM {database.table.name} ORDER BY id").rows
    )
    assert [(1, 0, 0), (1, 0, 0), (0, 0, 0)] == [tuple(row) for row in rows]


async def test_a_relay_is_woken_by_the_commit_on_postgresql(
    cluster: EmbeddedCluster, postgresql_database: Database
) -> None:
    """J3: LISTEN/NOTIFY; the relay itself would look in an hour."""
    from sqlalchemy.orm import Session

    from ternmq.outbox.sqlalchemy import Outbox

    engine = create_engine(postgresql_database.url())
    database = EngineDatabase(engine)
    await database.create()
    outbox = Outbox(engine)
    async with relaying(database, cluster, OutboxConfig(sweep_interval_ms=3_600_000), sweeps=True) as relay:

        async def listens() -> bool:
            found = await database.run(
                lambda execute: execute("SELECT 1 FROM pg_stat_activity WHERE query = 'LISTEN ternmq_outbox'").rows
            )
            return bool(found)

        await wait_until(listens)
        for number in range(2):

            def commit(number: int = number) -> None:
                with Session(engine) as session, session.begin():
                    outbox.send(session, Message("notified", b"%d" % number))

            await asyncio.to_thread(commit)

            async def is_sent(number: int = number) -> bool:
                return relay.counters.sent_later == number + 1

            await wait_until(is_sent)
    await database.close()
    engine.dispose()


async def test_a_relay_outlives_its_database(cluster: EmbeddedCluster) -> None:
    """J3: killed and started again."""
    with postgresql() as server, server.database() as place:
        engine = create_engine(place.url())
        database = EngineDatabase(engine)
        await database.create()
        config = OutboxConfig(sweep_interval_ms=50, backoff_ms=50, backoff_max_ms=100)
        async with relaying(database, cluster, config, sweeps=True) as relay:
            server.kill()

            async def has_failed() -> bool:
                return relay.counters.database_failures > 1

            await wait_until(has_failed)
            server.start()
            await save(database, Message("outlived", b"1"))

            async def is_sent() -> bool:
                return [b"1"] == await bodies_of(cluster.name_servers, "outlived")

            await wait_until(is_sent)
        await database.close()
        engine.dispose()


class Surprising(EngineDatabase):
    """A database whose driver raises what no driver should."""

    surprises = 2

    async def run(self, work: Callable[[Execute], T], *, is_single: bool = False) -> T:
        if self.surprises:
            self.surprises -= 1
            raise RuntimeError("a mistake of the driver")
        return await super().run(work, is_single=is_single)


async def test_a_relay_outlives_errors_that_no_one_thought_of(
    cluster: EmbeddedCluster, sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """J3: it says so, and goes on."""
    engine = create_engine(sqlite_database.url())
    database = Surprising(engine)
    await database.create()
    async with relaying(database, cluster, OutboxConfig(backoff_ms=10), sweeps=True) as relay:

        async def has_gone_on() -> bool:
            return not database.surprises

        await wait_until(has_gone_on)
        await save(database, Message("surprised", b"1"))
        await wait_until(lambda: is_sent(relay, 1))
    await database.close()
    engine.dispose()
    assert "a mistake of the driver" in caplog.text


async def is_sent(relay: Relay, count: int) -> bool:
    return relay.counters.sent_later == count


def test_a_write_that_sqlite_refuses_at_once_is_done_again(tmp_path: Path) -> None:
    """J3: another connection has written since the transaction read. Django begins it so."""
    with (
        closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None)) as one,
        closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None, timeout=0)) as other,
    ):
        one.execute("PRAGMA journal_mode = WAL")
        one.execute("CREATE TABLE numbers (number)")
        other.execute("BEGIN")
        other.execute("SELECT * FROM numbers").fetchall()
        one.execute("INSERT INTO numbers VALUES (1)")
        with pytest.raises(sqlite3.OperationalError) as caught:
            other.execute("INSERT INTO numbers VALUES (2)")
    assert is_conflict(caught.value)
    assert not is_conflict(sqlite3.OperationalError("no such table"))


# --- Rules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NetworkError("x"), Failure.OUTAGE),
        (SystemBusy("x"), Failure.OUTAGE),
        (RouteMissing("x", topic="t"), Failure.OUTAGE),
        (SendFailed("x", attempts=(NetworkError("x"), SystemBusy("x"))), Failure.OUTAGE),
        (SendFailed("x", attempts=(NetworkError("x"), TopicMissing("x"))), Failure.REFUSAL),
        (MessageIllegal("x"), Failure.REFUSAL),
        (TernError("x"), Failure.REFUSAL),
        (RuntimeError("x"), Failure.REFUSAL),
        (InvalidMessage("x"), Failure.HOPELESS),
    ],
)
def test_failures_are_of_three_kinds(error: Exception, kind: Failure) -> None:
    """J3"""
    assert kind is failure_of(error)


def test_waits_double_up_to_a_bound_and_refusals_end() -> None:
    """J3"""
    config = OutboxConfig(backoff_ms=100, backoff_max_ms=1_000, refusals_max=2)
    row = Row(1, "id", "orders", b"x", "{}", None, attempts=1, refusals=1)

    assert [100, 200, 400, 800, 1_000, 1_000] == [backoff_ms(n, config) for n in (1, 2, 3, 4, 5, 10_000)]
    assert judge(row, MessageIllegal("too\0large"), now_ms=5, config=config).is_dead
    verdict = judge(row, NetworkError("gone"), now_ms=5, config=config)
    assert (False, 205, 2, 1, "gone") == (
        verdict.is_dead,
        verdict.due_ms,
        verdict.attempts,
        verdict.refusals,
        verdict.error,
    )
    assert 1_000 == len(judge(row, TernError("x" * 5_000), now_ms=5, config=config).error)


def test_what_is_sent_together() -> None:
    """J3: batches of one topic within their bound; delayed and large messages alone; a line for each queue."""
    queues = {"t": [MessageQueue("t", "a", n) for n in range(2)]}

    def parcel(number: int, message: Message) -> Parcel:
        entry = to_entry(message, message_id=str(number), body_bytes_max=1 << 22)
        return Parcel(Row.of(number, entry), message)

    parcels = [
        parcel(1, Message("t", b"x" * 100)),
        parcel(2, Message("t", b"x" * 100)),
        parcel(3, Message("t", b"x", delay_level=1)),
        parcel(4, Message("t", b"x" * 5_000)),
        parcel(5, Message("t", b"x")),
        parcel(6, Message("u", b"x")),
        parcel(7, Message("t", b"x", sharding_key="a")),
        parcel(8, Message("t", b"x", sharding_key="c")),
        parcel(9, Message("t", b"x", sharding_key="b")),
        parcel(10, Message("t", b"x", sharding_key="a", delay_level=1)),
        parcel(11, Message("t", b"x", sharding_key="a")),
    ]

    planned, left = plan(parcels, queues=queues, batch_bytes=1_000, compress_from_bytes=4_096)

    shown = [(queue.queue_id if queue else None, [[p.row.id for p in lot] for lot in line]) for queue, line in planned]
    assert [
        (None, [[1, 2]]),
        (None, [[3]]),
        (None, [[4]]),
        (None, [[5]]),
        (None, [[6]]),
        (1, [[7, 8], [10], [11]]),
        (0, [[9]]),
    ] == shown
    assert [] == left
    alone, _ = plan(parcels[:2], queues=queues, batch_bytes=0, compress_from_bytes=4_096)
    assert 2 == len(alone)


def test_rows_of_one_order_key_that_go_to_several_places_are_sent_one_after_the_other() -> None:
    """J3: only other programs write such rows; lines of several queues do not wait for each other."""
    queues = {topic: [MessageQueue(topic, "a", 0)] for topic in ("t", "u")}
    parcels = [
        Parcel(Row(number, None, topic, b"x", "{}", "key"), Message(topic, b"x"))
        for number, topic in enumerate("ttutt")
    ]

    planned, left = plan(parcels, queues=queues, batch_bytes=1_000, compress_from_bytes=4_096)

    assert [[[0, 1]]] == [[[p.row.id for p in lot] for lot in line] for _, line in planned]
    assert [2, 3, 4] == [parcel.row.id for parcel in left]


def test_batches_are_bounded_by_bytes_not_by_characters() -> None:
    """J3: a character of a property takes up to four bytes."""
    details = '{"properties": {"name": "' + "\U0001f4e6" * 100 + '"}}'
    parcels = [Parcel(Row(number, None, "t", b"x", details, None), Message("t", b"x")) for number in range(2)]

    planned, _ = plan(parcels, queues={}, batch_bytes=1_000, compress_from_bytes=4_096)

    assert [[0], [1]] == [[parcel.row.id for parcel in lot] for _, line in planned for lot in line]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", None), ("order-1", "t:order-1"), ("ключ", "t:#"), ("a\0b", "t:#"), ("x" * 300, "t:#")],
)
def test_every_sharding_key_has_an_order_key_that_databases_can_store(key: str, expected: str | None) -> None:
    """J3"""
    found = order_key_of(Message("t", b"x", sharding_key=key))

    assert expected == found or (found is not None and found.startswith(str(expected)) and len(found) < 255)


async def test_what_is_committed_just_before_the_end_is_sent(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """J3: also if the relay was not woken yet."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    database = EngineDatabase(engine)
    await database.create()
    entry = to_entry(Message("orders", b"last"), message_id=IDS.next(), body_bytes_max=1 << 22)
    async with relaying(database, cluster) as relay:
        now_ms = Env().clock.now_ms()
        await database.run(
            lambda execute: database.table.insert(
                execute, [entry], now_ms=now_ms, owner=relay.owner, due_ms=now_ms + 60_000
            )
        )
        relay.committed([entry])
    assert 1 == relay.counters.sent_directly
    await database.close()
    engine.dispose()
