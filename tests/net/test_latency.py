"""Counts in buckets (D5, T4)."""

from __future__ import annotations

from ternmq.net.latency import Latency


def test_a_time_belongs_to_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    """T4: as Prometheus has it."""
    latency = Latency()
    for seconds in (0.0, 0.001, 0.0011, 0.003, 11.0):
        latency.add(seconds)
    latency.add(0.02, 5)

    assert [("1", 2), ("3", 4), ("5", 4), ("7", 4), ("10", 4), ("50", 9)] == latency.up_to()[:6]
    assert ("+Inf", 10) == latency.up_to()[-1]
    assert [2, 2, 5, 1] == [latency.between(*span) for span in ((0, 1), (1, 10), (10, 50), (10_000, None))]
    assert 11.0 == latency.max_s
    assert abs(latency.sum_s - 11.1051) < 1e-9
