"""A name means one thing (docs/glossary.md): no class or type of ``ternmq`` has the name of another one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent.parent / "src" / "ternmq"


def types_in(text: str) -> Iterator[tuple[str, int]]:
    """Name and line of each class, and of each alias that a module gives to a type."""
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
    for node in module.body:
        match node:
            case ast.AnnAssign(target=ast.Name(name), annotation=ast.Name("TypeAlias")):
                yield name, node.lineno
            case ast.Assign(targets=[ast.Name(name)], value=value) if _is_alias(name, value):
                yield name, node.lineno


def _is_alias(name: str, value: ast.expr) -> bool:
    """``Work = Callable[[], None]``, ``Key = NewType(…)``. An ``Annotated`` of the CLI describes a parameter."""
    if not name.lstrip("_")[:1].isupper() or name.isupper():
        return False
    match value:
        case ast.Subscript(value=ast.Name(outer)):
            return outer != "Annotated"
        case ast.Call(func=ast.Name("NewType")) | ast.BinOp(op=ast.BitOr()):
            return True
        case _:
            return False


def named_twice(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The places of each name that stands for more than one thing, in modules by path."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in modules:
        for name, line in types_in(text):
            places[name].append(f"{path}:{line}")
    return {name: found for name, found in places.items() if len(found) > 1}


def test_a_name_means_one_thing() -> None:
    modules = [(path.relative_to(SOURCE).as_posix(), path.read_text()) for path in sorted(SOURCE.rglob("*.py"))]

    assert len(modules) > 300
    assert named_twice(modules) == {}


def test_a_name_with_two_meanings_is_found_in_all_its_forms() -> None:
    one = "class Copy: ...\nWork = Callable[[], None]\nKey: TypeAlias = tuple[str, int]\nclass Own: ...\nTEXTS = ('a',)"
    other = "class Outer:\n    class Copy: ...\n\nWork = Start | End\nKey = NewType('Key', str)\nTEXTS = ('b',)"

    assert named_twice([("one.py", one), ("other.py", other)]) == {
        "Copy": ["one.py:1", "other.py:2"],
        "Work": ["one.py:2", "other.py:4"],
        "Key": ["one.py:3", "other.py:5"],
    }
    assert named_twice([("one.py", "Group = Annotated[str, 1]"), ("other.py", "class Group: ...")]) == {}
