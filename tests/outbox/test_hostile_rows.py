"""Rows that no one should write, and one bad row among good ones (J3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ternmq import EmbeddedCluster
from ternmq.outbox import spool as spool_module
from ternmq.outbox.spool import SpoolFile, executing
from ternmq.outbox.table import Execute, Result, Values
from tests.outbox.test_relay import relaying
from tests.outbox.topics import bodies_of, messages_of


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[SpoolFile]:
    file = SpoolFile(tmp_path / "spool.db")
    yield file
    await file.close()


INSERT = "INSERT INTO ternmq_outbox (topic, body, message, attempts, refusals) VALUES "


@pytest.mark.parametrize(
    ("row", "sent"),
    [
        ("('orders', 42, '{}', 0, 0)", b"42"),
        ("('orders', 4.5, '{}', 0, 0)", b"4.5"),
        ("('orders', 'text', x'7b7d', 0, 0)", b"text"),
        ("('orders', x'01', '{}', 'many', 'more')", b"\x01"),
        ("('orders', x'01', '{', -1, -1)", None),
        ("('orders', x'01', '{', -9223372036854775808, 9223372036854775807)", None),
        ("('orders', x'01', '{', 9223372036854775807, 0)", None),
        ("('orders', x'01', CAST(x'ff7b' AS TEXT), 0, 0)", None),
        ("(CAST(x'ff' AS TEXT), x'01', '{}', 0, 0)", None),
        ("('orders', x'01', '{\"flag\": 99999999999}', 0, 0)", None),
        ("('orders', x'01', '{\"deliver_at_ms\": 99999999999999999999}', 0, 0)", None),
        ("('orders', x'01', '{\"delay_ms\": 9223372036854775807}', 0, 0)", None),
        ("('orders', x'01', '{\"tags\": \"\\ud800\"}', 0, 0)", None),
        ("('orders', zeroblob(5000000), '{}', 0, 0)", None),
        (f"('orders', x'01', '{'[' * 100_000}', 0, 0)", None),
        (f"('orders', x'01', '{'{' + chr(34) + 'x' + chr(34) + ':' + '[' * 100_000}', 0, 0)", None),
    ],
)
async def test_a_bad_row_does_not_stand_in_the_way(
    cluster: EmbeddedCluster, spool: SpoolFile, request: pytest.FixtureRequest, row: str, sent: bytes | None
) -> None:
    """J3: SQLite keeps what another program writes, of whatever type. It is sent or dead, and the others are sent."""
    topic = f"hostile-{request.node.callspec.indices['row']}"
    await spool.run(
        lambda execute: execute(f"{INSERT} {row}, ('orders', x'6f6b', '{{}}', 0, 0)".replace("orders", topic))
    )
    async with relaying(spool, cluster) as relay:
        await relay.sweep()
        assert (0, 0) == (relay.counters.database_failures, relay.counters.outages)
    status = await spool.run(lambda execute: spool.table.status(execute, now_ms=0))
    assert (0, int(sent is None)) == (status.waiting + status.leased, status.dead)
    assert {b"ok"} | ({sent} if sent is not None else set()) == set(await bodies_of(cluster.name_servers, topic))


@pytest.mark.parametrize(
    ("name", "body"), [("blob", "zeroblob(70000000)"), ("text", "CAST(zeroblob(70000000) AS TEXT)")]
)
async def test_a_row_too_large_to_be_read_is_dead_with_the_reason(
    cluster: EmbeddedCluster, spool: SpoolFile, name: str, body: str
) -> None:
    """J3: read whole, it would end every relay that takes it."""
    row = f"('hostile-huge', {body}, '{{}}', 0, 0), ('hostile-huge', x'6f6b', '{{}}', 0, 0)".replace("huge", name)
    await spool.run(lambda execute: execute(f"{INSERT} {row}"))
    async with relaying(spool, cluster) as relay:
        await relay.sweep()
    [dead] = await spool.run(lambda execute: spool.table.dead(execute, count_max=9))
    assert "has 70000002 bytes; relays read 67108864 at most" in dead.error
    assert [b"ok"] == await bodies_of(cluster.name_servers, f"hostile-{name}")


async def test_details_too_large_to_be_decoded_are_dead_with_the_reason(
    cluster: EmbeddedCluster, spool: SpoolFile
) -> None:
    """J3: 64 MiB of JSON can be a gigabyte of objects."""
    many = '{"keys": [' + '"",' * 400_000 + '""]}'
    row = f"('hostile-many', x'01', '{many}', 0, 0), ('hostile-many', x'6f6b', '{{}}', 0, 0)"
    await spool.run(lambda execute: execute(f"{INSERT} {row}"))
    async with relaying(spool, cluster) as relay:
        await relay.sweep()
    [dead] = await spool.run(lambda execute: spool.table.dead(execute, count_max=9))
    assert "1048576 of the column 'message'" in dead.error
    assert [b"ok"] == await bodies_of(cluster.name_servers, "hostile-many")


async def test_operators_see_rows_with_columns_of_another_type(spool: SpoolFile) -> None:
    """J3: status and the list of dead rows, which are needed most then."""
    statement = (
        "INSERT INTO ternmq_outbox (topic, body, message, state, refusals, created_ms) VALUES "
        "('orders', x'01', '{}', 0, 0, 'yesterday'), ('orders', x'01', '{}', 0, 0, 5), "
        "('orders', x'01', '{}', 1, 'many', 'today'), ('orders', x'01', '{}', 'none', 0, 0)"
    )
    await spool.run(lambda execute: execute(statement))
    status = await spool.run(lambda execute: spool.table.status(execute, now_ms=10))
    assert (2, 0, 1) == (status.waiting, status.leased, status.dead)
    [dead] = await spool.run(lambda execute: spool.table.dead(execute, count_max=9))
    assert (0, 0) == (dead.refusals, dead.created_ms)


async def test_texts_of_any_length_do_not_fill_the_memory(
    cluster: EmbeddedCluster, spool: SpoolFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: SQLite keeps them, whatever the type of the column. Rows of one key keep their order, however long it is."""
    insert = "INSERT INTO ternmq_outbox (message_id, topic, body, message, order_key, state, error) VALUES "
    long, hidden = "HEX(ZEROBLOB(2500000))", "CAST(ZEROBLOB(5000000) AS TEXT) || 'x'"
    await spool.run(
        lambda execute: execute(
            f"{insert} ({long}, 'hostile-long', 'id', '{{}}', NULL, 0, NULL), "
            f"(NULL, {long}, 'topic', '{{}}', NULL, 0, NULL), (NULL, 'hostile-long', 'dead', '{{}}', NULL, 1, {long}), "
            f"(NULL, 'hostile-long', '1', '{{}}', {long}, 0, NULL), "
            f"(NULL, 'hostile-long', '2', '{{}}', {long}, 0, NULL), "
            # SQLite counts the characters of a text up to its first NUL.
            f"({hidden}, 'hostile-long', '3', '{{}}', {hidden}, 0, NULL)"
        )
    )
    read = 0

    def counting(execute: Execute) -> Execute:
        def counted(statement: str, values: Values | Sequence[Values] = (), /) -> Result:
            nonlocal read
            result = execute(statement, values)
            read += sum(len(field) for row in result.rows for field in row if isinstance(field, str | bytes))
            return result

        return counted

    monkeypatch.setattr(spool_module, "executing", lambda connection: counting(executing(connection)))
    async with relaying(spool, cluster) as relay:
        assert 1 == await relay.sweep()
    dead = await spool.run(lambda execute: spool.table.dead(execute, count_max=9))
    assert 4 == len(dead)
    assert "a message_id of more than 64 characters" in dead[0].error
    assert "topic name" in dead[1].error
    assert "an order_key of more than 255 characters" in dead[3].error
    assert read < 50_000
    found = [message.body for message in await messages_of(cluster.name_servers, "hostile-long")]
    assert [b"3"] == found, "the second one is behind the first"
