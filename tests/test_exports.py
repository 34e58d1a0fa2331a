"""The front door: every name is there, and costs nothing until it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ternmq


@pytest.mark.parametrize("name", ternmq.__all__)
def test_every_exported_name_exists_and_is_documented(name: str) -> None:
    assert getattr(ternmq, name).__doc__


def test_people_and_type_checkers_are_told_the_same() -> None:
    """The table of homes and the imports for type checkers say the same twice; here they are compared."""
    tree = ast.parse(Path(ternmq.__file__).read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("ternmq")
        for alias in node.names
    }
    assert {**ternmq._HOME_OF, "errors": "ternmq"} == told
    assert sorted(told) == sorted(ternmq.__all__) == sorted(dir(ternmq))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Produzer'"):
        ternmq.Produzer  # type: ignore[attr-defined]  # noqa: B018 - the mistake under test


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [("import ternmq", "ternmq.client"), ("from ternmq import Producer", "ternmq.broker")],
)
def test_nothing_is_loaded_that_is_not_used(statement: str, unwanted: str) -> None:
    program = f"{statement}; import sys; print([name for name in sys.modules if name.startswith({unwanted!r})])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()
