"""Which topics or groups ``tern top`` asks for, when there are more than it can ask for in each round (T1).

Brokers tell the load of one topic or group a call, so thousands of them cannot be asked every two seconds. Each round
asks for the busiest that are known, and for some of the others in turn: after a few rounds all were seen, and one that
becomes busy is found when its turn comes. Pure: it knows neither clock nor cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Busiest(Generic[T]):
    """The last known load of each name, and who is next. ``rank`` is higher for what is busier."""

    def __init__(self, count_max: int, name: Callable[[T], str], rank: Callable[[T], tuple[float, ...]]) -> None:
        self._count_max = count_max
        self._name = name
        self._rank = rank
        #: In the order in which they were asked for, the longest ago first.
        self._seen: dict[str, T] = {}

    @property
    def known(self) -> list[T]:
        """The last load of each name that was asked for."""
        return list(self._seen.values())

    def choose(self, names: Sequence[str]) -> list[str]:
        """The names of this round, of all ``names`` that there are; those that are gone are forgotten."""
        present = set(names)
        self._seen = {name: load for name, load in self._seen.items() if name in present}
        if len(names) <= self._count_max:
            return list(names)
        by_rank = sorted(self._seen, key=lambda name: self._rank(self._seen[name]), reverse=True)
        busiest = by_rank[: self._count_max // 2]
        chosen = set(busiest)
        unseen = (name for name in names if name not in self._seen)
        longest_ago = (name for name in self._seen if name not in chosen)
        others = [*unseen, *longest_ago][: self._count_max - len(busiest)]
        return [*busiest, *others]

    def learn(self, loads: Iterable[T]) -> None:
        """What the round has found."""
        for load in loads:
            name = self._name(load)
            self._seen.pop(name, None)
            self._seen[name] = load
