"""Bloom filter: the groups that may match a message, in a few bytes beside its queue entry (K3, C3).

A broker evaluates the SQL expressions of a topic's groups once, when a message is dispatched, and keeps the results as
a bit map (``store.derived.queue_ext``). A pull tests the bits of its own group first. If one of them is 0, the answer
is *no*, and the record is not read. If all are 1, the answer is *perhaps*, and the expression is evaluated.

The sizes follow from the number of groups *n* and the allowed share *f* of false positives::

    k = ⌈log₂(1/f)⌉ hashes per name        m = ⌈n · log₂(1/f) · log₂(e)⌉ bits, rounded up to whole bytes

RocketMQ's defaults, 32 groups and 20 %, give 3 hashes and 112 bits. A name is ``group#topic``; its hash is the first
half of MurmurHash3 x64-128 over UTF-8, cut into two 32-bit numbers *h₁* (low) and *h₂* (high), and position *i* of 1…k
is (h₁ + i · h₂) mod m, where the sum is Java's int: it wraps, and a negative one has its bits inverted. Bit *p* is the
p mod 8 lowest bit of byte p ÷ 8. Files and tools of RocketMQ contain these positions, so each step must be the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ternmq.errors import ConfigError
from ternmq.types import Buffer

_MASK_32: Final = (1 << 32) - 1
_MASK_64: Final = (1 << 64) - 1
_SIGN_32: Final = 1 << 31

# Appleby's constants of MurmurHash3_x64_128.
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_BLOCK_BYTES: Final = 16


@dataclass(slots=True, frozen=True)
class BloomFilter:
    """The parameters of a bit map. The bits themselves are plain ``bytes``: they are stored in files."""

    #: Positions per name.
    hash_count: int
    #: Bits of a map, a multiple of 8.
    bit_count: int

    @classmethod
    def sized(cls, *, error_percent: int, names: int) -> BloomFilter:
        """A filter for ``names`` names; ``error_percent`` is the share of false positives.

        Raises ``ConfigError``; the arguments are RocketMQ's ``maxErrorRateOfBloomFilter`` and
        ``expectConsumerNumUseFilter``.
        """
        if not 1 <= error_percent <= 99:
            raise ConfigError(f"invalid maxErrorRateOfBloomFilter {error_percent}: expected 1 to 99 (%)")
        if names < 1:
            raise ConfigError(f"invalid expectConsumerNumUseFilter {names}: expected 1 or more")
        error = error_percent / 100
        # Java divides natural logarithms; the same doubles give the same sizes in all cases.
        hash_count = math.ceil(math.log(error) / math.log(0.5))
        bit_count = math.ceil(names * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2)))
        return cls(hash_count, -(-bit_count // 8) * 8)

    @property
    def map_bytes(self) -> int:
        return self.bit_count // 8

    def positions(self, name: str) -> tuple[int, ...]:
        """The bits of a name; some may be equal."""
        first, _ = murmur3_x64_128(name.encode("utf-8", "replace"))
        low, high = first & _MASK_32, first >> 32
        found = []
        for number in range(1, self.hash_count + 1):
            combined = (low + number * high) & _MASK_32
            # A negative int of Java, inverted.
            found.append((combined ^ _MASK_32 if combined & _SIGN_32 else combined) % self.bit_count)
        return tuple(found)

    def bits(self, names: Iterable[tuple[int, ...]]) -> bytes:
        """The map that contains these names, given by their positions."""
        bits = bytearray(self.map_bytes)
        for positions in names:
            for position in positions:
                bits[position >> 3] |= 1 << (position & 7)
        return bytes(bits)

    def tester(self, positions: tuple[int, ...]) -> Callable[[Buffer], bool]:
        """A function that tests whether a map may contain the name with these positions; False is certain.

        A map of another length was made with other settings, so the function returns True.
        """
        # Bit p of a map is bit p of its bytes read as a little-endian number.
        mask, map_bytes, number_of = sum(1 << position for position in set(positions)), self.map_bytes, int.from_bytes

        def may_hold(bits: Buffer) -> bool:
            return len(bits) != map_bytes or number_of(bits, "little") & mask == mask

        return may_hold


def filter_name(group: str, topic: str) -> str:
    """The name of a group's subscription to a topic in a bit map."""
    return f"{group}#{topic}"


def murmur3_x64_128(data: bytes, seed: int = 0) -> tuple[int, int]:
    """MurmurHash3 for 64-bit machines, by Austin Appleby: both halves, unsigned."""
    h1 = h2 = seed
    blocks_end = len(data) - len(data) % _BLOCK_BYTES
    for at in range(0, blocks_end, _BLOCK_BYTES):
        h1 ^= _mix_first(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK_64
        h2 ^= _mix_second(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK_64
    h1 ^= _mix_first(int.from_bytes(data[blocks_end : blocks_end + 8], "little"))
    h2 ^= _mix_second(int.from_bytes(data[blocks_end + 8 :], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK_64
    h2 = h2 + h1 & _MASK_64
    h1, h2 = _finished(h1), _finished(h2)
    h1 = h1 + h2 & _MASK_64
    return h1, h2 + h1 & _MASK_64


def _mix_first(word: int) -> int:
    return _rotated(word * _C1 & _MASK_64, 31) * _C2 & _MASK_64


def _mix_second(word: int) -> int:
    return _rotated(word * _C2 & _MASK_64, 33) * _C1 & _MASK_64


def _rotated(word: int, count: int) -> int:
    return (word << count | word >> 64 - count) & _MASK_64


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return word ^ word >> 33
