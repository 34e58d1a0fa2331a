"""Pulls over a real connection: what they find, when they wait, why they are refused (D4, F3, F8, K1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.net import lanes
from ternmq.net.stream import Stream
from ternmq.wire.bodies.clients import MessageModel
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.bodies.topics import TopicConfig, TopicConfigs
from ternmq.wire.codes import BINARY, JSON, RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.ids import java_hash
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import OffsetReply, PullReply, PullSysflag, QueryOffset
from tests.broker.calls import FAR_MS, Caller, dialled, pull, serving, v2

WAITING = PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


def outcome(response: Response) -> tuple[int, str | None, int, int, int, int]:
    """Code, status, suggested broker, next, min and max offset."""
    reply = response.read(PullReply)
    return (
        response.code,
        response.remark,
        reply.suggested_broker_id,
        reply.next_offset,
        reply.min_offset,
        reply.max_offset,
    )


def held(broker: Caller, topic: str, **fields: Any) -> asyncio.Future[Response]:
    """A pull that waits for a message; sent, not answered."""
    header = pull(topic, **({"sysflag": WAITING, "suspend_timeout_ms": FAR_MS} | fields))
    return broker.peer.start_call(RequestCode.PULL_MESSAGE, header)


async def committed(broker: Caller, topic: str, group: str = "readers") -> int:
    header = QueryOffset(consumer_group=group, topic=topic, queue_id=0, set_zero_if_not_found=False)
    response = await broker.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return response.read(OffsetReply).queue_offset if response.code == 0 else -1


# --- What is found --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_a_pull_gets_the_records_from_its_offset_on(broker: Caller, code: int) -> None:
    """F3: 11, and 361 of RocketMQ 5's lite pull."""
    for number in range(5):
        await broker.sent("orders", b"%d" % number)

    response = await broker.call(code, pull("orders", queue_offset=2, count_max=2, bytes_max=2**31 - 1))

    assert outcome(response) == (0, "FOUND", 0, 4, 0, 5)
    assert [b"2", b"3"] == [bytes(record.body) for record in unpack_records(response.body)]


