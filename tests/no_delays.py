"""Delay levels for tests that are not about time."""

from __future__ import annotations

from typing import Final

#: ``messageDelayLevel``: all levels are due at once. A message still goes the whole way, through the schedule topic.
NO_DELAYS: Final = " ".join(["0s"] * 18)
