"""What new topics and groups cost a broker, and when an administrator is answered (issue 13, points 5, 7 and 14)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.broker import Broker
from ternmq.files import SystemFiles
from ternmq.wire.bodies.clients import ConsumerData, Heartbeat, ProducerData, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import QueryOffset, SendMessage, UpdateOffset
from ternmq.wire.requests_admin import ConsumeStatsQuery, Group, Topic
from tests.broker.calls import pull
from tests.broker.handlers.conftest import Client, Connect, broker_config, connecting, store_config
from tests.broker.handlers.test_client import members


class SlowFiles(SystemFiles):
    """Counts what is written, and writes it when it may."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_full = False

    def write(self, path: Path, data: bytes) -> None:
        self.may_write.wait()
        self.written[path.name.removesuffix(".tmp")] += 1
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().write(path, data)


def saved(tmp_path: Path, name: str) -> Any:
    return json.loads((tmp_path / "store" / "config" / name).read_bytes())


async def test_a_heartbeat_of_two_thousand_groups_is_two_saves(tmp_path: Path) -> None:
    """Issue 13, 5: each new group and each retry topic rewrote its whole table, while all others waited."""
    files = SlowFiles()
    async with Broker(broker_config(), store_config(tmp_path), files=files) as broker, connecting(broker) as connect:
        client = await connect()
        files.written.clear()
        groups = [ConsumerData(group_name=f"g{number}") for number in range(2_000)]
        await client.ok(RequestCode.HEART_BEAT, None, encode(Heartbeat(client_id="a", consumer_data_set=groups)))

    assert files.written["subscriptionGroup.json"] <= 2
    assert files.written["topics.json"] <= 2
    assert 2_000 <= len(saved(tmp_path, "subscriptionGroup.json")["subscriptionGroupTable"])
    assert "%RETRY%g1999" in saved(tmp_path, "topics.json")["topicConfigTable"]


async def test_a_disk_that_stands_still_holds_an_administrator_and_no_sender(tmp_path: Path) -> None:
    """Issue 13, 5: sends create topics at once; what an administrator creates is answered when it is safe."""
    files = SlowFiles()
    async with Broker(broker_config(), store_config(tmp_path), files=files) as broker, connecting(broker) as connect:
        client = await connect()
        await client.create_topic("first")
        files.written.clear()
        files.may_write.clear()
        try:
            for number in range(100):
                await client.send(f"sent-{number}", b"1")
            created = [asyncio.create_task(client.create_topic(f"made-{number}")) for number in range(10)]
            await client.ok(RequestCode.GET_TOPIC_CONFIG, Topic(topic="sent-99"))
            assert not any(task.done() for task in created)
        finally:
            files.may_write.set()
        assert {ResponseCode.SUCCESS} == {response.code for response in await asyncio.gather(*created)}
        table = saved(tmp_path, "topics.json")["topicConfigTable"]

    assert {"sent-0", "sent-99", "made-0", "made-9"} <= table.keys()
    assert files.written["topics.json"] <= 3


async def test_an_administrator_is_told_what_the_disk_did_not_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 13, 5: and it is written when the disk takes it again."""
    files = SlowFiles()
    async with Broker(broker_config(), store_config(tmp_path), files=files) as broker, connecting(broker) as connect:
        client = await connect()
        files.is_full = True
        group = encode(SubscriptionGroupConfig(group_name="billing"))
        for response in (
            await client.create_topic("orders"),
            await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group),
        ):
            assert ResponseCode.SYSTEM_ERROR == response.code
            assert ".json: No space left on device; the change is active" in (response.remark or "")
        files.is_full = False

    assert "No space left on device" in caplog.text
    assert "orders" in saved(tmp_path, "topics.json")["topicConfigTable"]
    assert "billing" in saved(tmp_path, "subscriptionGroup.json")["subscriptionGroupTable"]


async def test_a_topic_of_a_killed_broker_is_found_again_by_its_messages(tmp_path: Path) -> None:
    """Issue 13, 5: the send that made it does not wait for the table."""
    async with Broker(broker_config(), store_config(tmp_path)) as broker, connecting(broker) as connect:
        await (await connect()).send("orders", b"1", queue_id=2)
    path = tmp_path / "store" / "config" / "topics.json"
    table = saved(tmp_path, "topics.json")
    del table["topicConfigTable"]["orders"]
    path.write_text(json.dumps(table))
    (tmp_path / "store" / "abort").touch()

    async with Broker(broker_config(), store_config(tmp_path)) as broker, connecting(broker) as connect:
        client = await connect()
        await client.ok(RequestCode.PULL_MESSAGE, pull("orders", queue_id=2))
    assert 3 == saved(tmp_path, "topics.json")["topicConfigTable"]["orders"]["readQueueNums"]


# --- Names that clients invent ------------------------------------------------------------------------------------


async def test_sends_create_topics_up_to_a_limit_and_administrators_any(tmp_path: Path) -> None:
    """Issue 13, 5: autoCreateTopicMax. The refusal names both cures."""
    config = broker_config(auto_create_topic_max=16)
    async with Broker(config, store_config(tmp_path)) as broker, connecting(broker) as connect:
        client = await connect()
        codes = []
        for number in range(20):
            response = await client.call(RequestCode.SEND_MESSAGE, SendMessage(topic=f"t{number}", queue_id=0), b"1")
            codes.append(response.code)

        assert {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST} == set(codes)
        assert ResponseCode.TOPIC_NOT_EXIST == codes[-1]
        assert "tern topic create t19" in (response.remark or "")
        assert "autoCreateTopicMax" in (response.remark or "")
        assert ResponseCode.SUCCESS == (await client.create_topic("t19")).code
        await client.send("t19", b"1")
        # Retry topics of groups have a count of their own.
        await client.consume("a", "billing", "t0")
        await client.ok(RequestCode.GET_TOPIC_CONFIG, Topic(topic="%RETRY%billing"))
        codes = [
            (await client.call(RequestCode.SEND_MESSAGE, SendMessage(topic=f"%RETRY%{number}", queue_id=0), b"1")).code
            for number in range(20)
        ]
        assert ResponseCode.TOPIC_NOT_EXIST == codes[-1]


async def test_a_group_over_the_limit_does_not_spoil_a_heartbeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 13, 5: autoCreateSubscriptionGroupMax."""
    config = broker_config(auto_create_subscription_group_max=5)
    async with Broker(config, store_config(tmp_path)) as broker, connecting(broker) as connect:
        client = await connect()
        groups = [ConsumerData(group_name=f"g{number}") for number in range(4)]
        for _ in range(2):
            await client.ok(RequestCode.HEART_BEAT, None, encode(Heartbeat(client_id="a", consumer_data_set=groups)))

        assert [["a"], ["a"], [], []] == [await members(client, f"g{number}") for number in range(4)]
        await client.ok(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(SubscriptionGroupConfig(group_name="g3"))
        )
        await client.ok(RequestCode.HEART_BEAT, None, encode(Heartbeat(client_id="a", consumer_data_set=groups)))
        assert ["a"] == await members(client, "g3")

    refused = [record.getMessage() for record in caplog.records if "'g2'" in record.getMessage()]
    assert 1 == len(refused)
    assert "tern group create g2" in refused[0]
    assert "autoCreateSubscriptionGroupMax" in refused[0]


