"""Transactions in a cluster that breaks: 60 lives from seeds (J1, J2).

``script/soak transactions`` runs them for hours, and replays one (``--seed N --seeds 1 --trace``).
"""

from __future__ import annotations

import pytest

from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

PORTION = 15


@pytest.mark.parametrize("first", portions(60, PORTION, few=PORTION))
def test_messages_are_delivered_if_and_only_if_the_local_work_was_committed(first: int) -> None:
    """J1, J2: producers and brokers die at every step, another member answers; checkers hang, raise, lie, are gone."""
    live_twice("transactions", first)
    for seed in range(first + 1, first + PORTION):
        live("transactions", seed)
