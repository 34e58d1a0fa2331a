"""The index's hash of ``topic#key``: |String.hashCode|, quickly (C4).

Hashing the 32 characters of a UNIQ_KEY one by one takes 2 µs, as long as packing the record. But a producer's keys
differ in their last characters only (time and counter; so do most order numbers), and the hash is a polynomial::

    hash(topic # head abc xyz) = hash(topic # head)·31⁶ + hash(abc)·31³ + hash(xyz)   mod 2³²

So each of the three terms is looked up: heads by topic, and the pieces of three characters, which are few. A key
that shares nothing with those before it costs what it always did. Full tables start over.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ternmq.message import Property
from ternmq.wire.ids import java_hash, java_hash_append
from ternmq.wire.properties import find

#: What the index must know of a record: topic, properties, log offset, store time.
Keyed: TypeAlias = tuple[str, str, int, int]
#: Hash, log offset, store time.
IndexEntry: TypeAlias = tuple[int, int, int]

_KEYS: Final = f"\x02{Property.KEYS}\x01"
_KEYS_FIRST: Final = f"{Property.KEYS}\x01"
_KEYS_LENGTH: Final = len(_KEYS)
_UNIQUE_KEY: Final = f"\x02{Property.UNIQUE_KEY}\x01"
_UNIQUE_KEY_FIRST: Final = f"{Property.UNIQUE_KEY}\x01"
_UNIQUE_KEY_LENGTH: Final = len(_UNIQUE_KEY)

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_POW_3: Final = 31**3
_POW_6: Final = 31**6

#: Of all topics together; a producer needs a new head every 256 ms, a row of order numbers every million.
HEADS_MAX: Final = 8192
#: Three hexadecimal digits make 4096.
PIECES_MAX: Final = 16384


class KeyHashes:
    """Hashes keys under topics."""

    __slots__ = ("_heads", "_heads_count", "_lasts", "_middles")

    def __init__(self) -> None:
        self._heads: dict[str, dict[str, int]] = {}
        self._heads_count = 0
        self._middles: dict[str, int] = {}
        self._lasts: dict[str, int] = {}

    def of(self, topic: str, key: str) -> int:
        """The hash of one key, as an index entry holds it: 0 … 2³¹ − 1."""
        value = java_hash_append(java_hash(topic + "#"), key)
        # Java's Math.abs; the one value without a positive twin counts as 0.
        return abs(value) if value != -_SIGN else 0

    def entries(self, records: list[Keyed]) -> list[IndexEntry]:
        """The entries of some records: of each its unique key, then all its keys."""
        made: list[IndexEntry] = []
        add = made.append
        all_heads, middles, lasts = self._heads, self._middles, self._lasts
        for topic, properties, log_offset, store_time_ms in records:
            unique_key = keys = ""
            at = properties.rfind(_UNIQUE_KEY)
            if at >= 0 or properties.startswith(_UNIQUE_KEY_FIRST):
                at += _UNIQUE_KEY_LENGTH  # also right for -1, where the name begins the text
                end = properties.find("\x02", at)
                unique_key = (properties[at:end] if end >= 0 else properties[at:]) or _find(
                    properties, Property.UNIQUE_KEY
                )
            at = properties.rfind(_KEYS)
            if at >= 0 or properties.startswith(_KEYS_FIRST):
                at += _KEYS_LENGTH
                end = properties.find("\x02", at)
                keys = (properties[at:end] if end >= 0 else properties[at:]) or _find(properties, Property.KEYS)
            heads = all_heads.get(topic)
            if heads is None:
                heads = all_heads[topic] = {}
            for key in (unique_key, *keys.split(" ")) if " " in keys else (unique_key, keys):
                try:
                    value = (heads[key[:-6]] + middles[key[-6:-3]] + lasts[key[-3:]]) & _MASK
                except KeyError:
                    if not key:
                        continue
                    value = self._learn(topic, heads, key)
                if value >= _SIGN:
                    value = _MASK + 1 - value if value != _SIGN else 0
                add((value, log_offset, store_time_ms))
        return made

    def _learn(self, topic: str, heads: dict[str, int], key: str) -> int:
        head, middle, last = key[:-6], key[-6:-3], key[-3:]
        topic_hash = java_hash(topic + "#")
        # Without a head the terms would have other powers. And characters outside the BMP are two units in Java, so
        # that the last three characters are more than three: such pieces are not for the tables.
        if head and max(middle + last) <= "\uffff":
            if self._heads_count >= HEADS_MAX:
                self._heads.clear()
                self._heads_count = 0
            if len(self._middles) >= PIECES_MAX or len(self._lasts) >= PIECES_MAX:
                self._middles.clear()
                self._lasts.clear()
            heads[head] = java_hash_append(topic_hash, head) * _POW_6 & _MASK
            self._heads_count += 1
            self._middles[middle] = java_hash(middle) * _POW_3 & _MASK
            self._lasts[last] = java_hash(last) & _MASK
        return java_hash_append(topic_hash, key) & _MASK


def _find(properties: str, name: str) -> str:
    """For a property that stands there several times, the last time without a value."""
    return find(properties, name) or ""
