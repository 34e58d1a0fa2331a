"""Outboxes in a cluster that breaks: lives from seeds (J3). ``script/soak outbox-seeds`` runs them for hours."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from ternmq.outbox.entry import NewRow, Row
from ternmq.outbox.table import Execute, OutboxTable, TakenRows
from ternmq.testing.checkers import Broken
from tests.outbox.simulation import OutboxSimulation
from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

PORTION = 10


@pytest.mark.parametrize("first", portions(60, PORTION, few=PORTION))
def test_messages_are_sent_if_and_only_if_they_were_committed_and_in_order(first: int) -> None:
    """J3: applications, relays, broker and database fail at every step; clocks jump, hints are wrong."""
    live_twice("outbox-seeds", first)
    for seed in range(first + 1, first + PORTION):
        live("outbox-seeds", seed)


def test_a_relay_that_trusts_hints_is_caught() -> None:
    """J3: what was rolled back would be sent."""

    def trusting(self: OutboxTable, execute: Execute, entries: list[NewRow], **_: object) -> list[Row]:
        return [Row.of(number, entry) for number, entry in enumerate(entries)]

    with patch.object(OutboxTable, "held", trusting), pytest.raises(Broken, match="rolled back, but sent"):
        for seed in range(5):
            OutboxSimulation(seed).run()


def test_a_relay_that_deletes_first_is_caught() -> None:
    """J3: what was committed would be lost."""
    take = OutboxTable.take

    def hasty(self: OutboxTable, execute: Execute, *, owner: str, **rest: int) -> TakenRows:
        taken = take(self, execute, owner=owner, **rest)
        if taken.rows:
            self.delete(execute, [row.id for row in taken.rows], owner=owner)
        return taken

    with patch.object(OutboxTable, "take", hasty), pytest.raises(Broken, match="committed, but not sent"):
        for seed in range(20):
            OutboxSimulation(seed).run()


def test_a_relay_that_ignores_the_first_of_a_key_is_caught() -> None:
    """J3: a message would overtake one that failed or is being sent."""
    chosen = OutboxTable._chosen

    def careless(self: OutboxTable, execute: Execute, **rest: int) -> object:
        def changed(statement: str, values: object = (), /) -> object:
            return execute(statement.replace("NOT EXISTS", "1 = 1 OR EXISTS"), values)  # type: ignore[arg-type]

        return chosen(self, changed, **rest)  # type: ignore[arg-type]

    with patch.object(OutboxTable, "_chosen", careless), pytest.raises(Broken, match="out of order"):
        for seed in range(20):
            OutboxSimulation(seed).run()
