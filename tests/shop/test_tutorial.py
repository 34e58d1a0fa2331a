"""The tutorial shows the code of the shop as it is (T5)."""

from __future__ import annotations

import re

import pytest

from tests.shop.soak import ROOT

GUIDE = (ROOT / "docs" / "guides" / "shop.md").read_text()
EXCERPTS = re.findall(r"^```py (\w+\.py)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_tutorial_has_excerpts() -> None:
    assert len(EXCERPTS) >= 6


@pytest.mark.parametrize(("module", "excerpt"), EXCERPTS)
def test_an_excerpt_is_in_its_module(module: str, excerpt: str) -> None:
    """T5."""
    assert excerpt in (ROOT / "examples" / "shop" / module).read_text()
