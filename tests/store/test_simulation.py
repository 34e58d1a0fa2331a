"""The store on a disk that loses power, fails, fills up and rots: thousands of lives from seeds (C5–C8).

``script/soak store`` runs them for hours, and replays one (``--seed N --count 1``). What a seed finds becomes a test of
its own in test_power_cuts.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.simulation import Simulation

#: Seeds of one test: enough to find what is common, few enough to wait for.
PORTION = 30


@pytest.mark.parametrize("first", range(0, 300, PORTION))
def test_nothing_acknowledged_is_lost_and_nothing_wrong_is_served(first: int) -> None:
    """C5, C6, C8: and each seed lives the same life twice."""
    for seed in range(first, first + PORTION):
        one, two = Simulation(seed), Simulation(seed)
        one.run()
        two.run()
        assert one.trace == two.trace


@pytest.mark.parametrize("first", range(0, 120, PORTION))
def test_a_flipped_bit_is_noticed_or_does_no_harm(first: int) -> None:
    """C8: a refusal that names the file, an error, a shorter log; never a message that was not sent."""
    for seed in range(first, first + PORTION):
        Simulation(seed, actions=30).rot()


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    """C8: no order comes from a set of names, whose hashes differ from process to process."""
    command = [sys.executable, "-m", "tests.store.soak", "--seed", "1", "--count", "5", "--trace"]
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
    assert len(traces[0]) > 1000
