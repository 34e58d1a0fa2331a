"""Heirs: who gets, in order, what a lost consumer of an ordered group held (R3).

The consumer that is online and holds the least. A thousand may be lost at once, and each has an heir: the others are
put in order once in a round of looking after them, and not looked through for each.
"""

from __future__ import annotations

import heapq

from ternmq.env import Clock
from ternmq.share.members import Life, Lives
from ternmq.share.state import Place, PlaceKey


class Heirs:
    """All methods belong to the broker's loop."""

    def __init__(self, lives: Lives, clock: Clock) -> None:
        self._lives = lives
        self._clock = clock
        #: By place, those that were online when one was first looked for: held messages and name, the least first.
        self._ready: dict[PlaceKey, list[tuple[int, str]]] = {}

    def begin(self) -> None:
        """A new round: consumers that have come since take part."""
        self._ready.clear()

    def find(self, place: Place, *, besides: str) -> str | None:
        """The heir of a consumer; None while no other is online."""
        ready = self._ready.get(place.key)
        found = self._least(place, ready, besides) if ready else None
        if found is None:
            # One may have come since the round began.
            ready = self._ready[place.key] = [
                (_held(place, name), name) for name in self._lives.names(place.key) if self._is_online(place, name)
            ]
            heapq.heapify(ready)
            found = self._least(place, ready, besides)
        return found

    def _least(self, place: Place, ready: list[tuple[int, str]], besides: str) -> str | None:
        kept: list[tuple[int, str]] = []
        found: str | None = None
        while ready and found is None:
            held, name = heapq.heappop(ready)
            if not self._is_online(place, name):
                continue
            now = _held(place, name)
            if name == besides:
                kept.append((now, name))
                continue
            if now <= held:
                found = name
            # Else it was given more since.
            heapq.heappush(ready, (now, name))
        for each in kept:
            heapq.heappush(ready, each)
        return found

    def _is_online(self, place: Place, name: str) -> bool:
        return self._lives.of(place.key, name, self._clock.monotonic()) is Life.ONLINE


def _held(place: Place, name: str) -> int:
    log = place.consumers.get(name)
    return log.held if log is not None else 0