async def test_a_question_about_a_group_does_not_create_it(client: Client, broker: Broker) -> None:
    """Issue 13, 5: nor does a pull that commits nothing."""
    await client.create_topic("orders")
    await client.send("orders", b"1")
    await client.ok(RequestCode.PULL_MESSAGE, pull("orders", consumer_group="invented"))
    await client.call(RequestCode.GET_CONSUME_STATS, ConsumeStatsQuery(consumer_group="invented"))
    await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset(consumer_group="invented", topic="orders", queue_id=0)
    )

    assert (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        == (await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Group(group="invented"))).code
    )


async def test_an_offset_is_committed_only_for_a_queue_that_is_there(client: Client) -> None:
    """Issue 13, 5: or each invented queue id would stay in the table for ever."""

    async def commit(queue_id: int) -> int:
        header = UpdateOffset(consumer_group="billing", topic="orders", queue_id=queue_id, commit_offset=1)
        return (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code

    await client.create_topic("orders", queues=4)
    assert [ResponseCode.SUCCESS] * 4 == [await commit(queue_id) for queue_id in range(4)]
    assert ResponseCode.INVALID_PARAMETER == await commit(4)
    await client.create_topic("orders", queues=2)
    assert ResponseCode.SUCCESS == await commit(3), "a consumer finishes the queue that it has begun"


async def test_a_connection_names_a_bounded_number_of_producer_groups(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 13, 5: consumers of the same heartbeat are served."""
    monkeypatch.setattr("ternmq.broker.tables.clients.PRODUCER_GROUPS_MAX", 3)
    beat = Heartbeat(
        client_id="a",
        producer_data_set=[ProducerData(group_name=f"p{number}") for number in range(5)],
        consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="t")])],
    )
    response = await client.call(RequestCode.HEART_BEAT, None, encode(beat))

    assert ResponseCode.INVALID_PARAMETER == response.code
    assert "use the same group for all producers of a program" in (response.remark or "")
    assert ["a"] == await members(client, "g")


async def test_deleting_unknown_topics_writes_nothing_and_says_so(
    tmp_path: Path, connect: Connect, broker: Broker
) -> None:
    """Issue 13, 7: each unknown name stayed in deletedTopics.json."""
    client = await connect()
    for number in range(20):
        response = await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic=f"unknown-{number}"))
        assert f"broker-a has no topic unknown-{number}" == response.remark
    assert not (tmp_path / "store" / "deletedTopics.json").exists()

    await client.send("known", b"1")
    assert not (await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="known"))).remark
    assert ["known"] == list(json.loads((tmp_path / "store" / "deletedTopics.json").read_bytes()))


async def test_too_many_retry_queues_do_not_fail_the_heartbeat_of_other_groups(tmp_path: Path) -> None:
    """Issue 13, 14: refused when an administrator asks for them, and bounded when a file of RocketMQ has them."""
    wide = SubscriptionGroupConfig(group_name="wide", retry_queue_nums=20_000)
    async with Broker(broker_config(), store_config(tmp_path)) as broker, connecting(broker) as connect:
        response = await (await connect()).call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(wide))
        assert ResponseCode.INVALID_PARAMETER == response.code
        assert "expected 0 to 16384" in (response.remark or "")
        await (await connect()).consume("a", "other", "orders")
    table = saved(tmp_path, "subscriptionGroup.json")
    table["subscriptionGroupTable"]["wide"] = json.loads(encode(wide))
    (tmp_path / "store/config/subscriptionGroup.json").write_text(json.dumps(table))

    async with Broker(broker_config(), store_config(tmp_path)) as broker, connecting(broker) as connect:
        client = await connect()
        consumers = [ConsumerData(group_name=group) for group in ("wide", "other")]
        await client.ok(RequestCode.HEART_BEAT, None, encode(Heartbeat(client_id="a", consumer_data_set=consumers)))
        assert [["a"], ["a"]] == [await members(client, group) for group in ("wide", "other")]
