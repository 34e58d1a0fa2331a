"""The index's hash of ``topic#key``: |String.hashCode|, quickly (C4).

Hashing the 32 characters of a UNIQ_KEY one by one takes 2 µs, as long as packing the record. But a producer's keys
differ in their last characters only (time and counter; so do most order numbers), and the hash is a polynomial::

    hash(topic # head middle last) = hash(topic#)·31ⁿ + hash(head)·31⁶ + hash(middle)·31³ + hash(last)   mod 2³²

Heads are looked up in a small cache, and so are the two pieces of three characters: 0.4 µs. Both caches start over
when they are full; keys that never repeat anything cost what they always did.
"""

from __future__ import annotations

from itertools import accumulate, repeat
from typing import Final

from ternmq.wire.ids import java_hash

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_POW_3: Final = 31**3
_POW_6: Final = 31**6
_POWERS: Final = tuple(accumulate(repeat(31, 127), lambda power, base: power * base & _MASK, initial=1))

TOPICS_MAX: Final = 16384
HEADS_MAX: Final = 4096
PIECES_MAX: Final = 16384


class KeyHashes:
    """Hashes keys under topics."""

    __slots__ = ("_heads", "_pieces", "_topics")

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._heads: dict[str, int] = {}
        self._pieces: dict[str, int] = {}

    def of_topic(self, topic: str) -> int:
        """The hash of ``topic#``, with which the hashes of its keys begin."""
        value = self._topics.get(topic)
        if value is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            value = self._topics[topic] = java_hash(topic + "#")
        return value

    def of_key(self, topic_hash: int, key: str) -> int:
        """The hash of ``topic#key`` as an index entry holds it: 0 … 2³¹ − 1."""
        try:
            value = (
                topic_hash * _POWERS[len(key)]
                + self._heads[key[:-6]] * _POW_6
                + self._pieces[key[-6:-3]] * _POW_3
                + self._pieces[key[-3:]]
            ) & _MASK
        except (KeyError, IndexError):
            value = self._learn(topic_hash, key)
        # Java's Math.abs; the one value without a positive twin counts as 0.
        if value < _SIGN:
            return value
        return 0 if value == _SIGN else _MASK + 1 - value

    def _learn(self, topic_hash: int, key: str) -> int:
        # Characters outside the BMP are two units in Java, so such a key has more of them than it has characters.
        units = len(key) if key.isascii() else len(key.encode("utf-16-le", "surrogatepass")) // 2
        if units == len(key) < len(_POWERS):
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            if len(self._pieces) >= PIECES_MAX:
                self._pieces.clear()
            self._heads[key[:-6]] = java_hash(key[:-6])
            self._pieces[key[-6:-3]] = java_hash(key[-6:-3])
            self._pieces[key[-3:]] = java_hash(key[-3:])
        return (topic_hash * pow(31, units, _MASK + 1) + java_hash(key)) & _MASK
