"""Durations in buckets whose width grows with the value: percentiles of any number of samples in fixed memory.

As in HdrHistogram: values below 128 µs are exact, larger ones to 1/64. A value of 3 s is known to 47 ms.
"""

from __future__ import annotations

from typing import Final

#: Bits that tell buckets of one power of two apart.
_BITS: Final = 6
_EXACT: Final = 1 << (_BITS + 1)
PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))


class Latencies:
    """Counts durations, in microseconds."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.max_us = 0

    def add(self, duration_us: int) -> None:
        duration_us = max(duration_us, 0)
        bucket = _bucket(duration_us)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.max_us = max(self.max_us, duration_us)

    def percentile_us(self, share: float) -> int:
        """The duration that ``share`` of all samples do not exceed; 0 without samples."""
        rank = share * self.count
        seen = 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            if seen >= rank:
                return min(_highest(bucket), self.max_us)
        return 0

    def fields(self) -> dict[str, float]:
        """Percentiles and the maximum, in milliseconds."""
        known = {name: self.percentile_us(share) / 1000 for name, share in PERCENTILES}
        return known | {"max": self.max_us / 1000}


def _bucket(value: int) -> int:
    if value < _EXACT:
        return value
    shift = value.bit_length() - _BITS - 1
    return (shift << (_BITS + 1)) + _EXACT + (value >> shift)


def _highest(bucket: int) -> int:
    """The largest value of a bucket."""
    if bucket < _EXACT:
        return bucket
    shift, top = divmod(bucket - _EXACT, 1 << (_BITS + 1))
    return ((top + 1) << shift) - 1
