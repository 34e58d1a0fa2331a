"""Evaluation of SQL filters: a tree is compiled to one Python closure, which is called for each message (K2).

A filter reads a property when it needs it, and returns True, False or None (SQL's null); a message passes only on True.
Filters do not depend on the wire, so the caller that compiles one provides a function that finds properties
(``PropertySource``). Property values are always texts. So the types of all other operands are known in advance, and
each comparison is compiled for its two types:

========================= ====================================================================================
text with text            ``=`` as they are; ``<`` and the like as two doubles
text with int, long       the text is parsed as that type: ``5.5`` or ``abc`` with ``a > 5`` is an error, not false
text with double          the text is parsed as a double, in all forms that Java accepts
int, long, double         widened to the larger of the two
text with TRUE, FALSE     the text is "true" in any case, or false; the reverse, ``TRUE = a``, is an error
others                    not equal
========================= ====================================================================================

Null, where RocketMQ behaves unexpectedly: in ``x = y`` a missing *left* side gives null, a missing right side false,
and if both are missing the result is true. ``CONTAINS`` and the like are false for missing values, in their negated
forms as well. AND and OR stop at the first operand that decides, from the left; an error counts only if it is reached.

An error is ``EvaluationFailed``; filtering treats it as "does not match" (``SqlFilter.matches``).
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ternmq.errors import EvaluationFailed
from ternmq.filter.numbers import double_key, double_of, int_of, long_of
from ternmq.filter.sql import DEFAULT_LIMITS, ExpressionLimits, parse
from ternmq.filter.tree import (
    INT_MAX,
    AsCondition,
    Compare,
    Constant,
    FilterNode,
    In,
    IsNull,
    Logic,
    Negate,
    Not,
    Operator,
    PropertyValue,
    TextMatch,
    nodes,
    terms,
)

#: A filter takes any value that its source can read: the property text of a message, or a dict of properties.
FilterInput: TypeAlias = Any
Get: TypeAlias = Callable[[FilterInput], str | None]
#: Returns the function that finds the property of a name in a message.
PropertySource: TypeAlias = Callable[[str], Get]
Condition: TypeAlias = Callable[[FilterInput], bool | None]

#: Filters with more terms than this parse the properties of a message once, instead of searching the text for each of
#: them: 1,000 searches in a text of 32 KB take 10 ms, parsing all of its properties 2 ms at most.
TABLE_FROM_TERMS: Final = 16
#: Values that the comparisons of a filter cache together, and their maximum length: about 60 KB. A comparison whose
#: share is too small to help caches none.
VALUES_MAX: Final = 500
VALUES_MIN: Final = 16
VALUE_LENGTH_MAX: Final = 32


def by_name(name: str) -> Get:
    """The source for messages that are dicts of properties."""
    return lambda properties: properties.get(name)


@dataclass(slots=True, frozen=True)
class SqlFilter:
    """A compiled expression. ``evaluate`` raises only ``EvaluationFailed``."""

    expression: str
    evaluate: Condition
    #: See ``sql.ExpressionLimits``.
    terms: int

    @classmethod
    def compile(
        cls,
        expression: str,
        source: PropertySource = by_name,
        *,
        read_all: Callable[[FilterInput], Mapping[str, str]] | None = None,
        limits: ExpressionLimits = DEFAULT_LIMITS,
    ) -> SqlFilter:
        """``read_all`` finds all properties of a message at once, which is faster for expressions with many terms.

        Raises ``InvalidExpression``.
        """
        root = parse(expression, limits)
        count = terms(root)
        if read_all is None or count <= TABLE_FROM_TERMS:
            return cls(expression, _Compiler(source, root).condition(root), count)
        read, of_table = read_all, _Compiler(by_name, root).condition(root)
        return cls(expression, lambda message: of_table(read(message)), count)

    def matches(self, message: FilterInput) -> bool:
        """Whether a message passes."""
        try:
            return self.evaluate(message) is True
        except EvaluationFailed:
            return False


class _Compiler:
    """Compiles the nodes below ``root`` to closures."""

    def __init__(self, source: PropertySource, root: FilterNode) -> None:
        self._source = source
        comparisons = sum(isinstance(node, Compare) for node in nodes(root))
        self._values_max = VALUES_MAX // max(comparisons, 1)

    # --- Conditions -------------------------------------------------------------------------------------------

    def condition(self, node: FilterNode) -> Condition:
        match node:
            case Logic(is_and=is_and, operands=operands):
                return _chain([self.condition(operand) for operand in operands], decisive=not is_and)
            case Compare(order=Operator.EQUAL, left=left, right=right):
                return self._equal(left, right)
            case Compare(order=order, left=left, right=right):
                return self._ordered(_COMPARE[order], left, right)
            case Not(operand=operand):
                return _not(self.condition(operand))
            case IsNull(operand=operand):
                value = self._value(operand)
                return lambda message: value(message) is None
            case In(operand=PropertyValue(name=name), texts=texts, negated=negated):
                return _in(self._source(name), frozenset(texts), negated=negated)
            case TextMatch(word=word, operand=operand, text=text, negated=negated):
                return _part(self._value(operand), _PARTS[word], text, negated=negated)
            case AsCondition(operand=PropertyValue(name=name)):
                get = self._source(name)
                return lambda message: None if get(message) is None else False
            case Constant(value=bool() | None as flag):
                return lambda _message: flag
            case _:
                raise AssertionError(f"{node} is not a condition")

    def _equal(self, left: FilterNode, right: FilterNode) -> Condition:
        same = _same(_type(left), _type(right))
        if isinstance(left, PropertyValue) and isinstance(right, Constant):
            if isinstance(right.value, str):
                return _equals_text(self._source(left.name), right.value)
            return _compares(self._source(left.name), same, _as_is, right.value, self._values_max)
        first, second = self._value(left), self._value(right)

        def equal(message: FilterInput) -> bool | None:
            one, other = first(message), second(message)
            if one is None:
                return True if other is None else None
            return False if other is None else same(one, other)

        return equal

    def _ordered(self, compare: Callable[[Any, Any], bool], left: FilterNode, right: FilterNode) -> Condition:
        first_as, second_as = _alike(_type(left), _type(right))
        first, second = self._value(left), self._value(right)
        if isinstance(left, PropertyValue) and _type(right) in _NUMBERS:
            return _compares(self._source(left.name), compare, first_as, second(None), self._values_max)

        def ordered(message: FilterInput) -> bool | None:
            one = first(message)
            if one is None:
                return None
            other = second(message)
            return None if other is None else compare(first_as(one), second_as(other))

        return ordered

    # --- Values -----------------------------------------------------------------------------------------------

    def _value(self, node: FilterNode) -> Callable[[FilterInput], Any]:
        match node:
            case PropertyValue(name=name):
                return self._source(name)
            case Constant(value=value):
                return lambda _message: value
            case Negate(operand=operand):
                positive = self._value(operand)
                if _type(operand) in _NUMBERS:
                    number = -positive(None)
                    return lambda _message: number
                return _null_of(positive)
            case _:
                return self.condition(node)


def _chain(conditions: list[Condition], *, decisive: bool) -> Condition:
    """AND, which ends at the first False; or OR, which ends at the first True."""
    otherwise = not decisive

    def chain(message: FilterInput) -> bool | None:
        result: bool | None = otherwise
        for condition in conditions:
            said = condition(message)
            if said is decisive:
                return decisive
            if said is None:
                result = None
        return result

    return chain


def _not(condition: Condition) -> Condition:
    def negated(message: FilterInput) -> bool | None:
        said = condition(message)
        return None if said is None else not said

    return negated


def _in(get: Get, texts: frozenset[str], *, negated: bool) -> Condition:
    def is_in(message: FilterInput) -> bool | None:
        text = get(message)
        return None if text is None else (text in texts) is not negated

    return is_in


def _part(
    value: Callable[[FilterInput], Any], found: Callable[[str, str], bool], text: str, *, negated: bool
) -> Condition:
    def has_part(message: FilterInput) -> bool | None:
        # For an empty text RocketMQ does not read the property, so no error in it counts.
        said = value(message) if text else None
        return isinstance(said, str) and found(said, text) is not negated

    return has_part


_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


# --- Comparisons ----------------------------------------------------------------------------------------------


def _equals_text(get: Get, text: str) -> Condition:
    def equals(message: FilterInput) -> bool | None:
        value = get(message)
        return None if value is None else value == text

    return equals


def _compares(
    get: Get, compare: Callable[[Any, Any], bool], read: Callable[[str], Any], constant: Any, values_max: int
) -> Condition:
    """The usual case, a property and a constant, with as few calls as possible.

    Most filtered properties have few values, and caching a parsed number is faster than parsing it again: it saves
    23 % of a whole pull. A property with many values is parsed each time.
    """
    known: dict[str, bool] | None = {} if values_max >= VALUES_MIN else None

    def compares(message: FilterInput) -> bool | None:
        nonlocal known
        text = get(message)
        if text is None:
            return None
        if known is None:
            return compare(read(text), constant)
        said = known.get(text)
        if said is None:
            said = known[text] = compare(read(text), constant)
            if len(known) > values_max or len(text) > VALUE_LENGTH_MAX:
                known = None
        return said

    return compares


_COMPARE: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    Operator.GREATER: operator.gt,
    Operator.GREATER_EQUAL: operator.ge,
    Operator.LESS: operator.lt,
    Operator.LESS_EQUAL: operator.le,
}


def _null_of(value: Callable[[FilterInput], Any]) -> Callable[[FilterInput], None]:
    """Null for any value; an error in it counts."""

    def null(message: FilterInput) -> None:
        value(message)

    return null


# --- Types of values ------------------------------------------------------------------------------------------


class _Type(enum.Enum):
    TEXT = enum.auto()
    INT = enum.auto()
    LONG = enum.auto()
    DOUBLE = enum.auto()
    #: True or false.
    CONDITION = enum.auto()
    #: Always null.
    NULL = enum.auto()


_NUMBERS: Final = (_Type.INT, _Type.LONG, _Type.DOUBLE)
_COMPARABLE: Final = (*_NUMBERS, _Type.TEXT)


def _type(node: FilterNode) -> _Type:
    match node:
        case PropertyValue() | Constant(value=str()):
            return _Type.TEXT
        case Constant(value=bool()):
            return _Type.CONDITION
        case Constant(value=int(value)):
            return _Type.INT if value <= INT_MAX else _Type.LONG
        case Constant(value=float()):
            return _Type.DOUBLE
        case Constant():
            return _Type.NULL
        case Negate(operand=operand):
            # Minus keeps the type of a number, and returns null for any other type.
            kind = _type(operand)
            return kind if kind in _NUMBERS else _Type.NULL
        case _:
            return _Type.CONDITION


def _same(left: _Type, right: _Type) -> Callable[[Any, Any], bool]:
    """A function that compares values of these types with ``=``; neither is null."""
    if left == right:
        return operator.eq
    if left is _Type.TEXT and right is _Type.CONDITION:
        return lambda text, flag: (len(text) == 4 and text.lower() == "true") is flag
    if left is _Type.CONDITION and right is _Type.TEXT:
        return _fail_flag
    if left not in _COMPARABLE or right not in _COMPARABLE:
        return lambda _one, _other: False
    first_as, second_as = _alike(left, right)
    return lambda one, other: bool(first_as(one) == second_as(other))


def _fail_flag(_flag: bool, text: str) -> bool:
    raise EvaluationFailed(f"TRUE, FALSE or a condition cannot be compared with the text {text!r}; write a = TRUE")


def _alike(left: _Type, right: _Type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Functions that make numbers and texts of these types comparable."""
    if left is right is _Type.TEXT:
        return double_key, double_key
    if left is _Type.TEXT:
        return _READ.get(right, _as_is), _as_is
    if right is _Type.TEXT:
        return _as_is, _READ.get(left, _as_is)
    if left is not right and _Type.DOUBLE in (left, right):
        return float, float
    return _as_is, _as_is


def _as_is(value: Any) -> Any:
    return value


_READ: Final[dict[_Type, Callable[[Any], Any]]] = {
    _Type.INT: int_of,
    _Type.LONG: long_of,
    _Type.DOUBLE: double_of,
}
