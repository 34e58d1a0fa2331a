"""How long something took, as counts in buckets (D5, T4). Pure.

The bounds are those of RocketMQ 5's ``rocketmq_rpc_latency_milliseconds`` and of the distribution of puts that
RocketMQ's runtime table has, together, so that both can be told from the same counts.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: Upper bounds in ms; the last bucket has none.
BOUNDS_MS: Final = (1, 3, 5, 7, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_BOUNDS_S: Final = tuple(bound / 1000 for bound in BOUNDS_MS)
#: What took no longer than this belongs to the first bucket: hot loops compare instead of calling ``add``.
FIRST_S: Final = _BOUNDS_S[0]


class Latency:
    """Counts since the start."""

    __slots__ = ("counts", "max_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """So many took so long."""
        self.counts[bisect_left(_BOUNDS_S, seconds) if seconds > FIRST_S else 0] += count
        self.sum_s += seconds * count
        if seconds > self.max_s:
            self.max_s = seconds

    def up_to(self) -> list[tuple[str, int]]:
        """Cumulative counts by upper bound in ms, as Prometheus has them."""
        found, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_MS), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found

    def between(self, low_ms: int, high_ms: int | None) -> int:
        """How many took more than ``low_ms`` and no more than ``high_ms``, both bounds; 0 and None: open ends."""
        first = BOUNDS_MS.index(low_ms) + 1 if low_ms else 0
        last = BOUNDS_MS.index(high_ms) + 1 if high_ms is not None else len(self.counts)
        return sum(self.counts[first:last])
