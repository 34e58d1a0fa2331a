"""Connections that have not said who they are, bounded in number (N1, B5).

Any program that reaches a port can open connections and say nothing. Above the limit one of them is closed: the oldest
of the address that has the most. So a program that opens connections in a loop only closes its own, and members,
slaves and clients on other machines are not kept out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Newcomers(Generic[T]):
    """Belongs to the loop."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        #: With their addresses; and those of each address, the oldest first.
        self._ips: dict[T, str] = {}
        self._by_ip: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._ips)

    def __contains__(self, one: object) -> bool:
        return one in self._ips

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._ips))

    def add(self, one: T, ip: str) -> T | None:
        """Count a connection. Returns the one to close instead, if there are too many; it is not counted any more."""
        self._ips[one] = ip
        self._by_ip.setdefault(ip, {})[one] = None
        if len(self._ips) <= self._count_max:
            return None
        most = max(self._by_ip.values(), key=len)
        loser = next(iter(most))
        self.discard(loser)
        return loser

    def discard(self, one: T) -> None:
        """It has said who it is, or is closed."""
        ip = self._ips.pop(one, None)
        if ip is not None:
            same = self._by_ip[ip]
            del same[one]
            if not same:
                del self._by_ip[ip]
