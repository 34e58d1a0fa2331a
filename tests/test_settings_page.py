"""The page of all settings is generated, and up to date (T2)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GENERATOR = Path(__file__).parent.parent / "script" / "generate_settings.py"


def test_the_page_of_all_settings_is_up_to_date() -> None:
    """T2: a failure shows the command to run."""
    checked = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, check=False)

    assert (0, "") == (checked.returncode, checked.stdout), checked.stdout + checked.stderr
