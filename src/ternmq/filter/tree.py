"""The tree of an SQL filter: output of the parser (``sql``), input of the compiler (``evaluate``) (K2).

``x <> y``, ``IS NOT NULL`` and ``BETWEEN`` are expressed by other nodes, so there are few kinds of nodes. A chain of
AND or OR is one node, so trees are rarely deep.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

#: The largest whole numbers of Java's two types.
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


class Operator(enum.Enum):
    """How two values are compared."""

    EQUAL = "="
    GREATER = ">"
    GREATER_EQUAL = ">="
    LESS = "<"
    LESS_EQUAL = "<="


@dataclass(slots=True, frozen=True)
class Constant:
    """``value`` determines the type. A whole number is Java's int if it fits into 32 bits, else a long."""

    value: str | bool | int | float | None


@dataclass(slots=True, frozen=True)
class PropertyValue:
    name: str


@dataclass(slots=True, frozen=True)
class Negate:
    operand: FilterNode


@dataclass(slots=True, frozen=True)
class AsCondition:
    """A property where a condition is required: a text is not true."""

    operand: PropertyValue


@dataclass(slots=True, frozen=True)
class Not:
    operand: FilterNode


@dataclass(slots=True, frozen=True)
class Logic:
    """AND (``is_and``) or OR over two or more conditions."""

    is_and: bool
    operands: tuple[FilterNode, ...]


@dataclass(slots=True, frozen=True)
class Compare:
    order: Operator
    left: FilterNode
    right: FilterNode


@dataclass(slots=True, frozen=True)
class IsNull:
    operand: FilterNode


@dataclass(slots=True, frozen=True)
class In:
    operand: PropertyValue
    texts: tuple[str, ...]
    negated: bool


@dataclass(slots=True, frozen=True)
class TextMatch:
    """CONTAINS, STARTSWITH or ENDSWITH, given by ``word``."""

    word: str
    operand: FilterNode
    text: str
    negated: bool


FilterNode: TypeAlias = (
    Constant | PropertyValue | Negate | AsCondition | Not | Logic | Compare | IsNull | In | TextMatch
)


def children(node: FilterNode) -> tuple[FilterNode, ...]:
    """The nodes directly below one."""
    match node:
        case Constant() | PropertyValue():
            return ()
        case Logic(operands=operands):
            return operands
        case Compare(left=left, right=right):
            return left, right
        case _:
            return (node.operand,)


def nodes(root: FilterNode) -> Iterator[FilterNode]:
    """A node and all below it."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))


#: CONTAINS counts as this many terms: it searches a whole value, which may have 32 KiB.
CONTAINS_TERMS: Final = 16


def terms(root: FilterNode) -> int:
    """Properties and constants of a tree; each is read at most once per message."""
    count = 0
    for node in nodes(root):
        match node:
            case TextMatch(word="CONTAINS"):
                count += CONTAINS_TERMS
            case Constant() | PropertyValue() | TextMatch():
                count += 1
            case In(texts=texts):
                count += len(texts)
    return count


def is_condition(node: FilterNode) -> bool:
    """Whether a node is true, false or null (RocketMQ's ``BooleanExpression``)."""
    match node:
        case Constant(value=value):
            return value is None or isinstance(value, bool)
        case PropertyValue() | Negate():
            return False
        case _:
            return True
