"""The life of consumers: online, offline, gone (R3). Pure.

Each pull, ack and heartbeat says that a consumer lives. What a broker knows of that is in memory only: when a term
begins, all consumers that hold something count as seen just now, so a restart of the broker gives none of them up.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from ternmq.share.state import PlaceKey

#: What a place takes in memory beside its names, with its tables, and what a consumer takes beside its own.
_PLACE_BYTES: Final = 1_000
_CONSUMER_BYTES: Final = 160


class Life(Enum):
    ONLINE = "online"
    #: Not heard of for a while, or it said that it leaves: what it holds goes to others.
    OFFLINE = "offline"
    #: Not heard of for so long that it is forgotten when it holds nothing.
    GONE = "gone"


class Lives:
    """When each consumer was last heard of. Times are seconds of any clock that only goes forward."""

    def __init__(self, *, offline_s: float, gone_s: float) -> None:
        self.apply(offline_s=offline_s, gone_s=gone_s)
        #: By group and topic, then by name.
        self._seen: dict[PlaceKey, dict[str, float]] = {}
        #: By group, its places: a broker may have a hundred thousand, and a consumer that leaves one asks for its own.
        self._of_group: dict[str, dict[PlaceKey, None]] = {}
        self._left: set[tuple[PlaceKey, str]] = set()
        #: Consumers that are known, and what all that takes in memory, about.
        self.count = 0
        self.memory_bytes = 0

    def apply(self, *, offline_s: float, gone_s: float) -> None:
        self._offline_s = offline_s
        self._gone_s = max(gone_s, offline_s)

    def names(self, place: PlaceKey) -> list[str]:
        """The consumers that were heard of."""
        return list(self._seen.get(place, ()))

    def size(self, place: PlaceKey) -> int:
        """How many were heard of."""
        return len(self._seen.get(place, ()))

    def is_known(self, place: PlaceKey, consumer: str) -> bool:
        return consumer in self._seen.get(place, ())

    def places(self) -> list[PlaceKey]:
        return list(self._seen)

    def places_of(self, group: str, consumer: str) -> list[PlaceKey]:
        """Those of a group where a consumer was heard of."""
        return [place for place in self._of_group.get(group, ()) if consumer in self._seen[place]]

    def seen(self, place: PlaceKey, consumer: str, now: float) -> None:
        """It was heard of."""
        seen = self._seen.get(place)
        if seen is None:
            seen = self._seen[place] = {}
            self._of_group.setdefault(place[0], {})[place] = None
            self.memory_bytes += _place_bytes(place)
        if consumer not in seen:
            self.count += 1
            self.memory_bytes += _consumer_bytes(consumer)
        seen[consumer] = now
        self._left.discard((place, consumer))

    def left(self, place: PlaceKey, consumer: str, now: float) -> None:
        """It said that it leaves."""
        self.seen(place, consumer, now)
        self._left.add((place, consumer))

    def has_left(self, place: PlaceKey, consumer: str) -> bool:
        """Whether it said that it leaves, and was not heard of since."""
        return (place, consumer) in self._left

    def forget(self, place: PlaceKey, consumer: str) -> None:
        seen = self._seen.get(place)
        if seen is not None and seen.pop(consumer, None) is not None:
            self.count -= 1
            self.memory_bytes -= _consumer_bytes(consumer)
            if not seen:
                del self._seen[place]
                self.memory_bytes -= _place_bytes(place)
                places = self._of_group[place[0]]
                del places[place]
                if not places:
                    del self._of_group[place[0]]
        self._left.discard((place, consumer))

    def idle_s(self, place: PlaceKey, consumer: str, now: float) -> float:
        """How long it was not heard of."""
        return now - self._seen.get(place, {}).get(consumer, -math.inf)

    def is_silent(self, place: PlaceKey, consumer: str, now: float) -> bool:
        """Whether it was not heard of for so long that it is offline, also if it said that it leaves."""
        return self.idle_s(place, consumer, now) >= self._offline_s

    def of(self, place: PlaceKey, consumer: str, now: float) -> Life:
        idle_s = self.idle_s(place, consumer, now)
        if idle_s >= self._gone_s:
            return Life.GONE
        return Life.OFFLINE if idle_s >= self._offline_s or (place, consumer) in self._left else Life.ONLINE


def _place_bytes(place: PlaceKey) -> int:
    # Strings of four bytes a character are the exception, and names are short.
    return _PLACE_BYTES + len(place[0]) + len(place[1])


def _consumer_bytes(consumer: str) -> int:
    return _CONSUMER_BYTES + len(consumer)
