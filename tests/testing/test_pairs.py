"""Consumers on a master with slaves, which goes away and comes back: lives from seeds (O3, F1, F7).

``script/soak pairs`` runs them for hours, and replays one (``--seed N --seeds 1 --trace``).
"""

from __future__ import annotations

import pytest

from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

PORTION = 4


@pytest.mark.parametrize("first", range(0, 12, PORTION))
def test_a_group_loses_nothing_and_gets_nothing_again_that_it_has_committed(first: int) -> None:
    """O3: the master dies and returns, slaves die, members come and go; progress on a slave returns to the master."""
    live_twice("pairs", first)
    for seed in range(first + 1, first + PORTION):
        live("pairs", seed)
