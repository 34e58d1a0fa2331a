"""Series by name: 315 (D5, D6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.message import Outcome
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.stats import BrokerStats
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.record import Sysflag
from ternmq.wire.requests import PopMessage, PullMessage, PullSysflag, SendBack
from ternmq.wire.requests_admin import BrokerStatsQuery
from tests.broker.calls import dialled, settings, small_store
from tests.broker.handlers.conftest import Client
from tests.broker.handlers.test_transaction import end


async def series(client: Client, name: str, key: str) -> tuple[int, float]:
    """Sum and average of a call, over the last day."""
    response = await client.ok(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsQuery(stats_name=name, stats_key=key))
    stats = decode(response.body, BrokerStats)
    assert stats.stats_day.sum == stats.stats_hour.sum == stats.stats_minute.sum, "the broker has just begun"
    assert (stats.stats_minute.tps > 0) == (stats.stats_minute.sum > 0)
    return stats.stats_day.sum, stats.stats_day.avgpt


async def test_what_goes_in_out_and_back_is_counted(client: Client) -> None:
    """D5"""
    await client.create_topic("orders", 1)
    await client.consume("c", "billing", "orders")
    await client.send("orders", b"123", b"45678")
    pull = PullMessage(
        consumer_group="billing",
        topic="orders",
        queue_id=0,
        queue_offset=0,
        count_max=32,
        sysflag=PullSysflag.SUBSCRIPTION,
        subscription="*",
    )
    await client.ok(RequestCode.PULL_MESSAGE, pull)
    await client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(group="billing", log_offset=0))

    assert (2, 1.0) == await series(client, "TOPIC_PUT_NUMS", "orders")
    put_bytes, _ = await series(client, "TOPIC_PUT_SIZE", "orders")
    assert put_bytes >= 8
    assert (2, 2.0) == await series(client, "GROUP_GET_NUMS", "orders@billing")
    assert (await series(client, "GROUP_GET_SIZE", "orders@billing"))[0] > 0
    assert (1, 1.0) == await series(client, "SNDBCK_PUT_NUMS", "orders@billing")
    assert (1, 1.0) == await series(client, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"), "it waits for its next attempt"
    assert (3, 1.0) == await series(client, "BROKER_PUT_NUMS", "DefaultCluster")
    assert (2, 2.0) == await series(client, "BROKER_GET_NUMS", "DefaultCluster")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "nowhere"),
        ("GROUP_GET_NUMS", "orders"),
        ("GROUP_GET_NUMS", "@"),
        ("BROKER_PUT_NUMS", "OtherCluster"),
        ("COMMERCIAL_SEND_TIMES", "orders"),
        ("", ""),
    ],
)
async def test_a_series_that_is_not_there_is_refused(client: Client, name: str, key: str) -> None:
    """Tools of RocketMQ take code 1 as "nothing yet"."""
    header = BrokerStatsQuery(stats_name=name, stats_key=key)
    response = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, header)

    assert ResponseCode.SYSTEM_ERROR == response.code
    assert "not exist" in (response.remark or "")


@pytest.mark.parametrize(
    ("properties", "waits_in"),
    [({"DELAY": "1"}, "SCHEDULE_TOPIC_XXXX"), ({"TIMER_DELAY_MS": "1000"}, "rmq_sys_wheel_timer")],
)
async def test_a_delayed_message_counts_when_it_is_taken_and_when_it_is_delivered(
    tmp_path: Path, properties: dict[str, str], waits_in: str
) -> None:
    """D5, I1, I2: under the topic where it waits, then under its own; and what consumers get of it counts."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        await caller.heartbeat("readers", {"later": "*"})
        await caller.sent("later", b"123", properties=properties)
        await caller.arrived("later", 1)

        async def counted(name: str, key: str) -> int:
            header = BrokerStatsQuery(stats_name=name, stats_key=key)
            response = await caller.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
            return decode(response.body, BrokerStats).stats_day.sum

        assert (1, 1, 3, 2, 1) == (
            await counted("TOPIC_PUT_NUMS", waits_in),
            await counted("TOPIC_PUT_NUMS", "later"),
            await counted("TOPIC_PUT_SIZE", "later"),
            await counted("BROKER_PUT_NUMS", "DefaultCluster"),
            await counted("GROUP_GET_NUMS", "later@readers"),
        )


async def test_a_delayed_message_of_a_transaction_counts_under_its_own_topic_when_it_is_delivered(
    tmp_path: Path,
) -> None:
    """D5, I1, J1: it counted there as a half, too."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        properties = {"UNIQ_KEY": "K1", "TRAN_MSG": "true", "PGROUP": "shop", "DELAY": "1"}
        sent = await caller.sent(
            "later", b"123", properties=properties, sysflag=Sysflag.PREPARED, producer_group="shop"
        )
        assert 0 == (await end(caller, sent, Outcome.COMMIT)).code
        await caller.arrived("later", 1)
        for topic in ("later", "RMQ_SYS_TRANS_HALF_TOPIC"):
            header = BrokerStatsQuery(stats_name="TOPIC_PUT_NUMS", stats_key=topic)
            response = await caller.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
            assert 1 == decode(response.body, BrokerStats).stats_day.sum, topic


async def test_a_message_that_is_revived_counts_under_its_retry_topic(tmp_path: Path) -> None:
    """D5, F9: it was popped and not acknowledged, so it is stored again."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        await caller.heartbeat("poppers", {"orders": "*"})
        await caller.sent("orders", b"123")
        popped = PopMessage(
            consumer_group="poppers",
            topic="orders",
            queue_id=0,
            count_max=1,
            invisible_ms=1_000,
        )
        assert ResponseCode.SUCCESS == (await caller.call(RequestCode.POP_MESSAGE, popped)).code
        await caller.arrived("%RETRY%poppers_orders", 1)
        header = BrokerStatsQuery(stats_name="TOPIC_PUT_NUMS", stats_key="%RETRY%poppers_orders")
        response = await caller.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
        assert 1 == decode(response.body, BrokerStats).stats_day.sum
