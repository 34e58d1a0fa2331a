"""Each key store in turn, on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from ternmq.env import Clock
from ternmq.once.keystore import KeyStore
from ternmq.once.memory import MemoryKeys
from ternmq.once.redis import RedisKeys
from ternmq.once.sqlalchemy import SqlAlchemyKeys
from ternmq.once.sqlite import SqliteKeys
from tests.databases import Database
from tests.manual_clock import ManualClock

DATABASES = ("sqlite", "postgresql", "mariadb")
SQL_STORES = tuple(f"{kind}-{database}" for database in DATABASES for kind in ("plain", "async"))
STORES = ("memory", "file", "redis", *SQL_STORES)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[KeyStore]:
    """Every store, on a clock that is moved by hand."""
    async for made in _made(request, request.param, tmp_path, clock):
        yield made


@pytest.fixture(params=STORES)
async def live_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyStore]:
    """Every store, on its own clock."""
    async for made in _made(request, request.param, tmp_path, None):
        yield made


@pytest.fixture(params=SQL_STORES)
async def sql_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyStore]:
    """Those of SQLAlchemy, on their own clock."""
    async for made in _made(request, request.param, tmp_path, None):
        yield made


async def _made(
    request: pytest.FixtureRequest, kind: str, directory: Path, clock: Clock | None
) -> AsyncIterator[KeyStore]:
    if kind == "memory":
        yield MemoryKeys(clock=clock)
    elif kind == "file":
        keys = SqliteKeys(directory / "keys.db", clock=clock)
        yield keys
        keys.close()
    elif kind == "redis":
        client = Redis.from_url(request.getfixturevalue("redis_server").url)
        await client.flushall()
        yield RedisKeys(client, clock=clock)
        await client.aclose()
    else:
        way, _, name = kind.partition("-")
        database = request.getfixturevalue(f"{name}_database")
        assert isinstance(database, Database)
        if way == "plain":
            engine = create_engine(database.url())
            store = SqlAlchemyKeys(engine, clock=clock)
            await store.create()
            yield store
            engine.dispose()
        else:
            async_engine = create_async_engine(database.async_url)
            store = SqlAlchemyKeys(async_engine, clock=clock)
            await store.create()
            yield store
            await async_engine.dispose()
