"""The servers that tests of the outbox and of «once» use: they start, are killed, and come back with what they had."""

from __future__ import annotations

import socket

from sqlalchemy import create_engine, text

from tests.databases import Database, Redis, postgresql


def test_each_database_can_be_used(any_database: Database) -> None:
    engine = create_engine(any_database.url())

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (n INTEGER)"))
        connection.execute(text("INSERT INTO numbers VALUES (5)"))

    with engine.connect() as connection:
        assert 5 == connection.scalar(text("SELECT n FROM numbers"))
    engine.dispose()


def test_redis_answers(redis_server: Redis) -> None:
    with socket.create_connection(("127.0.0.1", redis_server.port)) as connection:
        connection.sendall(b"PING\r\n")

        assert b"+PONG\r\n" == connection.recv(100)


def test_a_killed_server_has_what_was_committed() -> None:
    """MariaDB is killed in ``tests/outbox/test_killed.py``."""
    with postgresql() as server, server.database() as database:
        engine = create_engine(database.url())
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE numbers (n INTEGER)"))
            connection.execute(text("INSERT INTO numbers VALUES (5)"))
        engine.dispose()

        server.kill()
        server.start()

        with engine.connect() as connection:
            assert 5 == connection.scalar(text("SELECT n FROM numbers"))
        engine.dispose()
