"""Buckets of quotas (M1): what passes, how long to wait, and what attributes say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.broker.quota import RATE_MAX, Bucket, Quota, rates
from ternmq.errors import InvalidParameter


def test_a_bucket_begins_full_and_holds_a_second() -> None:
    """M1: a burst is bounded by a second's worth, however long nothing came."""
    bucket = Bucket(10, now=0.0)
    for _ in range(10):
        assert 0.0 == bucket.wait_s(1_000.0)
        bucket.take(1, 1_000.0)

    assert bucket.wait_s(1_000.0) == pytest.approx(0.1)
    assert 0.0 == bucket.wait_s(1_000.2)


def test_what_is_larger_than_a_second_passes_and_is_paid_for() -> None:
    """M1: otherwise a large message could never be sent."""
    bucket = Bucket(10, now=0.0)

    bucket.take(1_000, 0.0)

    assert bucket.wait_s(0.0) == pytest.approx(99.1)
    assert 0.0 == bucket.wait_s(99.2)


@given(
    rate=st.integers(1, 1_000),
    requests=st.lists(st.tuples(st.floats(0, 2), st.integers(1, 5_000)), min_size=1, max_size=50),
)
def test_over_any_span_no_more_passes_than_the_rate_a_second_and_one_request(
    rate: int, requests: list[tuple[float, int]]
) -> None:
    """M1: the promise of the module."""
    bucket, now = Bucket(rate, now=0.0), 0.0
    passed: list[tuple[float, int]] = []
    for pause, amount in requests:
        now += pause
        if not bucket.wait_s(now):
            bucket.take(amount, now)
            passed.append((now, amount))

    largest = max(amount for _, amount in requests)
    for first, (begin, _) in enumerate(passed):
        for last, (end, _) in enumerate(passed[first:], start=first):
            assert sum(amount for _, amount in passed[first : last + 1]) <= rate * (end - begin + 1) + largest + 1e-6


@given(rate=st.integers(1, 1_000_000), debt=st.integers(1, 10**9))
def test_after_the_wait_something_may_pass(rate: int, debt: int) -> None:
    """M1: a wait that is told is long enough."""
    bucket = Bucket(rate, now=0.0)
    bucket.take(debt, 0.0)

    assert 0.0 == bucket.wait_s(bucket.wait_s(0.0) * (1 + 1e-9))


def test_the_tighter_limit_counts() -> None:
    """M1: messages and bytes are two buckets."""
    quota = Quota(100, 1_000, now=0.0)

    quota.take(1, 5_000, 0.0)

    assert quota.wait_s(0.0) == pytest.approx(4.001)
    assert "100 messages/s and 1000 bytes/s" == quota.describe()


def test_attributes_without_a_quota_allow_everything() -> None:
    """M1."""
    assert (None, None) == rates(None) == rates({"message.type": "FIFO"})
    assert (5, None) == rates({"quota.messages": "5"})
    assert (None, RATE_MAX) == rates({"quota.bytes": str(RATE_MAX)})


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "²", "9" * 400, str(RATE_MAX + 1)])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    """M1: hostile values, too."""
    with pytest.raises(InvalidParameter, match=r"invalid quota.bytes .*: expected a number a second from 1"):
        rates({"quota.bytes": text})
