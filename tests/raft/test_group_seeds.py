"""Whole brokers in Raft groups that break, from seeds (P1–P4). ``script/soak raft`` runs them for hours."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from ternmq.kernels import HAS_NATIVE
from ternmq.store.log.run import PlacedRun, RunWriter
from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

#: Seeds of one test. The first lives twice: the same seed must give the same life.
PORTION = 4


@pytest.mark.parametrize("first", range(0, 40, PORTION))
def test_histories_are_linearizable_and_all_members_are_equal(first: int) -> None:
    """P1–P4: one master a term, what was read or acknowledged stays as it is, no reader is told what is over, bytes are
    equal, folds are fresh."""
    live_twice("raft", first)
    for seed in range(first + 1, first + PORTION):
        live("raft", seed)


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")
@pytest.mark.parametrize("first", portions(8, 1, few=2))
def test_groups_that_store_sends_in_runs_keep_the_same_promises(first: int) -> None:
    """P1–P4, E1: runs are confirmed, taken back and answered late like single sends; and there are some."""
    taken = 0
    put = RunWriter.put

    def counted(self: RunWriter, sends: Any, number: int, *args: Any, **options: Any) -> PlacedRun | None:
        nonlocal taken
        placed = put(self, sends, number, *args, **options)
        taken += placed.next - number if placed is not None else 0
        return placed

    with mock.patch.object(RunWriter, "put", counted):
        live("raft-runs", first)
    assert taken > 50
