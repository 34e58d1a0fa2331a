"""Connections that have not said who they are, bounded in number (N1, B5).

Any program that reaches a port can open connections and say nothing. Above the limit one of them is closed: the oldest
of the address that has the most (of IPv6: of the network, ``net.places``). So a program that opens connections in a
loop only closes its own, and members, slaves and clients on other machines are not kept out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ternmq.net.places import place_of

T = TypeVar("T")


class Newcomers(Generic[T]):
    """Belongs to the loop."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        #: With their places; and those of each place, the oldest first.
        self._places: dict[T, str] = {}
        self._by_place: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, one: object) -> bool:
        return one in self._places

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._places))

    def add(self, one: T, ip: str) -> T | None:
        """Count a connection. Returns the one to close instead, if there are too many; it is not counted any more."""
        place = self._places[one] = place_of(ip)
        self._by_place.setdefault(place, {})[one] = None
        if len(self._places) <= self._count_max:
            return None
        most = max(self._by_place.values(), key=len)
        loser = next(iter(most))
        self.discard(loser)
        return loser

    def discard(self, one: T) -> None:
        """It has said who it is, or is closed."""
        place = self._places.pop(one, None)
        if place is not None:
            same = self._by_place[place]
            del same[one]
            if not same:
                del self._by_place[place]
