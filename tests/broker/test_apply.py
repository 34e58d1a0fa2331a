"""Settings that change while a broker runs are handed over anew: no part keeps a value of the old ones (T2)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.settings import FIXED
from ternmq.errors import ConfigError
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.properties import parse
from ternmq.wire.requests import PullSysflag
from tests.broker.calls import FAR_MS, Caller, dialled, pull, settings, small_store


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Broker, Caller]]:
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        yield broker, caller


def changed(broker: Broker, **changes: object) -> BrokerConfig:
    return dataclasses.replace(broker.config, **changes)  # type: ignore[arg-type]  # any of its fields


async def test_new_settings_count_for_the_next_request(running: tuple[Broker, Caller]) -> None:
    """E1, D1: of a topic that was remembered as plain, too; in the record, in the reply and in what tools see."""
    broker, caller = running
    plain = {"UNIQ_KEY": "K1"}
    for _ in range(2):
        await caller.sent("orders", b"old", properties=plain)

    broker.apply(changed(broker, region_id="Mars", trace_on=False, auto_create_topic_enable=False))
    reply = await caller.sent("orders", b"new", properties=plain)

    assert ("Mars", False) == (reply.region, reply.trace_on)
    records = await caller.records("orders")
    assert ["DefaultRegion", "DefaultRegion", "Mars"] == [parse(record.properties)["MSG_REGION"] for record in records]
    assert ResponseCode.TOPIC_NOT_EXIST == (await caller.send("unknown", b"1")).code
    shown = bytes((await caller.call(RequestCode.GET_BROKER_CONFIG)).body).decode()
    assert "regionId=Mars" in shown


async def test_a_broker_that_becomes_read_only_refuses_and_one_that_becomes_unreadable_wakes_and_refuses(
    running: tuple[Broker, Caller],
) -> None:
    """D1, F8: brokerPermission 4 drains a broker; what waits looks again with the new settings."""
    broker, caller = running
    await caller.sent("orders", b"1")
    held = caller.peer.start_call(
        RequestCode.PULL_MESSAGE,
        pull(
            "orders",
            queue_offset=1,
            sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND,
            suspend_timeout_ms=FAR_MS,
        ),
    )
    await caller.pull("orders")  # behind the one that waits

    broker.apply(changed(broker, broker_permission=2))
    assert ResponseCode.NO_PERMISSION == (await caller.pull("orders")).code
    await caller.sent("orders", b"2")
    assert ResponseCode.NO_PERMISSION == (await asyncio.wait_for(held, 60)).code

    broker.apply(changed(broker, broker_permission=4))
    assert ResponseCode.NO_PERMISSION == (await caller.send_back("readers", 0)).code
    assert 0 == (await caller.pull("orders")).code


@pytest.mark.parametrize(
    ("name", "value"),
    [("broker_name", "other"), ("listen_port", 1), ("revive_queue_num", 4), ("max_filter_bytes", 2 << 20)],
)
async def test_what_names_and_files_are_made_of_needs_a_restart(
    running: tuple[Broker, Caller], name: str, value: object
) -> None:
    """T2: nothing changes then."""
    broker, caller = running
    assert name in FIXED

    with pytest.raises(ConfigError, match="restart"):
        broker.apply(changed(broker, region_id="Mars", **{name: value}))

    assert "DefaultRegion" == (await caller.sent("orders", b"1")).region


def test_all_fixed_settings_exist() -> None:
    """T2"""
    assert {*FIXED} <= {field.name for field in dataclasses.fields(BrokerConfig)}
