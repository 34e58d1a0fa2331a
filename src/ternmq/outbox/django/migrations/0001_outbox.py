"""The outbox table, by the same statements that are documented for other languages."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

from ternmq.outbox.schema import TABLE, Dialect, ddl


def create(_: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in ddl(Dialect.of(schema_editor.connection.vendor), TABLE):
        schema_editor.execute(statement, params=None)


def drop(_: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    schema_editor.execute(f"DROP TABLE {TABLE}", params=None)


def operations() -> list[migrations.operations.base.Operation]:
    from django.db import models

    from ternmq.outbox.entry import ERROR_LENGTH, MESSAGE_ID_LENGTH, ORDER_KEY_LENGTH, OWNER_LENGTH, TOPIC_LENGTH

    model = migrations.CreateModel(
        name="OutboxMessage",
        fields=[
            ("id", models.BigAutoField(primary_key=True, serialize=False)),
            ("message_id", models.CharField(max_length=MESSAGE_ID_LENGTH, null=True)),
            ("topic", models.CharField(max_length=TOPIC_LENGTH)),
            ("body", models.BinaryField()),
            ("message", models.TextField()),
            ("order_key", models.CharField(max_length=ORDER_KEY_LENGTH, null=True)),
            ("state", models.SmallIntegerField(default=0)),
            ("due_ms", models.BigIntegerField(default=0)),
            ("owner", models.CharField(max_length=OWNER_LENGTH, null=True)),
            ("attempts", models.IntegerField(default=0)),
            ("refusals", models.IntegerField(default=0)),
            ("error", models.CharField(max_length=ERROR_LENGTH, null=True)),
            ("created_ms", models.BigIntegerField(default=0)),
        ],
        options={"db_table": TABLE},
    )
    return [
        migrations.SeparateDatabaseAndState(
            # Django knows the columns, and the statements make them: so they have defaults for other languages, too.
            database_operations=[migrations.RunPython(create, drop)],
            state_operations=[model],
        )
    ]


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[migrations.operations.base.Operation]] = operations()
