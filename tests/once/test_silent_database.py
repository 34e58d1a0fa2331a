"""A database that does not answer, and closes no connections (S1)."""

from __future__ import annotations

import subprocess
import sys

from tests.databases import postgresql

PROGRAM = """
import asyncio
import contextlib
import sys
from sqlalchemy import create_engine
from ternmq.once.sqlalchemy import SqlAlchemyKeys

keys = SqlAlchemyKeys(create_engine(sys.argv[1]))

async def main():
    await keys.create()
    print("ready", flush=True)
    sys.stdin.readline()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await keys.purge(1)

asyncio.run(main())
"""


def test_a_program_ends_though_the_database_of_its_keys_does_not_answer() -> None:
    """S1: the end of ``asyncio.run`` would wait for the thread that waits for the database."""
    with postgresql() as server, server.database() as database:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, database.url()],
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
