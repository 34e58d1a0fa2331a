"""Groups that share messages, in a cluster that breaks: 80 lives from seeds (R1–R3).

``script/check`` runs the first 20 of them, ``script/test`` all. ``script/soak shares`` runs them for hours, and replays
one (``--seed N --seeds 1 --trace``).
"""

from __future__ import annotations

import pytest

from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

PORTION = 10


@pytest.mark.parametrize("first", portions(40, PORTION, few=10))
def test_share_consumers_lose_nothing_whatever_breaks(first: int) -> None:
    """R1, R2, R3, H1: with members that come, leave, die and start again, and listeners that are slow, fail and hang;
    brokers are killed and lose power."""
    live_twice("shares", first)
    for seed in range(first + 1, first + PORTION):
        live("shares", seed)
