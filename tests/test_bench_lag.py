"""The load of ``script/bench --replication`` slows down when brokers are busy, and does not die."""

from __future__ import annotations

from typing import Any

import pytest

from bench import replication
from bench.pace import BACK_OFF_S, BACK_OFF_S_MAX, Pace
from bench.systems import Node
from ternmq import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import SystemBusy


def test_the_rate_is_steady_as_long_as_the_broker_takes_it() -> None:
    pace = Pace(rate=1_000, batch=10, now_s=100.0)
    assert [pytest.approx(0.008), pytest.approx(0.016)] == [pace.after_send(100.002), pace.after_send(100.004)]
    assert (20, 0) == (pace.sent, pace.refused)
    assert pytest.approx(200.0) == pace.rate(100.1)


def test_what_was_missed_is_not_sent_in_a_burst() -> None:
    pace = Pace(rate=1_000, batch=10, now_s=0.0)
    assert 0.0 == pace.after_send(5.0)
    assert pytest.approx(0.01) == pace.after_send(5.0)


def test_refusals_in_a_row_make_longer_pauses_up_to_a_limit() -> None:
    pace = Pace(rate=1_000, batch=10, now_s=0.0)
    pauses = [pace.after_refusal(0.0) for _ in range(12)]
    assert [BACK_OFF_S, 2 * BACK_OFF_S, 4 * BACK_OFF_S] == pauses[:3]
    assert BACK_OFF_S_MAX == pauses[-1]
    pace.after_send(1.0)
    assert BACK_OFF_S == pace.after_refusal(1.0)


async def test_the_lag_is_measured_although_the_broker_is_often_busy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1: at the rate that is reached."""
    send_batch, calls = Producer.send_batch, 0

    async def busy_at_times(self: Producer, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise SystemBusy("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while")
        return await send_batch(self, *arguments, **options)

    monkeypatch.setattr(Producer, "send_batch", busy_at_times)
    async with EmbeddedCluster(slaves=1) as cluster:
        master, slave = (Node(broker.address, 0) for broker in (*cluster.brokers, *cluster.slaves))
        figures = await replication._lag(cluster.name_servers, master, slave, rate=10_000, seconds=0.5)
    assert 0 < figures["lag.rate"] < 10_000
    assert "the broker was busy" in capsys.readouterr().out
