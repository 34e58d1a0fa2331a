"""Masters and slaves that break, from seeds (O1, O2). ``script/soak replication`` runs them for hours."""

from __future__ import annotations

import pytest

from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

#: Seeds of one test. The first lives twice: that nothing comes from outside is the simulation's business.
PORTION = 10


@pytest.mark.parametrize("first", portions(60, PORTION, few=2 * PORTION))
def test_what_was_acknowledged_as_replicated_is_on_the_slaves_and_logs_are_equal(first: int) -> None:
    """O1, O2: kills, power cuts, pauses, partitions one way or both, resets, slow disks, torn transfers."""
    live_twice("replication", first)
    for seed in range(first + 1, first + PORTION):
        live("replication", seed)
