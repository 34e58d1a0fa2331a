"""Guessing of secrets, slowed down (N1).

Each failed signature takes one of the attempts that an address has for a key; one comes back every second. While none
is left, requests with this key from this address are refused without a look at their signature, so that even the right
guess is not found out. A connection that has proved the key before is not affected, and neither are other addresses:
an attacker can lock out only clients with the same address, and only their new connections.

Known and unknown keys are counted in the same way, or an attacker could tell them apart by what is left. Keys are many
and counted in a few groups for each address, so that invented ones do not fill the table: two keys of one address
may share their attempts. Addresses of IPv6 are counted by their network (``net.places``). The table is bounded; the
entry that was used longest ago is forgotten, which gives an attacker with many addresses new attempts.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from ternmq.env import Clock
from ternmq.net.places import place_of

ATTEMPTS: Final = 20
RETURN_S: Final = 1.0
ENTRIES_MAX: Final = 10_000
#: How many groups the keys of an address are counted in.
GROUPS: Final = 256


class Guesses:
    """How many attempts are left. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Address and group of keys → attempts left, and when that was so.
        self._left: dict[tuple[str, int], tuple[float, float]] = {}

    def failed(self, ip: str, key: str) -> None:
        """A signature was wrong."""
        what = place_of(ip), _group(key)
        left = self._count(what)
        self._left.pop(what, None)
        if len(self._left) >= ENTRIES_MAX:
            del self._left[next(iter(self._left))]
        self._left[what] = max(0.0, left - 1.0), self._clock.monotonic()

    def may_try(self, ip: str, key: str) -> bool:
        """Whether an attempt is left."""
        return not self._left or self._count((place_of(ip), _group(key))) >= 1.0

    def _count(self, what: tuple[str, int]) -> float:
        entry = self._left.get(what)
        if entry is None:
            return ATTEMPTS
        left, since = entry
        left += (self._clock.monotonic() - since) / RETURN_S
        if left >= ATTEMPTS:
            del self._left[what]
        return min(left, ATTEMPTS)


def _group(key: str) -> int:
    return crc32(key.encode(errors="replace")) % GROUPS
