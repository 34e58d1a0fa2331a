"""The outbox table in migrations of Alembic (J3).

::

    import ternmq.outbox.alembic  # gives ``op`` the two operations

    def upgrade():
        op.create_outbox()

    def downgrade():
        op.drop_outbox()

Applications that migrate by autogenerate can have the table in their metadata instead: ``outbox_table(Base.metadata)``.
"""

from __future__ import annotations

from ternmq.outbox.engines import outbox_table
from ternmq.outbox.schema import TABLE

try:
    from alembic.operations import MigrateOperation, Operations
except ImportError as error:
    raise ImportError("migrations need Alembic; install it with `pip install alembic`") from error

from sqlalchemy import MetaData
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable


@Operations.register_operation("create_outbox")
class CreateOutbox(MigrateOperation):
    """Create the outbox table."""

    def __init__(self, table: str = TABLE) -> None:
        self.table = table

    @classmethod
    def create_outbox(cls, operations: Operations, table: str = TABLE) -> None:
        """Create the outbox table."""
        operations.invoke(cls(table))

    def reverse(self) -> MigrateOperation:
        return DropOutbox(self.table)


@Operations.register_operation("drop_outbox")
class DropOutbox(MigrateOperation):
    """Drop the outbox table, with all messages that were not sent."""

    def __init__(self, table: str = TABLE) -> None:
        self.table = table

    @classmethod
    def drop_outbox(cls, operations: Operations, table: str = TABLE) -> None:
        """Drop the outbox table, with all messages that were not sent."""
        operations.invoke(cls(table))

    def reverse(self) -> MigrateOperation:
        return CreateOutbox(self.table)


@Operations.implementation_for(CreateOutbox)
def _create(operations: Operations, operation: CreateOutbox) -> None:
    # As statements, which Alembic can also print (--sql).
    table = outbox_table(MetaData(), operation.table)
    operations.execute(CreateTable(table))
    for index in sorted(table.indexes, key=lambda one: str(one.name)):
        operations.execute(CreateIndex(index))


@Operations.implementation_for(DropOutbox)
def _drop(operations: Operations, operation: DropOutbox) -> None:
    operations.execute(DropTable(outbox_table(MetaData(), operation.table)))
