"""The outbox in sessions of SQLAlchemy, on real databases and a real cluster (J3)."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session

from ternmq import EmbeddedCluster, Message
from ternmq.errors import ConfigError, InvalidMessage, NotRunning, OutboxFailed, OutboxMissing
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.sqlalchemy import Outbox
from tests.databases import Database
from tests.outbox.topics import bodies, bodies_of, messages_of, wait_for, wait_until

#: A relay that looks into the table only when it is told to: what arrives came straight from a commit.
DIRECT = OutboxConfig(sweep_interval_ms=3_600_000)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[int]


@pytest.fixture
def engine(any_database: Database) -> Iterator[Engine]:
    engine = create_engine(any_database.url())
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT COUNT(*) FROM ternmq_outbox")) or 0)


def test_a_large_transaction_keeps_a_part_of_its_messages_in_memory(cluster: EmbeddedCluster, engine: Engine) -> None:
    """J3: the bound is one of bytes, also before the commit; the others are read from the table."""
    topic = f"large-{engine.dialect.name}"
    config = OutboxConfig(sweep_interval_ms=3_600_000, direct_bytes_max=2_000)
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=config)
    outbox.create()
    with outbox, Session(engine) as session:
        with session.begin():
            outbox.send(session, *(Message(topic, b"%d" % number * 1_000) for number in range(4)))
            outbox.send(session, Message(topic, b"4" * 1_000))
        wait_for(lambda: rows(engine) == 0)
        assert (2, 3) == (outbox.counters.sent_directly, outbox.counters.sent_later)
    assert [b"%d" % number * 1_000 for number in range(5)] == bodies(cluster.name_servers, topic)


def test_commits_that_follow_each_other_share_the_work_of_a_relay(cluster: EmbeddedCluster, engine: Engine) -> None:
    """J3: the first message is sent at once, those behind it when there are enough, or at the end."""
    topic = f"gathered-{engine.dialect.name}"
    config = OutboxConfig(sweep_interval_ms=3_600_000, lease_ms=7_200_000, gather_ms=1_800_000, rows_max=3)
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=config)
    outbox.create()
    with outbox, Session(engine) as session:
        for number, left in ((0, 0), (1, 1), (2, 2), (3, 0), (4, 1)):
            outbox.send(session, Message(topic, b"%d" % number))
            session.commit()
            wait_for(lambda: rows(engine) == left)  # noqa: B023 - it is called at once
        assert [b"0", b"1", b"2", b"3"] == bodies(cluster.name_servers, topic)
    assert 0 == rows(engine)
    assert [b"0", b"1", b"2", b"3", b"4"] == bodies(cluster.name_servers, topic)


def test_a_committed_message_is_sent_and_a_rolled_back_one_is_not(cluster: EmbeddedCluster, engine: Engine) -> None:
    """J3: also of savepoints, whichever way they are rolled back."""
    topic = f"plain-{engine.dialect.name}"
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=DIRECT)
    outbox.create()
    outbox.create()
    with outbox, Session(engine) as session:
        with session.begin():
            session.add(Order(id=1, state=1))
            outbox.send(session, Message(topic, b"committed"))
            with session.begin_nested() as savepoint:
                outbox.send(session, Message(topic, b"never: savepoint"))
                savepoint.rollback()
            with session.begin_nested():
                outbox.send(session, Message(topic, b"in a savepoint"))
            session.execute(text("SAVEPOINT mine"))
            outbox.send(session, Message(topic, b"never: SQL of the application"))
            session.execute(text("ROLLBACK TO SAVEPOINT mine"))
            assert [] == bodies(cluster.name_servers, topic)
        outbox.send(session, Message(topic, b"never: rolled back"))
        session.rollback()
        outbox.send(session, Message(topic, b"never: closed"))
        session.close()
        with pytest.raises(ZeroDivisionError), session.begin():
            outbox.send(session, Message(topic, b"never: an error"))
            _ = 1 / 0
        outbox.send(session, Message(topic, b"by itself"))
        session.commit()

        wait_for(lambda: rows(engine) == 0)
        assert 3 == outbox.counters.sent_directly

    assert [b"by itself", b"committed", b"in a savepoint"] == bodies(cluster.name_servers, topic)


def test_the_first_message_of_an_outbox_is_rolled_back_as_all_others(engine: Engine) -> None:
    """J3: also as the first statement of its transaction, before which Python's sqlite3 has begun none."""
    outbox = Outbox(engine)
    outbox.create()
    with Session(engine) as session:
        outbox.send(session, Message("first", b"never"))
        session.rollback()
        assert 0 == rows(engine)
        outbox.send(session, Message("first", b"saved"))
        session.commit()
    assert 1 == rows(engine)


