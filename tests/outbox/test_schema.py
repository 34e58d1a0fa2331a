"""One table, however it was made: by SQLAlchemy, Alembic, Django, or the documented statements (J3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, MetaData, create_engine, inspect, text

import ternmq.outbox.alembic
from ternmq.errors import ConfigError
from ternmq.outbox.engines import outbox_table
from ternmq.outbox.schema import COLUMNS, Dialect, check_name, ddl
from tests.databases import Database

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "outbox.md"


def shape(engine: Engine, table: str) -> dict[str, Any]:
    """Columns, types, defaults and indexes, as the database tells them."""
    found = inspect(engine)
    columns = {
        column["name"]: (str(column["type"]), column["nullable"], str(column["default"] or "").strip("'()"))
        for column in found.get_columns(table)
    }
    indexes = {(tuple(index["column_names"]), bool(index["unique"])) for index in found.get_indexes(table)}
    return {"columns": columns, "indexes": indexes, "key": found.get_pk_constraint(table)["constrained_columns"]}


def test_all_ways_make_the_same_table(any_database: Database) -> None:
    """J3"""
    engine = create_engine(any_database.url())
    dialect = Dialect.of(engine.dialect.name)
    with engine.begin() as connection:
        for statement in ddl(dialect, "by_statements"):
            connection.execute(text(statement))
    outbox_table(MetaData(), "by_sqlalchemy").create(engine)
    with engine.begin() as connection:
        operations: Any = Operations(MigrationContext.configure(connection))
        operations.create_outbox("by_alembic")
        operations.create_outbox("gone")
        operations.drop_outbox("gone")

    wanted = shape(engine, "by_statements")
    # An identity is told as a default by some of them, and by its own name.
    for one in ("by_sqlalchemy", "by_alembic"):
        found = shape(engine, one)
        assert list(COLUMNS) == list(found["columns"])
        assert {**wanted["columns"], "id": None} == {**found["columns"], "id": None}
        assert (wanted["indexes"], wanted["key"]) == (found["indexes"], found["key"])
    assert not inspect(engine).has_table("gone")
    engine.dispose()
    assert ternmq.outbox.alembic.CreateOutbox("a").reverse().reverse() is not None


@pytest.mark.parametrize("dialect", Dialect)
def test_the_guide_has_the_statements(dialect: Dialect) -> None:
    """J3: other languages create the table by them."""
    assert ";\n".join(ddl(dialect)) in GUIDE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["", "a b", "a;b", "1a", "a" * 60, "a.b.c", 'a"b'])
def test_names_that_are_no_names_are_refused(name: str) -> None:
    """J3: they go into statements as they are."""
    with pytest.raises(ConfigError, match="invalid name"):
        check_name(name)


def test_other_databases_are_refused() -> None:
    """J3"""
    with pytest.raises(ConfigError, match="does not support databases of type 'oracle'"):
        Dialect.of("oracle")
