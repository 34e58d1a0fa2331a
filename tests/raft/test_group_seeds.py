"""Whole brokers in Raft groups that break, from seeds (P1–P4). ``script/soak raft`` runs them for hours."""

from __future__ import annotations

import pytest

from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

#: Seeds of one test. The first lives twice: the same seed must give the same life.
PORTION = 4


@pytest.mark.parametrize("first", portions(40, PORTION, few=3 * PORTION))
def test_histories_are_linearizable_and_all_members_are_equal(first: int) -> None:
    """P1–P4: one master a term, what was read or acknowledged stays as it is, no reader is told what is over, bytes are
    equal, folds are fresh."""
    live_twice("raft", first)
    for seed in range(first + 1, first + PORTION):
        live("raft", seed)
