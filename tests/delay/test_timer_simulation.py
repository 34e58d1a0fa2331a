"""Seeds of ``timer_simulation`` (I2, I3)."""

from __future__ import annotations

import pytest

from tests.delay.timer_simulation import TimerSimulation
from tests.delay.world import in_virtual_time


@pytest.mark.parametrize("first", range(0, 120, 5))
def test_each_message_comes_once_and_not_before_its_time(first: int) -> None:
    """I2, I3: across kills, power cuts between any two steps of the disk, full disks, jumps of the clock, retention."""
    for seed in range(first, first + 5):

        async def program(seed: int = seed) -> None:
            try:
                await TimerSimulation(seed).run()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

        in_virtual_time(program())