async def test_the_first_message_of_an_asyncio_session_is_rolled_back_as_all_others(any_database: Database) -> None:
    """J3"""
    engine = create_async_engine(any_database.async_url)
    outbox = Outbox(engine)
    await outbox.create_async()
    async with AsyncSession(engine) as session:
        await outbox.send(session, Message("first", b"never"))
        await session.rollback()
        assert 0 == await session.scalar(text("SELECT COUNT(*) FROM ternmq_outbox"))
    await engine.dispose()


async def test_sessions_with_asyncio_do_the_same(cluster: EmbeddedCluster, any_database: Database) -> None:
    """J3: nothing is sent inside the transaction, and no thread is used."""
    topic = f"asyncio-{any_database.dialect}"
    engine = create_async_engine(any_database.async_url)
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=DIRECT)
    await outbox.create_async()
    async with outbox, AsyncSession(engine) as session:
        async with session.begin():
            sent = await outbox.send(session, Message(topic, b"one"), Message(topic, b"two"))
            assert [] == await bodies_of(cluster.name_servers, topic)
        async with session.begin():
            await outbox.send(session, Message(topic, b"never"))
            await session.rollback()
        assert await outbox.publish_async(Message(topic, b"alone"))

        async def is_empty() -> bool:
            async with engine.connect() as connection:
                return not await connection.scalar(text("SELECT COUNT(*) FROM ternmq_outbox"))

        await wait_until(is_empty)
    await engine.dispose()

    found = await messages_of(cluster.name_servers, topic)
    assert [b"alone", b"one", b"two"] == sorted(message.body for message in found)
    assert set(sent) < {message.message_id for message in found}


def test_a_message_arrives_as_it_was(cluster: EmbeddedCluster, engine: Engine) -> None:
    """J3: all that a message can have goes through the table; delays are the broker's."""
    topic = f"whole-{engine.dialect.name}"
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=DIRECT)
    outbox.create()
    large = bytes(range(256)) * 1000
    past = datetime(2020, 1, 1, tzinfo=UTC)
    with outbox, Session(engine) as session, session.begin():
        outbox.send(
            session,
            Message(topic, b"all", tags="A", keys=("k1", "ключ"), properties={"größe": "5\u4e2d"}, flag=7),
            Message(topic, large, sharding_key="order-1"),
            Message(topic, b"level", delay_level=3),
            Message(topic, b"time", deliver_at=past),
            Message(topic, b"duration", delay=timedelta(milliseconds=1)),
            Message(topic, b"\x00binary\xff", wait_store_ok=False),
        )

    wait_for(lambda: rows(engine) == 0)
    wait_for(lambda: len(bodies(cluster.name_servers, topic)) == 6)
    found = {message.body: message for message in asyncio.run(messages_of(cluster.name_servers, topic))}
    first = found[b"all"]
    assert ("A", ("k1", "ключ"), "5\u4e2d", 7) == (first.tags, first.keys, first.properties["größe"], first.flag)
    assert "order-1" == found[large].properties["__SHARDINGKEY"]
    assert {b"level", b"time", b"duration", b"\x00binary\xff"} < set(found)


def test_changes_are_flushed_before_the_message_is_numbered(
    cluster: EmbeddedCluster, sqlite_database: Database
) -> None:
    """J3: so the lock of a changed row orders the messages of two transactions."""
    engine = create_engine(sqlite_database.url())
    Base.metadata.create_all(engine)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    outbox = Outbox(engine)
    outbox.create()
    statements.clear()
    with Session(engine) as session, session.begin():
        session.add(Order(id=1, state=1))
        outbox.send(session, Message("orders", b"x", sharding_key="1"))
        session.add(Order(id=2, state=1))

    inserts = [statement.split()[2] for statement in statements if statement.startswith("INSERT")]
    assert ["orders", "ternmq_outbox", "orders"] == inserts
    engine.dispose()


