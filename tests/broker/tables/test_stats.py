"""Counters and rates (D5)."""

from __future__ import annotations

import pytest

from ternmq.broker.tables import series
from ternmq.broker.tables.series import Period
from ternmq.broker.tables.stats import Stats
from tests.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stats(clock: ManualClock) -> Stats:
    return Stats(clock)


def run(stats: Stats, clock: ManualClock, seconds: int, *, puts: int = 0, gets: int = 0) -> None:
    """So many messages in and out in each second."""
    for _ in range(seconds):
        for _ in range(puts):
            stats.put("t", 1, 100)
        if gets:
            stats.got("t", "g", gets, gets * 100)
        else:
            stats.missed()
        clock.advance(1)
        stats.sample()


def rates(stats: Stats, name: str) -> list[float]:
    return [float(rate) for rate in stats.runtime()[name].split()]


def test_rates_are_over_ten_seconds_one_minute_and_ten(stats: Stats, clock: ManualClock) -> None:
    """D5."""
    run(stats, clock, 50, puts=6)
    run(stats, clock, 10, puts=12, gets=8)

    assert rates(stats, "putTps") == [12.0, 7.0, 7.0]
    assert rates(stats, "getTransferredTps") == pytest.approx([8.0, 80 / 60, 80 / 60])
    assert rates(stats, "getTransferedTps") == rates(stats, "getTransferredTps")
    assert rates(stats, "getMissTps")[0] == 0.0
    assert rates(stats, "getTotalTps")[1] == 1.0


def test_an_idle_broker_has_rates_of_zero(stats: Stats) -> None:
    assert rates(stats, "putTps") == [0.0, 0.0, 0.0]
    assert stats.put_rate("t") == 0.0


def test_totals_count_messages_calls_and_bytes(stats: Stats) -> None:
    stats.put("t", 1, 100)
    stats.put("t", 3, 500)

    table = stats.runtime()
    assert (table["putMessageTimesTotal"], table["putMessageSizeTotal"]) == ("2", "600")
    assert table["putMessageAverageSize"] == "150.0"
    assert table["msgPutTotalTodayNow"] == "4"


def test_a_topic_and_a_group_have_rates_of_the_last_minute(stats: Stats, clock: ManualClock) -> None:
    run(stats, clock, 200, puts=1, gets=1)
    run(stats, clock, 60, puts=5, gets=3)

    assert stats.put_rate("t") == pytest.approx(5.0)
    assert stats.got_rate("t", "g") == pytest.approx(3.0)
    stats.forget_group("g")
    assert stats.got_rate("t", "g") == 0.0
    stats.forget_topic("t")
    assert stats.put_rate("t") == 0.0


def test_a_series_has_a_minute_an_hour_and_a_day(stats: Stats, clock: ManualClock) -> None:
    """D5: 315; each goes back by its own step, so it may have up to a step more."""
    run(stats, clock, 7200, puts=1)
    stats.put("late", 1, 10)
    run(stats, clock, 60, puts=3)
    count = stats.put_by_topic["t"]

    minute, hour, day = (stats.growth(count, span) for span in Period)
    assert (60.0, 180, 18_000, 180) == minute
    assert (3660.0, 3600 + 180) == hour[:2]
    assert (7260.0, 7200 + 180) == day[:2]
    assert [1, 1, 1] == [stats.growth(stats.put_by_topic["late"], span).messages for span in Period]
    run(stats, clock, 70)
    assert 0 == stats.growth(count, Period.MINUTE).messages


def test_a_day_ends(stats: Stats, clock: ManualClock) -> None:
    stats.put("t", 7, 1)
    for _ in range(25):
        assert 7 == stats.growth(stats.put_by_topic["t"], Period.DAY).messages
        clock.advance(3600)
        stats.sample()

    assert 0 == stats.growth(stats.put_by_topic["t"], Period.DAY).messages


def test_midnight_moves_todays_totals_to_yesterday(stats: Stats, clock: ManualClock) -> None:
    """D5: today's and yesterday's totals are differences of these three."""
    day_s = 24 * 3600
    stats.put("t", 10, 1)
    clock.advance(day_s)
    stats.sample()
    stats.put("t", 5, 1)
    clock.advance(day_s)
    stats.sample()
    stats.put("t", 1, 1)

    table = stats.runtime()
    assert table["msgPutTotalYesterdayMorning"] == "10"
    assert table["msgPutTotalTodayMorning"] == "15"
    assert table["msgPutTotalTodayNow"] == "16"


def test_many_series_are_noted_in_slices(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """D5: a moment that is not finished counts as one that is; the next one finishes it first."""
    monkeypatch.setattr(series, "SLICE", 2)
    stats = Stats(clock)
    for number in range(7):
        stats.put(f"t{number}", 1, 100)
    clock.advance(10)
    stats.sample()
    steps = sum(1 for _ in iter(stats.mark_more, False))
    assert 4 == steps, "two totals and seven topics, of which a slice was noted at once"

    for _ in range(7):
        clock.advance(10)
        stats.sample()
    assert {0} == {stats.growth(count, Period.MINUTE).messages for count in stats.put_by_topic.values()}


def test_series_are_bounded_by_their_bytes(clock: ManualClock) -> None:
    """D5: names come from requests; what has no room is counted in the totals, and the room comes back."""
    stats = Stats(clock, series_bytes_max=3 * (series.COUNT_BYTES + 40))
    for number in range(5):
        stats.put(f"topic{number}", 1, 10)
        stats.sent_back(f"topic{number}", "g", 10, is_dead=True)
    assert (3, 5) == (
        len(stats.put_by_topic) + len(stats.back_by_group) + len(stats.dead_by_group),
        stats.put_messages,
    )
    assert stats.room.refused > 0
    assert 0.0 == stats.put_rate("topic4")

    stats.forget_topic("topic0")
    stats.put("topic4", 1, 10)
    assert 1 == stats.put_by_topic["topic4"].messages
