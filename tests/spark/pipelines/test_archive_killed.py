"""Archives whose driver is killed (U4); ``script/soak lake`` has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kills import run_killed


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_lake_has_each_message_once_whenever_its_driver_is_killed(tmp_path: Path) -> None:
    """U4: in the middle of a batch, and at its end."""
    assert 2 == len(run_killed(seed=4, rounds=2, directory=tmp_path))
