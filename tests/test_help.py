"""What ``help()`` of a public class shows: every parameter with its meaning, in plain words (issue 14)."""

from __future__ import annotations

import enum
import inspect
import pydoc
import re
from typing import Final

import pytest

import ternmq
from tests.test_sync_classes import methods, pairs

EXPORTED: Final = [getattr(ternmq, name) for name in ternmq.__all__ if inspect.isclass(getattr(ternmq, name))]
#: Not of kinds, nor of what a producer makes.
MADE_BY_APPLICATIONS: Final = [cls for cls in EXPORTED if not issubclass(cls, enum.Enum | ternmq.Transaction)]
#: The parts of the admin are not exported, but ``admin.topics.create`` is called by applications all the same.
PUBLIC: Final = list(dict.fromkeys([*EXPORTED, *(cls for pair in pairs() for cls in pair)]))

#: Numbers of the specification, such as C6 or F10; applications do not know it.
SPEC_NUMBER: Final = re.compile(r"(?<![\w-])[A-T]\d{1,2}(?![\w.])")


def parameters(function: object) -> list[str]:
    assert callable(function)
    return [name for name in inspect.signature(function).parameters if name not in ("self", "args", "kwargs")]


@pytest.mark.parametrize("cls", MADE_BY_APPLICATIONS)
def test_every_parameter_of_a_constructor_is_explained(cls: type) -> None:
    entries = re.findall(r"^    (\w+): \S", inspect.getdoc(cls) or "", re.MULTILINE)
    assert parameters(cls) == [name for name in entries if name in parameters(cls)]


@pytest.mark.parametrize("cls", PUBLIC)
def test_every_parameter_of_a_method_is_named_in_its_documentation(cls: type) -> None:
    missing = [
        f"{name}: {parameter}"
        for name, method in methods(cls).items()
        if name != "__init__"
        for parameter in parameters(method)
        if not re.search(rf"(?<!\w){parameter}(?!\w)", inspect.getdoc(method) or "")
    ]
    assert [] == missing


@pytest.mark.parametrize("cls", PUBLIC)
def test_help_has_no_numbers_of_the_specification(cls: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(cls))
    assert [] == [line for line in shown.splitlines() if SPEC_NUMBER.search(line)]
