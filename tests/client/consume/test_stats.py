"""How fast a consumer is (F10)."""

from __future__ import annotations

from ternmq.client.consume.stats import ConsumerCounts
from ternmq.wire.bodies.clients import ConsumeStatus
from tests.manual_clock import ManualClock


def test_rates_are_those_of_the_last_minute_and_failures_those_of_the_last_hour() -> None:
    """F10: as RocketMQ's tools show them."""
    clock = ManualClock()
    stats = ConsumerCounts(clock)
    stats.consumed("orders", done=0, failed=5, took_s=9.0)
    clock.advance(3_000)
    stats.pulled("orders", 32, took_s=0.25)
    stats.pulled("orders", 18, took_s=0.75)
    stats.consumed("orders", done=45, failed=5, took_s=2.0)
    clock.advance(50)
    stats.consumed("orders", done=5, failed=0, took_s=1.0)

    (status,) = stats.by_topic().values()

    assert (
        ConsumeStatus(
            pull_rt=500.0,
            pull_tps=1.0,
            consume_rt=1500.0,
            consume_ok_tps=1.0,
            consume_failed_tps=0.1,
            consume_failed_msgs=10,
        )
        == status
    )
    clock.advance(3_600)
    assert {"orders": ConsumeStatus()} == stats.by_topic()


def test_a_young_consumer_is_not_taken_for_a_slow_one() -> None:
    """F10: it has not seen a minute yet."""
    clock = ManualClock()
    stats = ConsumerCounts(clock)
    clock.advance(2)
    stats.consumed("orders", done=100, failed=0, took_s=1.0)
    assert 50.0 == stats.by_topic()["orders"].consume_ok_tps
