"""Groups of cores in a network that breaks, from seeds (P1, P3). ``script/soak raft-core`` runs thousands."""

from __future__ import annotations

import pytest

from tests.raft.seeds import live, live_twice
from tests.raft.storm_simulation import StormSimulation

#: Seeds of one test. The first lives twice: the same seed must give the same life.
PORTION = 25


@pytest.mark.parametrize("first", range(0, 300, PORTION))
def test_a_group_keeps_raft_s_promises_whatever_breaks(first: int) -> None:
    """P1, P3: one leader a term, log matching, leader completeness, committed entries never change, acknowledged ones
    are kept by a majority where they count, a lease has no rival, and soon after all is well the group works again."""
    live_twice(first)
    for seed in range(first + 1, first + PORTION):
        live(seed)


@pytest.mark.parametrize("first", range(0, 100, PORTION))
def test_a_group_keeps_raft_s_promises_when_leaders_die_one_after_the_other(first: int) -> None:
    """P1: a hundred elections in each life."""
    live_twice(first, StormSimulation)
    for seed in range(first + 1, first + PORTION):
        live(seed, kind=StormSimulation)
