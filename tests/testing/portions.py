"""Seeds in portions: the first ones run with each check, the others with ``script/test`` only."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet


def portions(end: int, portion: int, *, few: int) -> list[ParameterSet]:
    """The first seeds of all portions up to ``end``; those from ``few`` on run at night (``script/soak tests``)."""
    night = pytest.mark.nightly
    return [pytest.param(first, marks=night if first >= few else ()) for first in range(0, end, portion)]
