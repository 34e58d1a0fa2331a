"""Messages that could not be processed: back to the group, and to its dead letters in the end (H1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.ids import offset_id
from ternmq.wire.properties import parse
from ternmq.wire.record import MAGIC_V1, MAGIC_V2, PROPERTIES_BYTES_MAX, Record
from ternmq.wire.requests_admin import Topic
from tests.broker.calls import Caller, serving
from tests.no_delays import NO_DELAYS

RETRY, DEAD = "%RETRY%readers", "%DLQ%readers"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path, store={"message_delay_level": NO_DELAYS}) as caller:
        yield caller


async def stored(broker: Caller) -> Record:
    """A message of topic ``orders`` that a consumer has got."""
    await broker.sent("orders", b"body", flag=3, properties={"UNIQ_KEY": "U", "TAGS": "A", "DELAY": "1"})
    [record] = await broker.arrived("orders", 1)
    return record


async def set_group(broker: Caller, **settings: Any) -> None:
    body = encode(SubscriptionGroupConfig(group_name="readers", **settings))
    assert (await broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code == 0


def sentence(response: Response) -> str:
    assert response.remark is not None
    return response.remark


async def test_a_message_sent_back_comes_again_from_the_retry_topic(broker: Caller) -> None:
    """H1: with its origin, its count, and the way that it took, as RocketMQ 4.9.4 and 5.2.0 keep them."""
    record = await stored(broker)

    assert (await broker.send_back("readers", record.log_offset)).code == 0

    [again] = await broker.arrived(RETRY, 1)
    assert (bytes(again.body), again.flag, again.reconsume_times) == (b"body", 3, 1)
    assert (again.born_time_ms, again.born_host) == (record.born_time_ms, record.born_host)
    assert parse(again.properties) == parse(record.properties) | {
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": offset_id(record.store_host, record.log_offset),
        "DELAY": "3",
        "WAIT": "false",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }


async def test_the_origin_stays_the_first_through_all_retries(broker: Caller) -> None:
    """H1"""
    record = await stored(broker)
    await broker.send_back("readers", record.log_offset)
    [first] = await broker.arrived(RETRY, 1)

    await broker.send_back("readers", first.log_offset, delay_level=7)

    second = (await broker.arrived(RETRY, 2))[1]
    properties = parse(second.properties)
    assert second.reconsume_times == 2
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == offset_id(record.store_host, record.log_offset)
    assert properties["DELAY"] == "7"


@pytest.mark.parametrize("length", [120, 121, 248])
async def test_a_group_may_have_a_long_name(broker: Caller, length: int) -> None:
    """H1, C1: its retry topic has up to 255 characters, and its records are of version 2, as in RocketMQ 5."""
    group = "g" * length
    record = await stored(broker)

    assert (await broker.send_back(group, record.log_offset)).code == 0

    [again] = await broker.arrived(f"%RETRY%{group}", 1)
    assert (bytes(again.body), again.reconsume_times) == (b"body", 1)
    assert again.magic == (MAGIC_V1 if length == 120 else MAGIC_V2)
    for times in range(1, 17):
        again = (await broker.arrived(f"%RETRY%{group}", times))[-1]
        assert (await broker.send_back(group, again.log_offset)).code == 0
    [dead] = await broker.records(f"%DLQ%{group}")
    assert bytes(dead.body) == b"body"


async def test_after_the_last_attempt_a_message_is_a_dead_letter(broker: Caller) -> None:
    """H1: 16 retries by default; here the group says 2."""
    await set_group(broker, retry_max_times=2)
    record = await stored(broker)
    await broker.send_back("readers", record.log_offset)
    for retry in range(2):
        await broker.send_back("readers", (await broker.arrived(RETRY, retry + 1))[retry].log_offset)

    assert [1, 2] == [again.reconsume_times for again in await broker.records(RETRY)]
    [dead] = await broker.records(DEAD)
    assert (bytes(dead.body), dead.reconsume_times) == (b"body", 3)
    assert parse(dead.properties) == parse(record.properties) | {
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": offset_id(record.store_host, record.log_offset),
        "DELAY": "0",
        "WAIT": "false",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }
    topic = await broker.call(RequestCode.GET_TOPIC_CONFIG, Topic(topic=DEAD))
    assert decode(topic.body, TopicConfig).perm == 6


async def test_the_request_may_bring_its_own_maximum(broker: Caller) -> None:
    """H1: 0 makes a dead letter of the first failure; below 0 is no number of times."""
    record = await stored(broker)

    await broker.send_back("readers", record.log_offset, max_reconsume_times=-1)
    await broker.send_back("readers", record.log_offset, max_reconsume_times=0)

    assert len(await broker.arrived(RETRY, 1)) == 1
    assert len(await broker.records(DEAD)) == 1


async def test_a_delay_level_below_0_gives_a_message_up_at_once(broker: Caller) -> None:
    """H1"""
    record = await stored(broker)

    await broker.send_back("readers", record.log_offset, delay_level=-1)

    assert await broker.bodies(DEAD) == [b"body"]


async def test_a_group_without_retry_queues_loses_what_it_sends_back(broker: Caller) -> None:
    """H1: success, as RocketMQ answers."""
    await set_group(broker, retry_queue_nums=0)
    record = await stored(broker)

    assert (await broker.send_back("readers", record.log_offset)).code == 0
    assert (await broker.pull(RETRY)).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("log_offset", [5, 1 << 40, -1])
async def test_sending_back_what_is_not_there_is_an_error(broker: Caller, log_offset: int) -> None:
    """H1: the consumer then sends the message itself."""
    await stored(broker)

    response = await broker.send_back("readers", log_offset)

    assert response.code == ResponseCode.SYSTEM_ERROR
    assert f"look message by offset failed, {log_offset}" in sentence(response)


async def test_an_unknown_group_cannot_send_back_without_auto_creation(tmp_path: Path) -> None:
    """D2, H1"""
    async with serving(tmp_path, auto_create_subscription_group=False) as broker:
        await broker.sent("orders", b"x")

        assert (await broker.send_back("readers", 0)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_message_sent_to_the_retry_topic_is_counted_like_one_sent_back(broker: Caller) -> None:
    """H1: what Java's consumer does when sending back failed."""
    await broker.sent(RETRY, b"again", reconsume_times=1, properties={"DELAY": "4"})
    await broker.sent(RETRY, b"too often", reconsume_times=16, properties={"DELAY": "19"})
    await broker.sent(RETRY, b"its own maximum", reconsume_times=3, max_reconsume_times=3)

    [again] = await broker.arrived(RETRY, 1)
    dead = await broker.records(DEAD)
    assert (bytes(again.body), again.reconsume_times) == (b"again", 1)
    assert [b"too often", b"its own maximum"] == [bytes(record.body) for record in dead]
    assert parse(dead[0].properties)["DELAY"] == "0"


