"""Masters and slaves that are killed under load, as real processes (O1, O2, V3). ``script/soak replication-kills`` has
all pairs and more rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.replication_kills import ACKED, rounds

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("pair", "kills"),
    [
        ("ternmq/ternmq", ["master", "slave", "both"]),
        ("ternmq/5.2.0", ["master"]),
        pytest.param("4.9.4/ternmq", ["master"], marks=pytest.mark.nightly),
    ],
)
async def test_what_was_acknowledged_is_on_the_survivor(pair: str, kills: list[str], tmp_path: Path) -> None:
    """O2: SEND_OK of a SYNC_MASTER means that both have the message, whichever is killed."""
    assert await rounds(pair, tmp_path, kills) > ACKED * len(kills)
