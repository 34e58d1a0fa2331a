"""Topics of the system: clients do not write to them, and get nothing out of them before its time (D1, F9, I1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq import names
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import (
    Notification,
    PeekMessage,
    PollingInfo,
    PullSysflag,
    ResetOffset,
    UpdateOffset,
)
from ternmq.wire.requests_admin import CloneGroupOffset, UpdateTopic
from tests.broker.calls import Caller, pull, serving, v1, v2
from tests.broker.popping import pop

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
INTERNAL = ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", REVIVE]
UNSENDABLE = [
    *sorted(names.UNSENDABLE_TOPICS),
    REVIVE,
    "rmq_sys_REVIVE_LOG_other",
    "rmq_sys_wheel_timer",
    "rmq_sys_anything",
    "TERNMQ_SPARK_STAGE",
    "TERNMQ_SPARK_LEDGER",
]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


async def topics(broker: Caller) -> set[str]:
    response = await broker.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    return set(decode(response.body, TopicTable).topic_config_table)


@pytest.mark.parametrize("topic", UNSENDABLE)
async def test_no_send_of_any_kind_reaches_or_creates_a_topic_of_the_system(broker: Caller, topic: str) -> None:
    """Point 3, D1: single in both forms, batch, with a delay level, and as a reply."""
    before = await topics(broker)
    properties = "UNIQ_KEY\x01U\x02"

    responses = [
        await broker.send(topic, b"x"),
        await broker.send(topic, b"x", queue_id=-1, properties=properties),
        await broker.send(topic, b"x", properties={"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": "0"}),
        await broker.call(RequestCode.SEND_MESSAGE, v1(topic, queue_id=0, properties=properties), b"x"),
        await broker.send_batch(topic, [(b"x", {}), (b"y", {})]),
        await broker.call(RequestCode.SEND_REPLY_MESSAGE_V2, v2(topic, queue_id=0, properties=properties), b"x"),
    ]

    assert {ResponseCode.NO_PERMISSION} == {response.code for response in responses}
    assert before == await topics(broker)


async def test_topics_that_clients_write_stay_open(broker: Caller) -> None:
    """Point 3: traces, replies, retries and dead letters, and the sink's own topics for the sink itself."""
    open_to_all = [
        "RMQ_SYS_TRACE_TOPIC",
        "rmq_sys_TRACE_DATA_cn-hangzhou",
        "DefaultCluster_REPLY_TOPIC",
        "BenchmarkTest",
        "%RETRY%readers",
        "%DLQ%readers",
        "broker-a",
    ]
    for topic in open_to_all:
        await broker.sent(topic, b"x")
    for topic in ("TERNMQ_SPARK_STAGE", "TERNMQ_SPARK_LEDGER"):
        for _ in range(2):
            await broker.sent(topic, b"x", producer_group=names.SPARK_GROUP, properties={"UNIQ_KEY": "U"})
        # What the sink may do, others may not do after it.
        assert (await broker.send(topic, b"x", properties={"UNIQ_KEY": "U"})).code == ResponseCode.NO_PERMISSION


async def test_a_trace_topic_of_ones_own_name_can_be_written(tmp_path: Path) -> None:
    """Point 3: ``msgTraceTopicName`` may be any."""
    async with serving(tmp_path, trace_topic_enable=True, msg_trace_topic_name="rmq_sys_traces") as broker:
        await broker.sent("rmq_sys_traces", b"x")


async def test_a_tool_cannot_make_or_change_topics_of_the_system(broker: Caller) -> None:
    """Point 3"""
    for topic in (*INTERNAL, "rmq_sys_anything", "TRANS_CHECK_MAX_TIME_TOPIC"):
        header = UpdateTopic(topic=topic, read_queue_nums=1, write_queue_nums=1, perm=6)
        response = await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert response.code == ResponseCode.INVALID_PARAMETER


async def test_a_delayed_message_is_not_to_be_had_before_its_time(broker: Caller) -> None:
    """Point 10: neither by a pop, nor by a pull, nor by sending back what no consumer has got."""
    await broker.sent("orders", b"later", properties={"DELAY": "18"})
    [waiting] = await broker.records("SCHEDULE_TOPIC_XXXX", queue_id=17, consumer_group="TOOLS_CONSUMER")

    popped = await pop(broker, "SCHEDULE_TOPIC_XXXX")
    pulled = await broker.pull("SCHEDULE_TOPIC_XXXX", queue_id=17)
    sent_back = await broker.send_back("readers", waiting.log_offset)

    assert {ResponseCode.NO_PERMISSION} == {response.code for response in (popped, pulled, sent_back)}
    assert (b"", b"") == (bytes(popped.body), bytes(pulled.body))
    assert [] == await broker.bodies("%RETRY%readers")


@pytest.mark.parametrize("topic", INTERNAL)
async def test_every_way_to_consume_from_an_internal_topic_is_closed(broker: Caller, topic: str) -> None:
    """Point 10: tools may look, by a pull; only the broker moves offsets there."""
    group, tools = "readers", "TOOLS_CONSUMER"
    place: dict[str, Any] = {"consumer_group": group, "topic": topic, "queue_id": 0}
    await broker.heartbeat(group, {topic: "*"})

    refused = [
        await broker.pull(topic),
        await broker.pull(topic, sysflag=0, consumer_group=group, sub_version=1),
        await broker.call(RequestCode.LITE_PULL_MESSAGE, pull(topic)),
        await broker.pull(topic, consumer_group=names.REVIVE_GROUP, sysflag=PullSysflag.SUBSCRIPTION | 1),
        await pop(broker, topic),
        await pop(broker, topic, consumer_group=tools),
        await pop(broker, topic, queue_id=0, order=True),
        await broker.call(RequestCode.PEEK_MESSAGE, PeekMessage(**place, count_max=1)),
        await broker.call(RequestCode.NOTIFICATION, Notification(**place)),
        await broker.call(RequestCode.POLLING_INFO, PollingInfo(**place)),
        await broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateOffset(**place, commit_offset=7)),
        await broker.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateOffset(**(place | {"consumer_group": names.REVIVE_GROUP}), commit_offset=7),
        ),
        await broker.call(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset(topic=topic, group=group, time_ms=-1, force=True)
        ),
        await broker.call(
            RequestCode.CLONE_GROUP_OFFSET,
            CloneGroupOffset(source_group=tools, target_group=names.REVIVE_GROUP, topic=topic),
        ),
    ]

    assert [ResponseCode.NO_PERMISSION] * len(refused) == [response.code for response in refused]
    # Halves of transactions are not even shown to tools (J1).
    shown = ResponseCode.NO_PERMISSION if topic == names.HALF_TOPIC else ResponseCode.PULL_NOT_FOUND
    assert (await broker.pull(topic, consumer_group=tools)).code == shown
