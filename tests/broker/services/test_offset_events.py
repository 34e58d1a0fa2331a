"""OFFSET_MOVED_EVENT: corrected offsets are published (D4)."""

from __future__ import annotations

import json
from pathlib import Path

from ternmq.broker.services.offset_events import RATE
from ternmq.env import Env
from ternmq.wire.codes import ResponseCode
from ternmq.wire.properties import parse
from tests.broker.calls import serving
from tests.manual_clock import ManualClock


async def test_a_corrected_offset_is_published_as_rocketmq_does(tmp_path: Path) -> None:
    """D4: tag and key are the group; a pull that is at the end, and one of an unknown group, say nothing."""
    async with serving(tmp_path) as broker:
        await broker.heartbeat("billing", {"orders": "*"})
        for number in range(3):
            await broker.sent("orders", b"%d" % number)
        await broker.pull("orders", 3, consumer_group="billing")
        await broker.pull("orders", 99, consumer_group="nobody")

        response = await broker.pull("orders", 99, consumer_group="billing")

        assert ResponseCode.PULL_OFFSET_MOVED == response.code
        [event] = await broker.records("OFFSET_MOVED_EVENT")
    assert {
        "consumerGroup": "billing",
        "messageQueue": {"topic": "orders", "brokerName": "broker-a", "queueId": 0},
        "offsetRequest": 99,
        "offsetNew": 3,
    } == json.loads(bytes(event.body))
    properties = parse(event.properties)
    assert ("billing", "billing") == (properties["TAGS"], properties["KEYS"])


async def test_a_client_that_asks_again_and_again_does_not_fill_the_log(tmp_path: Path) -> None:
    """D4: so many events a second."""
    clock = ManualClock()
    async with serving(tmp_path, env=Env(clock=clock)) as broker:
        await broker.heartbeat("billing", {"orders": "*"})
        await broker.sent("orders", b"0")
        for _ in range(5 * RATE):
            await broker.pull("orders", 99, consumer_group="billing")
        before = len(await broker.records("OFFSET_MOVED_EVENT"))
        clock.advance(0.5)
        await broker.pull("orders", 99, consumer_group="billing")
        after = len(await broker.records("OFFSET_MOVED_EVENT"))
    assert (RATE, RATE + 1) == (before, after)