def test_events_of_the_orm_may_send(cluster: EmbeddedCluster, sqlite_database: Database) -> None:
    """J3: inside a flush, and inside the commit."""
    engine = create_engine(sqlite_database.url())
    Base.metadata.create_all(engine)
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=DIRECT)
    outbox.create()

    def inserted(mapper: object, connection: object, order: Order) -> None:
        session = object_session(order)
        assert session is not None
        outbox.send(session, Message("events", b"order %d" % order.id))

    event.listen(Order, "after_insert", inserted)
    try:
        with outbox, Session(engine) as session:
            event.listen(session, "before_commit", lambda session: outbox.send(session, Message("events", b"commit")))
            session.add(Order(id=5, state=1))
            session.commit()
            wait_for(lambda: rows(engine) == 0)
    finally:
        event.remove(Order, "after_insert", inserted)
        engine.dispose()

    assert [b"commit", b"order 5"] == bodies(cluster.name_servers, "events")


def test_without_a_block_messages_are_saved_for_other_relays(cluster: EmbeddedCluster, engine: Engine) -> None:
    """J3"""
    topic = f"saved-{engine.dialect.name}"
    outbox = Outbox(engine, config=DIRECT, name_servers=cluster.name_servers)
    outbox.create()
    with Session(engine) as session, session.begin():
        outbox.send(session, Message(topic, b"one"))

    assert 1 == rows(engine)
    with pytest.raises(NotRunning, match="with outbox:"):
        outbox.publish(Message(topic, b"x"))
    with outbox:
        wait_for(lambda: rows(engine) == 0)
        assert 1 == outbox.counters.sent_later
    assert [b"one"] == bodies(cluster.name_servers, topic)


def test_publish_saves_first_and_then_sends(cluster: EmbeddedCluster, sqlite_database: Database) -> None:
    """J3: outside a transaction; on request even if it cannot be saved."""
    engine = create_engine(sqlite_database.url())
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=DIRECT)
    with outbox:
        with pytest.raises(OutboxMissing, match="has no table 'ternmq_outbox'"):
            outbox.publish(Message("published", b"unsaved"))
        assert outbox.publish(Message("published", b"even unsaved"), even_unsaved=True)
        outbox.create()
        assert outbox.publish(Message("published", b"saved"))
        assert not outbox.publish(Message("published", b"behind others", sharding_key="1"))
        wait_for(lambda: rows(engine) == 0)
    engine.dispose()

    assert [b"behind others", b"even unsaved", b"saved"] == bodies(cluster.name_servers, "published")


def test_several_engines_have_one_outbox(
    cluster: EmbeddedCluster, sqlite_database: Database, postgresql_database: Database
) -> None:
    """J3"""
    first, second = create_engine(sqlite_database.url()), create_engine(postgresql_database.url())
    other = create_engine("sqlite:////tmp/other.db")
    outbox = Outbox(first, second, name_servers=cluster.name_servers, config=DIRECT)
    outbox.create()
    with outbox:
        for engine in (first, second):
            with Session(engine) as session, session.begin():
                outbox.send(session, Message("engines", engine.dialect.name.encode()))
        with Session() as session, session.begin():
            with pytest.raises(ConfigError, match=r"name it: outbox\.send"):
                outbox.send(session, Message("engines", b"x"))
            outbox.send(session, Message("engines", b"named"), engine=second)
        with Session(other) as session, pytest.raises(ConfigError, match="not one of this outbox"):
            outbox.send(session, Message("engines", b"x"))
        wait_for(lambda: rows(first) + rows(second) == 0)
    first.dispose()
    second.dispose()

    assert [b"named", b"postgresql", b"sqlite"] == bodies(cluster.name_servers, "engines")


def test_what_cannot_be_sent_is_refused_and_the_transaction_lives(cluster: EmbeddedCluster, engine: Engine) -> None:
    """Issue 20: bad input is a sentence, and the application's transaction is neither committed nor lost."""
    outbox = Outbox(engine, name_servers=cluster.name_servers)
    orders = Base.metadata.tables["orders"]
    with Session(engine) as session, session.begin():
        session.execute(insert(orders).values(id=1, state=1))
        with pytest.raises(OutboxMissing, match=r"has no table 'ternmq_outbox'.*Outbox.create\(\)"):
            outbox.send(session, Message("orders", b"no table"))
        session.execute(insert(orders).values(id=2, state=1))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ternmq_outbox (id INTEGER)"))
    with Session(engine) as session, session.begin():
        session.execute(insert(orders).values(id=3, state=1))
        with pytest.raises(OutboxFailed, match="the outbox cannot use the database"):
            outbox.send(session, Message("orders", b"another table"))
        with pytest.raises(InvalidMessage, match="larger than the 4194304 allowed"):
            outbox.send(session, Message("orders", bytes(4 * 1024 * 1024 + 1)))
        with pytest.raises(TypeError, match=r"expected a ternmq\.Message"):
            outbox.send(session, b"orders")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="expected bytes"):
            outbox.send(session, Message("orders", "text"))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected a Session or AsyncSession"):
            outbox.send(engine, Message("orders", b"x"))  # type: ignore[call-overload]
        session.execute(insert(orders).values(id=4, state=1))

    with engine.connect() as connection:
        assert 4 == connection.scalar(select(func.count()).select_from(orders))