@pytest.mark.parametrize(
    ("queue_id", "queue_offset", "expected"),
    [
        (0, 3, (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 0, 3, 0, 3)),
        (0, 9, (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 0, 3, 0, 3)),
        (0, -1, (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0, 0, 0, 3)),
        (1, 0, (ResponseCode.PULL_NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE", 0, 0, 0, 0)),
        (1, 7, (ResponseCode.PULL_OFFSET_MOVED, "NO_MATCHED_LOGIC_QUEUE", 0, 0, 0, 0)),
    ],
)
async def test_a_pull_outside_the_queue_says_where_to_go_on(
    broker: Caller, queue_id: int, queue_offset: int, expected: tuple[Any, ...]
) -> None:
    """F3: the codes by which clients decide to wait, go on or correct their position."""
    for _ in range(3):
        await broker.sent("orders", b"x")

    response = await broker.pull("orders", queue_offset, queue_id=queue_id)

    assert outcome(response) == expected
    assert len(response.body) == 0


async def test_tags_choose_by_their_hash_in_the_queue(broker: Caller) -> None:
    """K1"""
    for number, tag in enumerate(("A", "B", "中文", "", "C")):
        await broker.sent("orders", b"%d" % number, properties={"TAGS": tag} if tag else {})

    assert [b"0", b"2"] == await broker.bodies("orders", subscription="A || 中文")
    assert [b"0", b"1", b"2", b"3", b"4"] == await broker.bodies("orders", subscription="*")
    assert [b"0", b"1", b"2", b"3", b"4"] == await broker.bodies("orders", subscription=None)


async def test_two_tags_with_one_hash_both_pass_the_broker(broker: Caller) -> None:
    """K1: the client compares the text again."""
    assert java_hash("Aa") == java_hash("BB")
    await broker.sent("orders", b"x", properties={"TAGS": "BB"})

    assert await broker.bodies("orders", subscription="Aa") == [b"x"]


async def test_a_stretch_without_a_match_moves_the_consumer_on(broker: Caller) -> None:
    """K1: code 20, at once, even if the client could wait."""
    for _ in range(3):
        await broker.sent("orders", b"x", properties={"TAGS": "B"})

    response = await held(broker, "orders", subscription="A")

    assert outcome(response) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 0, 3, 0, 3)


async def test_the_filter_of_the_heartbeat_counts_unless_the_pull_brings_its_own(broker: Caller) -> None:
    """D3, K1"""
    await broker.sent("orders", b"a", properties={"TAGS": "A"})
    await broker.sent("orders", b"b", properties={"TAGS": "B"})
    await broker.heartbeat("readers", {"orders": "A"})

    assert await broker.bodies("orders", sysflag=0, subscription=None) == [b"a"]
    assert await broker.bodies("orders", sysflag=PullSysflag.SUBSCRIPTION, subscription="B") == [b"b"]


# --- Waiting --------------------------------------------------------------------------------------------------


async def test_a_pull_at_the_end_waits_for_the_next_message(broker: Caller) -> None:
    """F8"""
    await broker.sent("orders", b"0")
    waiting = held(broker, "orders", queue_offset=1)
    await broker.sent("orders", b"1")

    response = await waiting

    assert outcome(response) == (0, "FOUND", 0, 2, 0, 2)
    assert [b"1"] == [bytes(record.body) for record in unpack_records(response.body)]


async def test_a_pull_from_a_queue_that_is_still_empty_waits_too(broker: Caller) -> None:
    """F8"""
    await broker.sent("orders", b"elsewhere", queue_id=1)
    waiting = held(broker, "orders")
    await broker.sent("orders", b"here")

    assert [b"here"] == [bytes(record.body) for record in unpack_records((await waiting).body)]


async def test_a_burst_reaches_a_waiting_consumer_as_one_reply(broker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """F8: thirty sends of one read, one reply with thirty records."""
    # However slow the machine is: all are done in one turn.
    monkeypatch.setattr(lanes, "TURN_S", 60.0)
    await broker.sent("orders", b"first")
    waiting = held(broker, "orders", queue_offset=1)
    # Once this is answered, the pull before it on the same connection is held.
    await broker.sent("orders", b"elsewhere", queue_id=1)

    for number in range(30):
        broker.peer.start_call(RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=0), b"%d" % number)

    assert outcome(await waiting) == (0, "FOUND", 0, 31, 0, 31)


@pytest.mark.parametrize("form", [JSON, BINARY])
@pytest.mark.parametrize("body", [b"", b"small", bytes(5_000)])
async def test_a_pull_that_has_waited_is_answered_as_any_other(broker: Caller, form: int, body: bytes) -> None:
    """F3, F8: small answers are prepared frames, in JSON."""
    await broker.sent("orders", b"first")
    header = pull("orders", queue_offset=1, sysflag=WAITING, suspend_timeout_ms=FAR_MS)
    waiting = broker.peer.start_call(RequestCode.PULL_MESSAGE, header, form=form)
    await broker.sent("orders", b"elsewhere", queue_id=1)
    await broker.sent("orders", body)

    late, at_once = await waiting, await broker.call(RequestCode.PULL_MESSAGE, header, form=form)

    assert outcome(late) == (0, "FOUND", 0, 2, 0, 2)
    assert (late.fields, late.body) == (at_once.fields, at_once.body)


async def test_a_waiting_consumer_is_answered_before_the_sender(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8: both are answered in one turn of the loop, each with a write, and the message leaves with the first."""
    await broker.sent("orders", b"first")
    waiting = held(broker, "orders", queue_offset=1)
    await broker.sent("orders", b"elsewhere", queue_id=1)
    written: list[str] = []

    def flush(stream: Stream) -> None:
        if stream._out:
            written.append(stream.address)
        flush_really(stream)

    flush_really = Stream._flush
    monkeypatch.setattr(Stream, "_flush", flush)
    async with dialled(broker.peer.address) as sender:
        await sender.sent("orders", b"here")
        await waiting
        consumer, producer = broker.peer.local_address, sender.peer.local_address

    replies = [address for address in written if address in (consumer, producer)]
    assert [consumer, producer] == replies


async def test_a_waiting_consumer_sleeps_through_other_tags(broker: Caller) -> None:
    """F8, K1"""
    await broker.sent("orders", b"first")
    waiting = held(broker, "orders", queue_offset=1, subscription="A")
    await broker.sent("orders", b"not yours", properties={"TAGS": "B"})
    assert not waiting.done()

    await broker.sent("orders", b"yours", properties={"TAGS": "A"})

    assert [b"yours"] == [bytes(record.body) for record in unpack_records((await waiting).body)]


async def test_a_pull_whose_time_is_over_is_told_that_there_is_nothing(broker: Caller) -> None:
    """F8"""
    await broker.sent("orders", b"x")

    response = await held(broker, "orders", queue_offset=1, suspend_timeout_ms=1)

    assert outcome(response) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 0, 1, 0, 1)


async def test_without_long_polling_a_pull_waits_shortly(tmp_path: Path) -> None:
    """F8"""
    async with serving(tmp_path, long_polling_enable=False, short_polling_time_mills=1) as broker:
        await broker.sent("orders", b"x")

        response = await held(broker, "orders", queue_offset=1, suspend_timeout_ms=FAR_MS)

        assert response.code == ResponseCode.PULL_NOT_FOUND


async def test_pulls_beyond_the_bound_are_told_to_come_back(tmp_path: Path) -> None:
    """F8, M1"""
    async with serving(tmp_path, max_suspended_pulls=1) as broker:
        await broker.sent("orders", b"x")
        waiting = held(broker, "orders", queue_offset=1)

        assert (await held(broker, "orders", queue_offset=1)).code == ResponseCode.SYSTEM_BUSY
        await broker.sent("orders", b"y")
        assert (await waiting).code == 0


async def test_a_pull_that_is_refused_when_it_wakes_says_why(broker: Caller) -> None:
    """F8, D1: the topic may have been deleted meanwhile."""
    await broker.sent("orders", b"x")
    waiting = held(broker, "orders", queue_offset=1, suspend_timeout_ms=50)
    topic = TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4, perm=2)
    await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, encode(TopicConfigs(topic_config_list=[topic])))

    assert (await waiting).code == ResponseCode.NO_PERMISSION


# --- Progress -------------------------------------------------------------------------------------------------


async def test_a_pull_commits_the_progress_that_it_brings(broker: Caller) -> None:
    """D4"""
    await broker.sent("orders", b"x")
    sysflag = PullSysflag.SUBSCRIPTION | PullSysflag.COMMIT_OFFSET

    await broker.pull("orders", sysflag=PullSysflag.SUBSCRIPTION, commit_offset=7)
    assert await committed(broker, "orders") == -1

    await broker.pull("orders", sysflag=sysflag, commit_offset=1)
    assert await committed(broker, "orders") == 1


async def test_a_held_pull_commits_once_and_not_again_when_it_wakes(broker: Caller) -> None:
    """D4, F8: or it would undo a later commit."""
    await broker.sent("orders", b"0")
    flags = WAITING | PullSysflag.COMMIT_OFFSET
    waiting = held(broker, "orders", queue_offset=1, sysflag=flags, commit_offset=1)
    await broker.pull("orders", sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.COMMIT_OFFSET, commit_offset=5)

    await broker.sent("orders", b"1")

    assert (await waiting).code == 0
    assert await committed(broker, "orders") == 5


async def test_a_refused_pull_commits_nothing(broker: Caller) -> None:
    """D4"""
    await broker.sent("orders", b"x")

    await broker.pull("orders", queue_id=99, sysflag=5, commit_offset=5)

    assert await committed(broker, "orders") == -1


# --- Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic[unknown] not exist"),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal, topic:[orders] has 4 queues"),
        ({"queue_id": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1] is illegal"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "invalid tag expression"),
        (
            {"expression_type": "SQL92", "subscription": "a > 1"},
            ResponseCode.SYSTEM_ERROR,
            "does not support consumer to filter message by SQL92",
        ),
        ({"sysflag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "no heartbeat of group readers was received"),
        ({"consumer_group": "bad name!"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "bad name!"),
    ],
)
async def test_a_wrong_pull_is_refused_with_its_reason(
    broker: Caller, changes: dict[str, Any], code: int, sentence: str
) -> None:
    """F3"""
    await broker.sent("orders", b"x")
    fields = {"topic": "orders"} | changes

    response = await broker.pull(fields.pop("topic"), **fields)

    assert response.code == code
    assert response.remark is not None
    assert sentence in response.remark


async def test_a_subscription_must_be_in_the_heartbeat_and_as_new_as_the_client(broker: Caller) -> None:
    """D3: codes 24 and 25."""
    await broker.sent("orders", b"x")
    await broker.sent("bills", b"x")
    await broker.heartbeat("readers", {"orders": "*"}, version=10)

    unknown = await broker.pull("bills", sysflag=0, sub_version=10)
    newer = await broker.pull("orders", sysflag=0, sub_version=11)
    same = await broker.pull("orders", sysflag=0, sub_version=10)

    assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert same.code == 0


async def test_a_group_may_be_forbidden_to_consume(broker: Caller) -> None:
    """D2: at all, and in broadcast."""
    await broker.sent("orders", b"x")
    for group in (
        SubscriptionGroupConfig(group_name="off", consume_enable=False),
        SubscriptionGroupConfig(group_name="clustered", consume_broadcast_enable=False),
    ):
        await broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(group))
    await broker.heartbeat("clustered", {"orders": "*"}, model=MessageModel.BROADCASTING)

    off = await broker.pull("orders", consumer_group="off")
    broadcast = await broker.pull("orders", consumer_group="clustered", sysflag=0)
    assert (off.code, broadcast.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)

    await broker.heartbeat("clustered", {"orders": "*"})
    assert (await broker.pull("orders", consumer_group="clustered", sysflag=0)).code == 0


async def test_an_unknown_group_is_refused_without_auto_creation(tmp_path: Path) -> None:
    """D2"""
    async with serving(tmp_path, auto_create_subscription_group=False) as broker:
        await broker.sent("orders", b"x")

        assert (await broker.pull("orders")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_broker_may_be_closed_for_reading(tmp_path: Path) -> None:
    """D1"""
    async with serving(tmp_path, broker_permission=2) as broker:
        await broker.sent("orders", b"x")

        assert (await broker.pull("orders")).code == ResponseCode.NO_PERMISSION


async def test_an_sql_subscription_of_the_heartbeat_is_refused_at_the_pull(broker: Caller) -> None:
    """K2: not enabled."""
    await broker.sent("orders", b"x")
    await broker.heartbeat("readers", {"orders": "a > 1"}, kind="SQL92")

    assert (await broker.pull("orders", sysflag=0, sub_version=1)).code == ResponseCode.SYSTEM_ERROR


async def test_only_tools_look_at_what_waits_for_its_time(broker: Caller) -> None:
    """I1: a consumer would get it too early."""
    await broker.sent("orders", b"later", properties={"DELAY": "2"})

    assert (await broker.pull("SCHEDULE_TOPIC_XXXX", queue_id=1)).code == ResponseCode.NO_PERMISSION
    assert [b"later"] == await broker.bodies("SCHEDULE_TOPIC_XXXX", queue_id=1, consumer_group="TOOLS_CONSUMER")
