"""Exactly once through kill -9, on a real broker and real databases (S1)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text

from ternmq import EmbeddedCluster, Message, SyncProducer
from ternmq.once.keystore import State
from ternmq.once.sqlalchemy import SqlAlchemyKeys
from tests.databases import Database
from tests.no_delays import NO_DELAYS

COUNT = 8
LIMIT_S = 60


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as running:
        yield running


def started(cluster: EmbeddedCluster, url: str, point: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.once.worker", cluster.name_servers, url, point], stdout=subprocess.PIPE, text=True
    )


def killed_at(cluster: EmbeddedCluster, url: str, point: str) -> None:
    process = started(cluster, url, point)
    try:
        assert process.stdout is not None
        assert any(line.strip() == point for line in process.stdout), f"the worker ended before {point}"
    finally:
        process.kill()
        process.wait(LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()


def states(engine: Engine) -> Counter[int]:
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT state FROM ternmq_once")))


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "sqlite"])
async def test_work_happens_exactly_once_through_kills(
    cluster: EmbeddedCluster, database: str, request: pytest.FixtureRequest
) -> None:
    """S1: killed in the work, and above all after the work and before the progress is stored."""
    made = request.getfixturevalue(f"{database}_database")
    assert isinstance(made, Database)
    engine = create_engine(made.url())
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (name VARCHAR(50) NOT NULL)"))
    await SqlAlchemyKeys(engine).create()
    with SyncProducer("p", name_servers=cluster.name_servers) as producer:
        for number in range(COUNT):
            producer.send(Message("payments", b"1", keys=f"payment-{number}"))

    killed_at(cluster, made.url(), "working")
    killed_at(cluster, made.url(), "worked")
    assert states(engine)[State.DONE] > 0, "it was killed after work that counts"

    process = started(cluster, made.url(), "none")
    try:
        limit = time.monotonic() + LIMIT_S
        while states(engine) != Counter({State.DONE: COUNT}):
            assert time.monotonic() < limit, states(engine)
            await asyncio.sleep(0.1)
    finally:
        process.kill()
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()
    with engine.connect() as connection:
        paid = Counter(connection.scalars(text("SELECT name FROM payments")))
    engine.dispose()

    assert Counter({f"payment-{number}": 1 for number in range(COUNT)}) == paid