async def test_a_read_only_broker_takes_nothing_back(tmp_path: Path) -> None:
    """D1, H1"""
    async with serving(tmp_path, broker_permission=4) as broker:
        await broker.sent("orders", b"x")

        assert (await broker.send_back("readers", 0)).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("room", [0, 8, 24, 40, 80, 110, 200])
async def test_a_message_whose_properties_leave_no_room_is_tried_again_and_becomes_a_dead_letter(
    broker: Caller, room: int
) -> None:
    """H1: a record holds 32,767 bytes of properties. A copy that is refused would hold up its group for ever."""
    await set_group(broker, retry_max_times=2)
    given = {"UNIQ_KEY": "U", "TAGS": "A", "filler": "x"}
    await broker.sent("orders", b"small", properties=given)
    [small] = await broker.arrived("orders", 1)
    given["filler"] *= PROPERTIES_BYTES_MAX - room - len(small.properties) + 1
    await broker.sent("orders", b"body", properties=given)
    record = (await broker.arrived("orders", 2))[-1]
    assert PROPERTIES_BYTES_MAX - room == len(record.properties)

    assert 0 == (await broker.send_back("readers", record.log_offset)).code
    for count in (1, 2):
        again = (await broker.arrived(RETRY, count))[-1]
        assert (b"body", count) == (bytes(again.body), again.reconsume_times)
        assert given.items() <= parse(again.properties).items()
        assert 0 == (await broker.send_back("readers", again.log_offset)).code
    [dead] = await broker.records(DEAD)
    assert (b"body", 3) == (bytes(dead.body), dead.reconsume_times)
    assert given.items() <= parse(dead.properties).items()
    assert ("orders" if room >= 24 else None) == parse(dead.properties).get("RETRY_TOPIC")
