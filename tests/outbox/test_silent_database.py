"""A database that does not answer, and closes no connections: stopped, or behind a broken network (J3)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ternmq import EmbeddedCluster
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
