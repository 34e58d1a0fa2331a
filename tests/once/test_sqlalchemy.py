"""Work and key in one transaction, fences, and databases that go away (S1)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine, text

from ternmq import ConsumeResult, Outage, ReceivedMessage
from ternmq.errors import ConfigError, InvalidKey, KeyStoreFailed, KeyTableMissing
from ternmq.once.guard import Guard
from ternmq.once.keystore import KeyStore, State, claim, settle
from ternmq.once.memory import MemoryKeys
from ternmq.once.redis import RedisKeys
from ternmq.once.sqlalchemy import SqlAlchemyKeys, once_in_transaction, transaction
from ternmq.once.sqlite import SqliteKeys
from tests.databases import Database, postgresql, redis
from tests.once.test_contract import order

INSERT = text("INSERT INTO effects (name) VALUES ('x')")


async def prepare(store: KeyStore) -> SqlAlchemyKeys:
    assert isinstance(store, SqlAlchemyKeys)
    await store._run(lambda connection: connection.execute(text("CREATE TABLE effects (name VARCHAR(9) NOT NULL)")))
    return store


async def effects(store: SqlAlchemyKeys) -> int:
    return await store._run(lambda connection: connection.execute(text("SELECT count(*) FROM effects")).scalar_one())


def listening(store: SqlAlchemyKeys, after: Any, *, lease_ms: int = 60_000) -> Any:
    """A listener that has one effect and then does ``after``, called as a consumer would."""
    decorate = once_in_transaction(store, scope="billing", lease_ms=lease_ms)
    if store.is_async:

        async def work(message: ReceivedMessage, session: Any) -> object:
            await session.execute(INSERT)
            return await after(message)

        return decorate(work)

    loop = asyncio.get_running_loop()

    def work_here(message: ReceivedMessage, session: Any) -> object:
        session.execute(INSERT)
        return asyncio.run_coroutine_threadsafe(after(message), loop).result(60)

    plain = decorate(work_here)

    async def call(message: ReceivedMessage) -> object:
        return await asyncio.to_thread(plain, message)

    return call


async def test_work_and_key_are_committed_together(sql_store: KeyStore) -> None:
    """S1: an error and RETRY roll both back; a message that was done has no effect again."""
    store = await prepare(sql_store)
    ends: list[Any] = [ZeroDivisionError(), ConsumeResult.RETRY, None]

    async def after(message: ReceivedMessage) -> object:
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    listener = listening(store, after)
    with pytest.raises(ZeroDivisionError):
        await listener(order())
    assert ConsumeResult.RETRY is await listener(order())
    assert 0 == await effects(store)
    assert [None, None] == [await listener(order()), await listener(order())]
    assert 1 == await effects(store)


async def test_long_work_in_a_transaction_keeps_its_lease(sql_store: KeyStore) -> None:
    """S1: renewals of the key do not get into the way of the transaction, nor it into theirs."""
    store = await prepare(sql_store)

    async def after(message: ReceivedMessage) -> None:
        # The lease is renewed after a third of it; the rest is for a busy machine.
        await asyncio.sleep(1.7)

    # Of two at once, the second waits until the first is done.
    listener = listening(store, after, lease_ms=4_500)
    assert [None, None] == list(await asyncio.gather(listener(order()), listener(order())))
    assert 1 == await effects(store)


@pytest.mark.parametrize("taken_over", ["running", "done"])
async def test_an_owner_that_lost_its_lease_has_no_effect(
    postgresql_database: Database, mariadb_database: Database, taken_over: str
) -> None:
    """S1: another consumer took over while the first one slept; the token fences the first one's transaction off."""
    for database in (postgresql_database, mariadb_database):
        engine = create_engine(database.url())
        store = SqlAlchemyKeys(engine)
        await store.create()
        await prepare(store)

        async def robbed(message: ReceivedMessage, store: SqlAlchemyKeys = store) -> None:
            # As if the lease had ended and another consumer had claimed the key.
            name = "billing:orders:order-7"
            await store._run(lambda connection: connection.execute(text("UPDATE ternmq_once SET until_ms = 0")))
            await store.change(name, claim("another", 60_000))
            if taken_over == "done":
                await store.change(name, settle("another", State.DONE, 60_000))

        assert ConsumeResult.RETRY is await listening(store, robbed)(order())
        assert 0 == await effects(store)
        engine.dispose()


async def test_a_block_has_the_session_or_none(sql_store: KeyStore) -> None:
    """S1: the same without a decorator, for asyncio."""
    store = await prepare(sql_store)
    guard = Guard(store, scope="billing")
    if not store.is_async:
        with pytest.raises(ConfigError, match="of an AsyncEngine"):
            async with transaction(guard, order()):
                pass
        return
    firsts = []
    for _ in range(2):
        async with transaction(guard, order()) as session:
            firsts.append(session is not None)
            if session is not None:
                await session.execute(INSERT)
    assert ([True, False], 1) == (firsts, await effects(store))


