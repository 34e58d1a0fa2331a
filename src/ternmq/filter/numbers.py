"""Parsing and ordering of numbers in texts, with Java's rules (K2).

``Integer.valueOf`` and ``Long.valueOf`` accept a sign and digits (of any script whose digits are one Java character),
without blanks. ``Double.valueOf`` accepts blanks around it, ``5.``, ``.5``, ``1e3``, ``5f``, ``0x1.8p1``, ``NaN`` and
``Infinity``. Python's functions differ, so they get only texts that both languages read in the same way.

Doubles have Java's total order: NaN is above all others and equal to itself, and -0.0 is below 0.0.

Properties come from any producer and may have 32,767 characters, so each text is read in one pass: the patterns do not
backtrack. A long text is parsed once for all comparisons of a filter, of which there may be a thousand: parsing it
takes up to 0.3 ms.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Final

from ternmq.errors import EvaluationFailed
from ternmq.filter.tree import INT_MAX, LONG_MAX


class _NotANumber:
    """In Java's order NaN is above all doubles, and equal to itself."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is self

    def __hash__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return other is self

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __ge__(self, other: object) -> bool:
        return True


_NAN: Final = _NotANumber()

#: What ``Double.valueOf`` accepts, without the blanks around it; hexadecimal numbers have their own pattern.
_DOUBLE: Final = re.compile(r"([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?")
_HEX_DOUBLE: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?", re.ASCII
)
_NAMED_DOUBLES: Final = {
    sign + name: value for sign in ("", "+", "-") for name, value in (("NaN", _NAN), ("Infinity", math.inf))
} | {"-Infinity": -math.inf}
#: ``String.trim`` removes all characters up to the blank.
_BLANKS: Final = "".join(map(chr, range(33)))
_DIGITS_AND_DOT: Final = "0123456789."
#: Characters of a text that an error shows.
_SHOWN_MAX: Final = 64
#: Cache size for long texts: a message has 64 of them at most, and few filters compare several.
_LONG: Final = 512
_LONGS_MAX: Final = 32


def int_of(text: str) -> int:
    if len(text) < 10 and text.isascii() and text.isdigit():
        return int(text)
    return (_long_whole if len(text) > _LONG else _whole)(text, INT_MAX, "whole number of 32 bits")


def long_of(text: str) -> int:
    if len(text) < 19 and text.isascii() and text.isdigit():
        return int(text)
    return (_long_whole if len(text) > _LONG else _whole)(text, LONG_MAX, "whole number of 64 bits")


def _whole(text: str, greatest: int, what: str) -> int:
    """``Integer.valueOf`` and ``Long.valueOf``: a sign, and digits of any script that are one Java character each."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if digits.isdecimal():
        digits = digits.lstrip("0") or "0"
        # A number of more than 19 digits does not fit anyway.
        if len(digits) < 20 and all(digit <= "\uffff" for digit in digits):
            value = -int(digits) if text[0] == "-" else int(digits)
            if -greatest - 1 <= value <= greatest:
                return value
    raise EvaluationFailed(f"{_shown(text)} is not a {what}; compare with a decimal (5.0) to accept others, too")


_long_whole: Final = functools.lru_cache(_LONGS_MAX)(_whole)


def double_of(text: str) -> Any:
    """``Double.valueOf``; NaN is ``_NAN``."""
    return _double(text) if len(text) <= _LONG else _long_double(text)


def _double(text: str) -> Any:
    if not text.strip(_DIGITS_AND_DOT):
        try:
            return float(text)
        except ValueError:
            raise _no_double(text) from None
    trimmed = text.strip(_BLANKS)
    found = _DOUBLE.fullmatch(trimmed)
    if found is not None:
        return float(found[1])
    if trimmed in _NAMED_DOUBLES:
        return _NAMED_DOUBLES[trimmed]
    found = _HEX_DOUBLE.fullmatch(trimmed)
    if found is None:
        raise _no_double(text)
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


_long_double: Final = functools.lru_cache(_LONGS_MAX)(_double)


def double_key(text: str) -> tuple[Any, float]:
    """A double for comparison with another: Java has -0.0 below 0.0."""
    value = double_of(text)
    return value, 1.0 if value is _NAN else math.copysign(1.0, value)


def _no_double(text: str) -> EvaluationFailed:
    return EvaluationFailed(f"{_shown(text)} is not a number, so it cannot be ordered; compare texts with = and <>")


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"