def test_a_database_that_goes_away_is_a_sentence(cluster: EmbeddedCluster, postgresql_database: Database) -> None:
    """Issue 20: in the middle of the application's transaction; the next one works."""
    engine = create_engine(postgresql_database.url())
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=DIRECT)
    outbox.create()
    with outbox:
        with Session(engine) as session:
            outbox.send(session, Message("away", b"never"))
            backend = session.scalar(text("SELECT pg_backend_pid()"))
            with engine.begin() as other:
                other.execute(text("SELECT pg_terminate_backend(:backend)"), {"backend": backend})
            with pytest.raises(OutboxFailed, match="the outbox cannot use the database postgresql"):
                outbox.send(session, Message("away", b"never"))
            session.rollback()
        with Session(engine) as session, session.begin():
            outbox.send(session, Message("away", b"sent"))
        wait_for(lambda: rows(engine) == 0)
    engine.dispose()

    assert [b"sent"] == bodies(cluster.name_servers, "away")


def test_a_session_inside_a_transaction_of_its_connection_sends_nothing_early(
    cluster: EmbeddedCluster, postgresql_database: Database
) -> None:
    """J3: session.commit() is not a commit then; only the table knows."""
    engine = create_engine(postgresql_database.url())
    outbox = Outbox(engine, name_servers=cluster.name_servers, config=DIRECT)
    outbox.create()
    with outbox, engine.connect() as connection:
        outer = connection.begin()
        with Session(connection) as session:
            outbox.send(session, Message("joined", b"never"))
            session.commit()
        with Session(engine) as session, session.begin():
            outbox.send(session, Message("joined", b"a fence"))
        wait_for(lambda: rows(engine) == 0)
        outer.rollback()
    engine.dispose()

    assert [b"a fence"] == bodies(cluster.name_servers, "joined")


def test_wrong_engines_are_refused() -> None:
    """J3"""
    with pytest.raises(ConfigError, match="at least one engine"):
        Outbox()
    with pytest.raises(ConfigError, match="expected an Engine"):
        Outbox("sqlite:///x.db")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="in memory"):
        Outbox(create_engine("sqlite://"))
    with pytest.raises(ConfigError, match="invalid name"):
        Outbox(create_engine("sqlite:///x.db"), table="a; DROP TABLE b")
    with pytest.raises(ConfigError, match="use `async with`"), Outbox(create_async_engine("sqlite+aiosqlite:///x.db")):
        pass
    with pytest.raises(ConfigError, match="invalid lease_ms 0: expected a whole number from 1"):
        OutboxConfig(lease_ms=0)
    with pytest.raises(ConfigError, match="invalid rows_max 10001: expected a whole number from 1 to 10000"):
        OutboxConfig(rows_max=10_001)
    with pytest.raises(ConfigError, match="invalid backoff_max_ms"):
        OutboxConfig(backoff_max_ms=10**19)
    with pytest.raises(ConfigError, match="invalid gather_ms 11: expected at most a quarter of lease_ms"):
        OutboxConfig(gather_ms=11, lease_ms=40)


def test_the_application_needs_no_tables_of_ours_but_one() -> None:
    """J3: the outbox takes part in an application's own metadata."""
    from ternmq.outbox.engines import outbox_table

    metadata = MetaData()
    Table("mine", metadata, Column("id", Integer, primary_key=True))
    assert outbox_table(metadata) is outbox_table(metadata)
    assert {"mine", "ternmq_outbox"} == set(metadata.tables)


def test_an_outbox_that_ends_at_once_leaves_no_connection_to_a_pool_that_is_gone(
    cluster: EmbeddedCluster, postgresql_database: Database
) -> None:
    """J3: the one with which it learns how to listen; psycopg warns of what nobody closed."""
    engine = create_engine(postgresql_database.url())
    Outbox(engine, name_servers=cluster.name_servers).create()
    for _ in range(5):
        with Outbox(engine, name_servers=cluster.name_servers, config=DIRECT):
            pass
        engine.dispose()
    wait_for(lambda: not [one.name for one in threading.enumerate() if one.name == "ternmq-outbox-listen"])
    gc.collect()
