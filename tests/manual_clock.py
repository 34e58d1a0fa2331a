"""A clock that tests move by hand."""

from __future__ import annotations


class ManualClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._passed_s = 0.0

    def now_ms(self) -> int:
        return self._now_ms + int(self._passed_s * 1000)

    def monotonic(self) -> float:
        return self._passed_s

    def advance(self, seconds: float) -> None:
        self._passed_s += seconds
