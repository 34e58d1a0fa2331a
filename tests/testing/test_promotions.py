"""Roles that are swapped while everything breaks (O1, O2). ``script/soak promotions`` runs more seeds, for hours."""

from __future__ import annotations

import pytest

from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

PORTION = 6


@pytest.mark.parametrize("first", portions(18, PORTION, few=PORTION))
def test_a_promotion_loses_nothing_that_was_acknowledged_and_logs_are_equal(first: int) -> None:
    """O1, O2: by hand-over or by force, with kills, power cuts and partitions between all steps."""
    live_twice("promotions", first)
    for seed in range(first + 1, first + PORTION):
        live("promotions", seed)
