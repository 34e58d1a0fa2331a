"""The index's entries of a record: its keys, and the hash of ``topic#key`` for each (C4).

The hash is |String.hashCode|, a number with the base 31 (``wire.ids``). Most keys are unique keys, made of hexadecimal
digits; for those the characters less 48 are digits of that base already, so one ``int`` does it::

    hash(topic # k₁ … kₙ) = hash(topic#)·31ⁿ + Σ 48·31ⁿ⁻ⁱ + Σ (kᵢ - 48)·31ⁿ⁻ⁱ   mod 2³²
                            `---- once a topic and length ----´

That is 0.3 µs for 32 digits, where the sum written out takes 2 µs, as long as packing the record. All records that
wait are done in one go, and the loop calls nothing that is not written in C.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from ternmq.message import Property
from ternmq.wire.ids import DIGITS_MAX, POWERS, QUOTIENTS, REMAINDERS, java_hash, java_hash_append
from ternmq.wire.properties import find

#: What the index must know of a record: topic, properties, log offset, store time.
Keyed: TypeAlias = tuple[str, str, int, int]
#: Hash, log offset, store time.
IndexEntry: TypeAlias = tuple[int, int, int]
#: As the kernels make them.
MADE_ENTRY: Final = struct.Struct(">iqq")

#: Topics whose hash is kept; beyond that the table starts over.
TOPICS_MAX: Final = 16384

_KEYS: Final = f"\x02{Property.KEYS}\x01"
_KEYS_FIRST: Final = f"{Property.KEYS}\x01"
_KEYS_LENGTH: Final = len(_KEYS)
_UNIQUE_KEY: Final = f"\x02{Property.UNIQUE_KEY}\x01"
_UNIQUE_KEY_FIRST: Final = f"{Property.UNIQUE_KEY}\x01"
_UNIQUE_KEY_LENGTH: Final = len(_UNIQUE_KEY)

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000

#: Lengths of unique keys with an IPv4 and an IPv6 address.
_UNIQUE_V4: Final = 32
_UNIQUE_V6: Final = 56
#: «0» … «9», «A» … «F» as digits of the base 31 with their code less 48 (A is 17); all else is refused by ``int``.
_HEX_DIGITS: Final = bytes.maketrans(b"ABCDEF", b"HIJKLM").translate(
    bytes(code if chr(code) in "0123456789HIJKLM" else ord("!") for code in range(256))
)


class KeyHashes:
    """Hashes keys under topics."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        #: Topic → hash of ``topic#``, and what it and the 48s add to unique keys of both lengths.
        self._topics: dict[str, tuple[int, int, int]] = {}

    def of(self, topic: str, key: str) -> int:
        """The hash of one key, as an index entry holds it: 0 … 2³¹ − 1."""
        value = java_hash_append(java_hash(topic + "#"), key)
        # Java's Math.abs; the one value without a positive twin counts as 0.
        return abs(value) if value != -_SIGN else 0

    def entries(self, records: list[Keyed]) -> list[IndexEntry]:
        """The entries of some records: of each its unique key, then all its keys."""
        made: list[IndexEntry] = []
        add, topics = made.append, self._topics
        for topic, properties, log_offset, store_time_ms in records:
            known = topics.get(topic)
            topic_hash, unique_v4, unique_v6 = known if known is not None else self._learn(topic)
            at = properties.rfind(_UNIQUE_KEY)
            if at >= 0 or properties.startswith(_UNIQUE_KEY_FIRST):
                at += _UNIQUE_KEY_LENGTH  # also right for -1, where the name begins the text
                end = properties.find("\x02", at)
                key = properties[at:end] if end >= 0 else properties[at:]
                try:
                    value = int(key.encode().translate(_HEX_DIGITS), 31)
                    if len(key) == _UNIQUE_V4:
                        value = (value + unique_v4) & _MASK
                    elif len(key) == _UNIQUE_V6:
                        value = (value + unique_v6) & _MASK
                    else:
                        value = java_hash_append(topic_hash, key) & _MASK
                except ValueError:
                    key = key or find(properties, Property.UNIQUE_KEY) or ""
                    value = java_hash_append(topic_hash, key) & _MASK
                if value >= _SIGN:
                    value = _MASK + 1 - value if value != _SIGN else 0
                if key:
                    add((value, log_offset, store_time_ms))
            at = properties.rfind(_KEYS)
            if at >= 0 or properties.startswith(_KEYS_FIRST):
                at += _KEYS_LENGTH
                end = properties.find("\x02", at)
                keys = (properties[at:end] if end >= 0 else properties[at:]) or find(properties, Property.KEYS) or ""
                for key in keys.split(" ") if " " in keys else (keys,):
                    if not key:
                        continue
                    if keys.isascii() and len(key) <= DIGITS_MAX:
                        data = key.encode()
                        value = topic_hash * POWERS[len(data)] + 31 * int(data.translate(QUOTIENTS), 31)
                        value = (value + int(data.translate(REMAINDERS), 31)) & _MASK
                    else:
                        value = java_hash_append(topic_hash, key) & _MASK
                    if value >= _SIGN:
                        value = _MASK + 1 - value if value != _SIGN else 0
                    add((value, log_offset, store_time_ms))
        return made

    def _learn(self, topic: str) -> tuple[int, int, int]:
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        topic_hash = java_hash(topic + "#")
        known = (
            topic_hash,
            java_hash_append(topic_hash, "0" * _UNIQUE_V4) & _MASK,
            java_hash_append(topic_hash, "0" * _UNIQUE_V6) & _MASK,
        )
        self._topics[topic] = known
        return known
