"""A database that does not answer, and closes no connections: stopped, or behind a broken network (J3)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import QueuePool, create_engine
from sqlalchemy.engine import Connection

from ternmq import EmbeddedCluster
from ternmq.outbox import engines
from ternmq.outbox.engines import EngineDatabase
from ternmq.outbox.table import Execute
from tests.databases import mariadb, postgresql

PROGRAM = """
import sys
from sqlalchemy import create_engine
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.sqlalchemy import Outbox

config = OutboxConfig(sweep_interval_ms=50, close_timeout_ms=100)
outbox = Outbox(create_engine(sys.argv[1]), name_servers=sys.argv[2], config=config)
outbox.create()
with outbox:
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_program_ends_though_its_database_does_not_answer(cluster: EmbeddedCluster, kind: str) -> None:
    """J3: it would wait for the thread of the relay until it is killed."""
    with (postgresql if kind == "postgresql" else mariadb)() as server, server.database() as database:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, database.url(), str(cluster.name_servers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdout is not None
            assert "ready\n" == program.stdout.readline()
            server.pause()
            program.communicate("end\n", timeout=60)
            assert 0 == program.returncode
        finally:
            server.resume()
            program.kill()
            program.wait()


async def test_a_connection_that_is_stuck_is_not_used_by_the_next_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: an outbox may begin again while the call of its last life has no answer. Two threads on one connection would
    read each other's answers. When that call returns, its connection goes back to the pool."""
    monkeypatch.setattr(engines, "CLOSE_S", 0.05)
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=QueuePool)
    database, is_stuck, goes_on, kept = EngineDatabase(engine), Event(), Event(), list[Connection | None]()

    def look(_: Execute) -> None:
        kept.append(database._kept)
        is_stuck.set()
        assert goes_on.wait(60)

    stuck = asyncio.create_task(database.run(look))
    assert await asyncio.to_thread(is_stuck.wait, 60)
    await database.close()
    kept.append(await database.run(lambda _: database._kept))
    await database.close()
    assert None not in kept
    assert kept[0] is not kept[1]
    goes_on.set()
    await stuck
    async with asyncio.timeout(60):
        while engine.pool.checkedout():  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
    engine.dispose()
