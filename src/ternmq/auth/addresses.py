"""Address patterns of white lists (N1).

========================  ===============================================================
blank                     no address
``*``, ``*.*.*.*``        every address; ``*:*:*:*:*:*:*:*`` too
``10.1.2.3``              one
``10.1.2.*``              any number in that part; parts that are left out at the end are any, too
``10.1.5-7.*``            a range
``10.1.2.{3,4,9}``        alternatives, in the last part
``fe80::1``, ``fe80::*``  the same for IPv6, with hexadecimal numbers; ``::`` stands for zeros
``a,b``                   any of several patterns
========================  ===============================================================

RocketMQ ignores the parts behind the first ``*`` or range. Here they count as they are written: ``10.*.*.7`` is not
all of ``10.*``. A pattern that is malformed raises: a white list must not be guessed.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from ternmq.errors import ConfigError

_EVERY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
#: Commas that are not between braces.
_COMMA: Final = re.compile(r",(?![^{}]*\})")
_LENGTH_MAX: Final = 4096
_PARTS_V4: Final = 4
_PARTS_V6: Final = 8

#: For each part of an address, the ranges of numbers that it may be in.
_Parts = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(slots=True, frozen=True)
class AddressPattern:
    """One pattern. ``parse`` makes it, ``matches`` asks it."""

    text: str = ""
    _is_every: bool = False
    _alternatives: tuple[_Parts, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """Raises ``ConfigError`` for a pattern that is malformed."""
        text = text.strip()
        if not text:
            return cls()
        if len(text) > _LENGTH_MAX:
            raise ConfigError(f"invalid address pattern {text[:40]!r}…: expected at most {_LENGTH_MAX} characters")
        if text in _EVERY:
            return cls(text, _is_every=True)
        try:
            return cls(text, _alternatives=tuple(_parts(one.strip()) for one in _COMMA.split(text)))
        except ValueError:
            raise ConfigError(
                f"invalid address pattern {text!r}: expected an address, as in 10.1.2.3, 10.1.2.*, 10.1.5-7.*, "
                "10.1.2.{3,4}, fe80::1, fe80::*, several separated by commas, or * for all"
            ) from None

    @property
    def count(self) -> int:
        """How many patterns it is made of."""
        return len(self._alternatives)

    def matches(self, ip: str) -> bool:
        """Whether an address, in numbers, is one of these."""
        if self._is_every:
            return True
        if not self._alternatives:
            return False
        numbers = _numbers(ip)
        return numbers is not None and any(_fits(parts, numbers) for parts in self._alternatives)


NO_ADDRESS: Final = AddressPattern()


def _fits(parts: _Parts, numbers: tuple[int, ...]) -> bool:
    if len(parts) != len(numbers):
        return False
    for ranges, number in zip(parts, numbers, strict=True):
        if not any(low <= number <= high for low, high in ranges):
            return False
    return True


def _numbers(ip: str) -> tuple[int, ...] | None:
    """The parts of an address; None for what is none."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            packed = address.packed
            return tuple(int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2))
        address = address.ipv4_mapped
    return tuple(address.packed)


def _parts(text: str) -> _Parts:
    single = _numbers(text)
    if single is not None and "%" not in text:
        return tuple(((number, number),) for number in single)
    return _parts_v6(text) if ":" in text else _parts_v4(text)


def _parts_v4(text: str) -> _Parts:
    texts = text.split(".")
    parts = [_ranges(part, base=10, most=255, is_last=at == len(texts) - 1) for at, part in enumerate(texts)]
    # «10.1.*» is short for «10.1.*.*».
    if len(parts) < _PARTS_V4 and len(parts) > 1 and ("*" in texts[-1] or "-" in texts[-1]):
        parts += [((0, 255),)] * (_PARTS_V4 - len(parts))
    if len(parts) != _PARTS_V4 or texts[0] == "*":
        raise ValueError(text)
    return tuple(parts)


def _parts_v6(text: str) -> _Parts:
    left, gap, right = text.partition("::")
    if "::" in right:
        raise ValueError(text)
    before = left.split(":") if left else []
    behind = right.split(":") if right else []
    texts = before + behind
    missing = _PARTS_V6 - len(texts)
    if gap:
        if missing < 1:
            raise ValueError(text)
        texts = before + ["0"] * missing + behind
    elif missing > 0 and texts[-1] == "*":
        texts += ["*"] * missing
    if len(texts) != _PARTS_V6 or texts[0] == "*":
        raise ValueError(text)
    return tuple(_ranges(part, base=16, most=0xFFFF, is_last=at == len(texts) - 1) for at, part in enumerate(texts))


def _ranges(text: str, *, base: int, most: int, is_last: bool) -> tuple[tuple[int, int], ...]:
    if text == "*":
        return ((0, most),)
    if text.startswith("{") and text.endswith("}"):
        if not is_last:
            raise ValueError(text)
        return tuple((number, number) for number in (_number(one, base, most) for one in text[1:-1].split(",")))
    if "-" in text:
        low, _, high = text.partition("-")
        first, last = _number(low, base, most), _number(high, base, most)
        if first > last:
            raise ValueError(text)
        return ((first, last),)
    number = _number(text, base, most)
    return ((number, number),)


_DIGITS: Final = {10: re.compile(r"(0|[1-9][0-9]{0,2})\Z"), 16: re.compile(r"[0-9a-fA-F]{1,4}\Z")}


def _number(text: str, base: int, most: int) -> int:
    text = text.strip()
    if not _DIGITS[base].match(text):
        raise ValueError(text)
    number = int(text, base)
    if number > most:
        raise ValueError(text)
    return number
