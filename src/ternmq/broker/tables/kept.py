"""What was made of filter expressions, kept as long as its bytes allow (K1, K2). Pure.

Expressions come from any client, so what they become in memory is bounded by an estimate of its bytes, not by number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

#: What a compiled expression takes, measured: SQL ``a=1 OR a=1 …`` 170 bytes a character, tags ``a||b…`` 30, and what
#: comparisons remember (``evaluate.VALUES_MAX``).
_SQL_BYTES: Final = 32_768
_TAGS_BYTES: Final = 1_024
_CHARACTER_BYTES: Final = 200

T = TypeVar("T")


class Kept(Generic[T]):
    """What was made of expressions, by expression: as many as ``bytes_max`` allows, those that were used last."""

    __slots__ = ("_bytes", "_bytes_max", "_bytes_of", "_made", "_make")

    def __init__(self, make: Callable[[str], T], bytes_of: Callable[[str], int], bytes_max: int) -> None:
        self._make = make
        self._bytes_of = bytes_of
        self._bytes_max = bytes_max
        self._bytes = 0
        # In the order of their last use.
        self._made: dict[str, T] = {}

    def __contains__(self, expression: str) -> bool:
        return expression in self._made

    def get(self, expression: str) -> T:
        """Raises what ``make`` does."""
        made = self._made.pop(expression, None)
        if made is None:
            made = self._make(expression)
            size = self._bytes_of(expression)
            if size > self._bytes_max:
                return made
            self._bytes += size
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._made))
                del self._made[oldest]
                self._bytes -= self._bytes_of(oldest)
        self._made[expression] = made
        return made


def sql_bytes(expression: str) -> int:
    """What a compiled SQL expression takes."""
    return _SQL_BYTES + _CHARACTER_BYTES * len(expression)


def tags_bytes(expression: str) -> int:
    """What a compiled expression of tags takes."""
    return _TAGS_BYTES + _CHARACTER_BYTES * len(expression)
