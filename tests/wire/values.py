"""Hypothesis: any value of a header or body class, by the types of its fields."""

from __future__ import annotations

import enum
import types
import typing
from typing import Annotated, Any

import msgspec
from hypothesis import strategies as st

#: Text that UTF-8 can hold.
texts = st.text(st.characters(codec="utf-8"), max_size=20)


def values(kind: Any, *, text: st.SearchStrategy[str] = texts) -> st.SearchStrategy[Any]:
    """A strategy for all values of a type that headers and bodies use."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        meta = arguments[1]
        return st.integers(meta.ge, meta.le)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(argument, text=text) for argument in arguments])
    if origin is list:
        return st.lists(values(arguments[0], text=text), max_size=3)
    if origin is dict:
        key, value = (values(argument, text=text) for argument in arguments)
        return st.dictionaries(key, value, max_size=3)
    if isinstance(kind, typing.NewType):
        return values(kind.__supertype__, text=text)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.name: values(field.type, text=text) for field in msgspec.structs.fields(kind)}
        return st.fixed_dictionaries(fields).map(lambda chosen: kind(**chosen))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: text,
        int: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        type(None): st.none(),
    }
    return simple[kind]
