"""Groups that pop, in a cluster that breaks: 160 lives from seeds (F9).

``script/check`` runs the first 60 of them, ``script/test`` all. ``script/soak pops`` and ``pop-consumers`` run them for
hours, and replay one (``--seed N --seeds 1 --trace``).
"""

from __future__ import annotations

import pytest

from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

#: Seeds of one test. The first lives twice: that nothing comes from outside is the simulation's business, not pop's.
PORTION = 10


@pytest.mark.parametrize("first", portions(60, PORTION, few=20))
def test_popped_messages_are_hidden_and_come_back_until_they_are_acknowledged(first: int) -> None:
    """F9: poppers forget, are late, die; brokers are killed between pop and ack; some groups pop in order."""
    live_twice("pops", first)
    for seed in range(first + 1, first + PORTION):
        live("pops", seed)


@pytest.mark.parametrize("first", portions(40, PORTION, few=10))
def test_pop_consumers_lose_nothing_and_respect_what_is_hidden(first: int) -> None:
    """F9, G1, H1: with members that come, leave and die, and listeners that are slow, fail and hang."""
    live_twice("pop-consumers", first)
    for seed in range(first + 1, first + PORTION):
        live("pop-consumers", seed)
