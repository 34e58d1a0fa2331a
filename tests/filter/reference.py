"""A slow reference for SQL filters (K2): interprets the tree step by step, the way RocketMQ's classes do.

It shares nothing with ``filter.evaluate`` but the tree. Every value carries its Java type along, as an object of Java
would, and each comparison looks at the two types when it meets them. A null is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ternmq.filter.tree import (
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
)


class Failed(Exception):
    """Java would have thrown."""


@dataclass(frozen=True)
class Value:
    """``kind`` is Java's class: String, Boolean, Integer, Long or Double."""

    kind: str
    value: Any


TRUE, FALSE = Value("Boolean", True), Value("Boolean", False)


def matches(node: FilterNode, properties: Mapping[str, str]) -> bool:
    """Whether a broker would deliver the message."""
    try:
        return evaluate(node, properties) == TRUE
    except Failed:
        return False


def evaluate(node: FilterNode, properties: Mapping[str, str]) -> Value | None:
    if isinstance(node, Constant):
        return constant(node.value)
    if isinstance(node, PropertyValue):
        return Value("String", properties[node.name]) if node.name in properties else None
    if isinstance(node, Negate):
        value = evaluate(node.operand, properties)
        is_number = value is not None and value.kind in ("Integer", "Long", "Double")
        return Value(value.kind, -value.value) if value is not None and is_number else None
    if isinstance(node, AsCondition):
        return None if evaluate(node.operand, properties) is None else FALSE
    if isinstance(node, Not):
        value = evaluate(node.operand, properties)
        return None if value is None else boolean(not value.value)
    if isinstance(node, Logic):
        return logic(node, properties)
    if isinstance(node, IsNull):
        return boolean(evaluate(node.operand, properties) is None)
    if isinstance(node, In):
        value = evaluate(node.operand, properties)
        return None if value is None else boolean((value.value in node.texts) != node.negated)
    if isinstance(node, TextMatch):
        return part(node, properties)
    return comparison(node, properties)


def constant(value: str | bool | int | float | None) -> Value | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return boolean(value)
    if isinstance(value, str):
        return Value("String", value)
    if isinstance(value, float):
        return Value("Double", value)
    return Value("Integer" if -(2**31) <= value < 2**31 else "Long", value)


def boolean(value: bool) -> Value:
    return TRUE if value else FALSE


def logic(node: Logic, properties: Mapping[str, str]) -> Value | None:
    """Two by two from the left, as the parser of RocketMQ nests them."""
    result = evaluate(node.operands[0], properties)
    decisive = FALSE if node.is_and else TRUE
    for operand in node.operands[1:]:
        if result == decisive:
            return decisive
        right = evaluate(operand, properties)
        if right == decisive:
            result = decisive
        elif result is None or right is None:
            result = None
    return result


def part(node: TextMatch, properties: Mapping[str, str]) -> Value:
    if node.text == "":
        return FALSE
    value = evaluate(node.operand, properties)
    if value is None or value.kind != "String":
        return FALSE
    if node.word == "CONTAINS":
        found = value.value.find(node.text) >= 0
    elif node.word == "STARTSWITH":
        found = value.value[: len(node.text)] == node.text
    else:
        found = value.value[-len(node.text) :] == node.text
    return boolean(found != node.negated)


def comparison(node: Compare, properties: Mapping[str, str]) -> Value | None:
    left = evaluate(node.left, properties)
    if node.order is Operator.EQUAL:
        right = evaluate(node.right, properties)
        if left is None and right is None:
            return TRUE
        if left is None:
            return None
        if right is None:
            return FALSE
        return boolean(left == right or compare(left, right) == 0)
    if left is None:
        return None
    right = evaluate(node.right, properties)
    if right is None:
        return None
    if left.kind == right.kind == "String":
        left, right = read_double(left.value), read_double(right.value)
    sign = compare(left, right)
    return boolean(
        {
            Operator.GREATER: sign > 0,
            Operator.GREATER_EQUAL: sign >= 0,
            Operator.LESS: sign < 0,
            Operator.LESS_EQUAL: sign <= 0,
        }[node.order]
    )


def compare(left: Value, right: Value) -> int:
    """Below 0, 0 or above."""
    if left.kind != right.kind:
        pair = (left.kind, right.kind)
        if pair == ("Boolean", "String"):
            raise Failed
        if pair == ("String", "Boolean"):
            left = boolean(left.value.lower() == "true")
        elif "Boolean" in pair:
            return -1
        elif left.kind == "String":
            left = read(left.value, right.kind)
        elif right.kind == "String":
            right = read(right.value, left.kind)
        elif "Double" in pair:
            left, right = Value("Double", float(left.value)), Value("Double", float(right.value))
    if left.kind == "Double":
        return compare_doubles(left.value, right.value)
    return int(left.value > right.value) - int(left.value < right.value)


def compare_doubles(left: float, right: float) -> int:
    """``Double.compareTo``: -0.0 below 0.0, and NaN above all."""

    def place(value: float) -> tuple[int, Fraction | int, int]:
        if math.isnan(value):
            return (3, 0, 0)
        if math.isinf(value):
            return (2, 0, 0) if value > 0 else (0, 0, 0)
        return (1, Fraction(value), int(math.copysign(1, value)))

    return int(place(left) > place(right)) - int(place(left) < place(right))


def read(text: str, kind: str) -> Value:
    return read_double(text) if kind == "Double" else read_whole(text, kind)


def read_whole(text: str, kind: str) -> Value:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise Failed
    number = 0
    for digit in text.lstrip("+-"):
        number = number * 10 + "0123456789".index(digit)
    if text[0] == "-":
        number = -number
    bits = 31 if kind == "Integer" else 63
    if not -(2**bits) <= number < 2**bits:
        raise Failed
    return Value(kind, number)


def read_double(text: str) -> Value:
    text = text.strip("".join(chr(code) for code in range(33)))
    if re.fullmatch(r"[+-]?NaN", text):
        return Value("Double", math.nan)
    if re.fullmatch(r"[+-]?Infinity", text):
        return Value("Double", -math.inf if text[0] == "-" else math.inf)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", text):
        raise Failed
    return Value("Double", float(text.rstrip("fFdD")))
