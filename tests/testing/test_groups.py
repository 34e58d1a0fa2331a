"""Consumer groups in a cluster that breaks: lives from 120 seeds (F1, F2, F7–F9, G1, G2, H1, I1, I3, M2).

One seed in ten lives twice, and both lives must be the same. ``script/check`` runs the first seeds of each simulation,
``script/test`` all of them. ``script/soak groups`` and its like run them for hours, and replay one
(``--seed N --seeds 1 --trace``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.portions import portions
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

#: Seeds of one test: few enough to wait for.
PORTION = 10


def live_all(name: str, first: int) -> None:
    live_twice(name, first)
    for seed in range(first + 1, first + PORTION):
        live(name, seed)


@pytest.mark.parametrize("first", portions(40, PORTION, few=10))
def test_a_group_loses_nothing_and_divides_its_queues(first: int) -> None:
    """F1, F7, F8, G1, G2, H1, M2: and when all is well, nothing comes late, early, twice or in too great numbers."""
    live_all("groups", first)


@pytest.mark.parametrize("first", portions(40, PORTION, few=10))
def test_an_orderly_group_begins_nothing_before_its_predecessor_is_done(first: int) -> None:
    """F2: with members that come, leave, die, and are paused or cut off for longer than their locks live."""
    live_all("orderly", first)


@pytest.mark.parametrize("first", portions(20, PORTION, few=10))
def test_delayed_messages_are_never_early_and_survive_restarts(first: int) -> None:
    """I1, I3: of the first five levels, and of retries, also when the power fails at the worst moment."""
    live_all("delays", first)


@pytest.mark.parametrize(
    "name",
    [
        "groups",
        "pops",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("orderly", "delays", "pop-consumers")),
    ],
)
def test_a_seed_gives_the_same_trace_in_another_process(name: str) -> None:
    """G1: no order comes from a set of names, whose hashes differ from process to process."""
    command = [sys.executable, "-m", "tests.testing.soak", name, "--seed", "1", "--seeds", "1", "--trace"]
    traces = [
        subprocess.run(
            command,
            cwd=Path(__file__).parent.parent.parent,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 5_000
