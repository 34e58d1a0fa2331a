"""Databases of Django as the relay sees them (J3)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ternmq.conflicts import is_conflict
from ternmq.errors import OutboxFailed, OutboxMissing
from ternmq.outbox.schema import TABLE, Dialect
from ternmq.outbox.table import CLOSE_S, CONFLICTS_MAX, Execute, OutboxTable, Result, Values
from ternmq.side_threads import SideThreads

T = TypeVar("T")

_VALUE: Final = re.compile(r":(\w+)")
#: Before the second attempt, then twice as long each time: five seconds in all.
_PAUSE_S: Final = 0.01


def executing(connection: BaseDatabaseWrapper) -> Execute:
    """Statements in the current transaction of a connection."""

    def execute(statement: str, values: Values | Sequence[Values] = (), /) -> Result:
        # Django has the values of all databases in this form.
        converted = _VALUE.sub(r"%(\1)s", statement)
        each = list(values) if isinstance(values, Sequence) and values else [values]
        changed = 0
        with connection.cursor() as cursor:
            for one in each:
                cursor.execute(converted, one or None)  # type: ignore[arg-type]
                changed += max(cursor.rowcount, 0)
            rows = cursor.fetchall() if cursor.description is not None else []
        return Result(rows, changed)

    return execute


class DjangoDatabase:
    """The database of an alias in ``settings.DATABASES``. The relay uses it in a thread of its own."""

    def __init__(self, alias: str) -> None:
        connection = connections[alias]
        self.alias = alias
        self.name = alias
        self.table = OutboxTable(
            TABLE,
            Dialect.of(connection.vendor),
            skip_locked=bool(connection.features.has_select_for_update_skip_locked),
        )
        self._thread = SideThreads(f"ternmq-outbox-{alias}")

    async def run(self, work: Callable[[Execute], T], *, is_single: bool = False) -> T:
        """Do ``work`` in one transaction, and commit it; a single statement needs none. Raises ``OutboxFailed``."""
        for left in reversed(range(CONFLICTS_MAX)):
            done = await self._thread.run(self._run, work, is_single, left > 0)
            if done is not None:
                return done[0]
            if self.table.dialect is Dialect.SQLITE:
                # It does not wait where this transaction has read, and another one has written.
                await asyncio.sleep(_PAUSE_S * 2 ** (CONFLICTS_MAX - 1 - left))
        raise AssertionError("the last attempt returns or raises")

    def _run(self, work: Callable[[Execute], T], is_single: bool, may_repeat: bool) -> tuple[T] | None:
        """What ``work`` returns; None if another transaction went first, and this one may be done again."""
        connection = connections[self.alias]
        try:
            connection.close_if_unusable_or_obsolete()
            # Django commits each statement by itself, unless the settings of the database say otherwise.
            if is_single and connection.get_autocommit():
                return (work(executing(connection)),)
            with transaction.atomic(using=self.alias):
                return (work(executing(connection)),)
        except Error as error:
            if may_repeat and is_conflict(error.__cause__):
                return None
            self.check_exists_if_possible()
            connection.close()
            raise self.failed(error) from error

    def check_exists_if_possible(self) -> None:
        """As ``check_exists``, but nothing if the database cannot tell."""
        with contextlib.suppress(Error):
            self.check_exists()

    def check_exists(self) -> None:
        """Raise ``OutboxMissing`` if the table does not exist, by the connection of this thread."""
        if not self.table.exists(executing(connections[self.alias])):
            raise OutboxMissing(
                f"the database {self.alias!r} has no table {self.table.name!r}, which the outbox needs; run "
                f"`manage.py migrate ternmq_outbox --database {self.alias}`",
                database=self.name,
            )

    def failed(self, error: Exception) -> OutboxFailed:
        """An error of Django as a sentence."""
        detail = " ".join(str(error).split())[:300]
        return OutboxFailed(f"the outbox cannot use the database {self.alias!r}: {detail}", database=self.name)

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[Callable[[], Awaitable[None]] | None]:
        """Django tells of no notifications."""
        yield None

    async def close(self) -> None:
        """Close the relay's connection; a database that does not answer is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._thread.run(lambda: connections[self.alias].close())
        self._thread.end()
