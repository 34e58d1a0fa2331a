"""The broker itself, as tools ask (D5, D6)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ternmq.broker.broker import Broker
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import QueueBounds, SendMessageV2
from tests.broker.handlers.conftest import Client, broker_config, connecting, store_config


async def test_the_state_has_what_rocketmqs_tools_parse(client: Client) -> None:
    """D5, D6: clusterList of 4.9 and of 5.x."""
    await client.send("orders", b"1", b"2")

    table = decode((await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTable).table

    for name in ("putTps", "getTransferredTps", "getTransferedTps", "getFoundTps", "getMissTps", "getTotalTps"):
        assert len([float(rate) for rate in table[name].split()]) == 3
    for name in (
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "earliestMessageTimeStamp",
        "bootTimestamp",
        "commitLogMinOffset",
        "commitLogMaxOffset",
    ):
        assert int(table[name]) >= 0
    assert 0.0 < float(table["commitLogDiskRatio"]) < 1.0
    assert (table["msgPutTotalTodayNow"], table["putMessageTimesTotal"]) == ("2", "2")
    assert table["brokerVersionDesc"].startswith("TernMQ")


async def test_the_state_tells_what_waits_for_its_time(client: Client) -> None:
    """D5, I1: how far each delay level is delivered, and where its queue ends; 4.9's brokerStatus shows it."""
    for level in (3, 18, 3):
        header = SendMessageV2(topic="orders", queue_id=0, properties=f"DELAY\x01{level}\x02")
        await client.ok(RequestCode.SEND_MESSAGE_V2, header, b"later")

    table = decode((await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTable).table

    assert {"scheduleMessageOffset_3": "0,2", "scheduleMessageOffset_18": "0,1"} == {
        name: value for name, value in table.items() if name.startswith("scheduleMessageOffset")
    }


async def test_a_broker_without_messages_has_a_state_too(client: Client) -> None:
    table = decode((await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTable).table

    assert table["earliestMessageTimeStamp"] == "-1"


async def test_settings_are_told_under_rocketmqs_names(client: Client) -> None:
    """D6."""
    response = await client.ok(RequestCode.GET_BROKER_CONFIG)

    lines = str(response.body, "utf-8").splitlines()
    assert {"brokerName=broker-a", "brokerIP1=127.0.0.1", "flushDiskType=ASYNC_FLUSH"} <= set(lines)
    assert json.loads(response.fields["version"])["counter"] == 0


async def test_queues_of_topics_that_are_not_in_the_table_are_cleaned(tmp_path: Path) -> None:
    """D6: a table that was restored from an old copy leaves such queues behind."""
    async with Broker(broker_config(), store_config(tmp_path)) as broker, connecting(broker) as connect:
        client = await connect()
        await client.create_topic("kept")
        await client.send("kept", b"1")
        shutil.copy(tmp_path / "store/config/topics.json", tmp_path / "old.json")
        await client.send("unused", b"1")
    shutil.copy(tmp_path / "old.json", tmp_path / "store/config/topics.json")

    async with Broker(broker_config(), store_config(tmp_path)) as broker, connecting(broker) as connect:
        client = await connect()
        await client.ok(RequestCode.CLEAN_UNUSED_TOPIC)

        for topic, end in (("kept", "1"), ("unused", "0")):
            response = await client.ok(RequestCode.GET_MAX_OFFSET, QueueBounds(topic=topic, queue_id=0))
            assert response.fields["offset"] == end
