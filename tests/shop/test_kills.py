"""The shop as a user runs it, with all its processes killed at random (J1, J3, S1, O1)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.shop.soak import RUN


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_books_balance_after_kills_of_everything() -> None:
    """``script/soak shop`` does this for as long as one likes."""
    done = subprocess.run(
        [sys.executable, str(RUN), "--seconds", "10", "--seed", "20"],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "the books balance" == done.stdout.splitlines()[-1]
    assert " shipped" in done.stdout
