"""A database that does not answer, and closes no connections: stopped, or behind a broken network (J3)."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ternmq import EmbeddedCluster
from ternmq.outbox.side_thread import SideThread
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


async def test_calls_are_made_one_after_the_other_and_errors_are_the_callers() -> None:
    """J3"""
    thread = SideThread("aside")
    names: list[str] = []

    def work(number: int) -> int:
        names.append(threading.current_thread().name)
        return 10 // number

    assert 5 == await thread.run(work, 2)
    with pytest.raises(ZeroDivisionError):
        await thread.run(work, 0)
    assert 10 == await thread.run(work, 1)
    assert ["aside"] * 3 == names
    thread.end()


async def test_the_thread_ends_with_what_it_belongs_to() -> None:
    """J3: programs may make an outbox for each test, and forget it."""
    thread = SideThread("forgotten")
    mine = await thread.run(threading.current_thread)
    del thread
    mine.join(60)
    assert not mine.is_alive()