async def test_a_missing_table_is_named(sql_store: KeyStore) -> None:
    """S1: bad input. It is an outage: the consumer waits until the table is there."""
    assert isinstance(sql_store, SqlAlchemyKeys)
    await sql_store._run(lambda connection: connection.execute(text("DROP TABLE ternmq_once")))
    with pytest.raises(KeyTableMissing, match=r"has no table 'ternmq_once' .* create it with SqlAlchemyKeys.create"):
        async with Guard(sql_store, scope="billing")(order()):
            pass
    assert issubclass(KeyTableMissing, Outage)


async def test_a_database_that_goes_away_is_an_outage_and_the_key_survives() -> None:
    """S1: lost connections, during the work too; afterwards the message is done once."""
    with postgresql() as server, server.database() as database:
        engine = create_engine(database.url())
        store = SqlAlchemyKeys(engine)
        await store.create()
        await prepare(store)
        is_first = True

        async def after(message: ReceivedMessage) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                await asyncio.to_thread(server.kill)

        decorated = listening(store, after)
        with pytest.raises(Exception, match=r"server closed the connection|terminat|connection"):
            await decorated(order())
        with pytest.raises(KeyStoreFailed, match="cannot use the key store postgresql"):
            await decorated(order("order-8"))
        server.start()
        # The first lease is not over, and could not be released.
        await store._run(lambda connection: connection.execute(text("UPDATE ternmq_once SET until_ms = 0")))
        assert 0 == await effects(store)
        assert [None, None] == [await decorated(order()), await decorated(order())]
        assert 1 == await effects(store)
        engine.dispose()


async def test_redis_that_goes_away_is_an_outage_and_keys_survive() -> None:
    """S1."""
    with redis() as server:
        client = Redis.from_url(server.url)
        guard = Guard(RedisKeys(client), scope="billing")
        async with guard(order()) as first:
            assert first
        server.kill()
        with pytest.raises(KeyStoreFailed, match=r"cannot use the key store Redis 127\.0\.0\.1"):
            async with guard(order()):
                pass
        server.start()
        async with guard(order()) as first:
            assert not first
        await client.set("ternmq:once:billing:orders:order-9", "foreign")
        with pytest.raises(KeyStoreFailed, match="is not one of a key"):
            async with guard(order("order-9")):
                pass
        await client.aclose()


async def test_bad_stores_are_refused(tmp_path: Path) -> None:
    """S1."""
    with pytest.raises(ConfigError, match="expected an Engine or AsyncEngine"):
        SqlAlchemyKeys("sqlite://")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use a file instead of SQLite in memory"):
        SqlAlchemyKeys(create_engine("sqlite://"))
    with pytest.raises(ConfigError, match="invalid name 'a b' of the key table"):
        SqlAlchemyKeys(create_engine(f"sqlite:///{tmp_path}/a.db"), table="a b")
    with pytest.raises(ConfigError, match=r"expected a redis\.asyncio\.Redis"):
        RedisKeys("redis://")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs SqlAlchemyKeys"):
        once_in_transaction(MemoryKeys())  # type: ignore[arg-type]
    store = SqlAlchemyKeys(create_engine(f"sqlite:///{tmp_path}/a.db"))
    with pytest.raises(ConfigError, match="an `async` one needs an AsyncEngine"):

        @once_in_transaction(store)
        async def work(message: ReceivedMessage, session: Any) -> None: ...

    with pytest.raises(KeyStoreFailed, match=r"cannot use the key store SQLite .*unable to open"):
        async with Guard(SqliteKeys(tmp_path / "none" / "keys.db"), scope="billing")(order()):
            pass


async def test_a_key_that_the_database_cannot_store_is_no_outage(postgresql_database: Database) -> None:
    """S1: an outage would stop all other messages, too."""
    template = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    outer = create_engine(postgresql_database.url(), isolation_level="AUTOCOMMIT")
    with outer.connect() as connection:
        connection.execute(text(f"CREATE DATABASE latin_keys {template}"))
    engine = create_engine(outer.url.set(database="latin_keys"))
    try:
        store = SqlAlchemyKeys(engine)
        await store.create()
        with pytest.raises(InvalidKey, match="cannot store the key"):
            async with Guard(store, scope="billing")(order("\u4e2d")):
                pass
        async with Guard(store, scope="billing")(order("gr\u00f6\u00dfe")) as first:
            assert first
    finally:
        engine.dispose()
        with outer.connect() as connection:
            connection.execute(text("DROP DATABASE latin_keys WITH (FORCE)"))
        outer.dispose()
