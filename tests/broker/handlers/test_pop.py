"""Pops, acks and changes over a real connection (F8, F9)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.broker import Broker
from ternmq.pop import buffer
from ternmq.wire.bodies.clients import (
    AssignmentQuery,
    Assignments,
    BatchAck,
    BatchAcks,
    GroupRequestMode,
    RequestMode,
    RequestModes,
)
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.handles import ALL_QUEUES, RETRY_V2, parse_counts
from ternmq.wire.header import Response
from ternmq.wire.record import PROPERTIES_BYTES_MAX, unpack_records
from ternmq.wire.requests import (
    AckMessage,
    ChangeInvisibleTime,
    Notification,
    NotificationReply,
    OffsetReply,
    PeekMessage,
    PollingInfo,
    PollingInfoReply,
    PopReply,
    QueryOffset,
    ResetOffset,
)
from ternmq.wire.requests_admin import DeleteGroup, Topic
from tests.broker.calls import FAR_MS, Caller, dialled, serving, settings, small_store, v2
from tests.broker.popping import Popped, ack, change, held_pop, messages, pop, popped


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


def bodies(found: list[Popped]) -> list[bytes]:
    return [message.body for message in found]


async def committed(broker: Caller, topic: str, queue_id: int = 0) -> int:
    header = QueryOffset(consumer_group="poppers", topic=topic, queue_id=queue_id, set_zero_if_not_found=False)
    response = await broker.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return response.read(OffsetReply).queue_offset if response.code == 0 else -1


async def test_a_popped_message_is_hidden_from_the_rest_of_its_group(broker: Caller) -> None:
    """F9: but not from other groups."""
    for number in range(3):
        await broker.sent("orders", b"%d" % number)

    assert [b"0", b"1"] == bodies(await popped(broker, "orders", count_max=2))
    assert [b"2"] == bodies(await popped(broker, "orders"))
    assert [] == await popped(broker, "orders")
    assert [b"0", b"1", b"2"] == bodies(await popped(broker, "orders", consumer_group="others"))


async def test_what_is_not_acked_comes_again_when_its_time_is_over(broker: Caller) -> None:
    """F9: once more counted, to any consumer; what was acked does not."""
    for number in range(3):
        await broker.sent("orders", b"%d" % number, properties={"TAGS": "A", "KEYS": "k"})
    first, second, third = await popped(broker, "orders", invisible_ms=300)
    await ack(broker, second)

    again = await popped(broker, "orders", poll_ms=FAR_MS)
    while len(again) < 2:
        again += await popped(broker, "orders", poll_ms=FAR_MS)

    assert [b"0", b"2"] == bodies(again)
    assert [1, 1] == [message.record.reconsume_times for message in again]
    assert [(first.topic, "A", "k")] * 2 == [
        (message.topic, message.properties["TAGS"], message.properties["KEYS"]) for message in again
    ]
    assert [first.properties["1ST_POP_TIME"]] * 2 == [message.properties["1ST_POP_TIME"] for message in again]
    for message in again:
        await ack(broker, message)
    # Too late, and no harm done.
    await ack(broker, third)
    assert [] == await popped(broker, "orders")


async def test_a_message_whose_properties_leave_no_room_comes_again(broker: Caller) -> None:
    """F9: its copy has no room for the time of the first pop. If it was refused, nothing behind it would come again."""
    await broker.sent("orders", b"small", properties={"filler": "x"})
    [small] = await broker.arrived("orders", 1)
    room = PROPERTIES_BYTES_MAX - len(small.properties)
    await broker.sent("orders", b"full", properties={"filler": "x" * (room + 1)})
    await broker.sent("orders", b"last")
    got: list[bytes] = []
    while len(got) < 6:
        reply = await pop(broker, "orders", invisible_ms=300 if len(got) < 3 else FAR_MS, poll_ms=FAR_MS)
        got += [bytes(each.body) for each in unpack_records(reply.body)]
    assert [[b"full", b"last", b"small"]] * 2 == [sorted(got[:3]), sorted(got[3:])]


async def test_a_group_does_not_pop_the_retries_of_a_group_with_a_similar_name(broker: Caller) -> None:
    """F9, H1: %RETRY%poppers_orders is the retry topic of group poppers_orders, and would be that of what poppers
    popped from orders. If there is such a group, the latter has the second form."""
    await broker.sent("orders", b"1")
    [record] = await broker.arrived("orders", 1)
    assert 0 == (await broker.send_back("poppers_orders", record.log_offset, delay_level=1)).code
    await broker.arrived("%RETRY%poppers_orders", 1)

    assert [b"1"] == bodies(await popped(broker, "orders", invisible_ms=300))
    [again] = await popped(broker, "orders", poll_ms=FAR_MS)
    assert (1, RETRY_V2) == (again.record.reconsume_times, again.handle.retry)
    await ack(broker, again)
    assert [] == await popped(broker, "orders")
    assert 1 == len(await broker.records("%RETRY%poppers_orders"))


async def test_retries_of_the_second_form_are_read_when_the_similar_group_is_gone(broker: Caller) -> None:
    """F9: they were written there while it existed."""
    await broker.sent("orders", b"1")
    [record] = await broker.arrived("orders", 1)
    assert 0 == (await broker.send_back("poppers_orders", record.log_offset, delay_level=1)).code
    await broker.arrived("%RETRY%poppers_orders", 1)
    assert [b"1"] == bodies(await popped(broker, "orders", invisible_ms=300))
    await broker.arrived("%RETRY%poppers+orders", 1)

    gone = DeleteGroup(group_name="poppers_orders")
    assert 0 == (await broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code

    # Beside it comes what the other group left: its retry topic is that of the first form now.
    found = await popped(broker, "orders", poll_ms=FAR_MS)
    assert (1, RETRY_V2) in [(each.record.reconsume_times, each.handle.retry) for each in found]


async def test_a_held_pop_is_answered_by_the_next_message(broker: Caller) -> None:
    """F8"""
    await broker.sent("orders", b"0")
    await popped(broker, "orders")
    waiting = held_pop(broker, "orders", poll_ms=FAR_MS)

    await broker.sent("orders", b"1")

    response = await waiting
    assert response.code == 0
    assert response.read(PopReply).rest_count == 0


async def test_a_message_is_hidden_from_when_it_was_handed_out_on(broker: Caller) -> None:
    """F8, F9: not from when it was asked for, by whatever clock; its time might be over before it begins."""
    await broker.sent("orders", b"0")
    (before,) = await popped(broker, "orders")
    waiting = held_pop(broker, "orders", poll_ms=FAR_MS, born_time_ms=1)

    await broker.sent("orders", b"1")

    assert (await waiting).read(PopReply).pop_time_ms >= before.handle.pop_time_ms


async def test_one_message_wakes_one_of_those_who_wait(broker: Caller) -> None:
    """F8: the others go on waiting."""
    await broker.sent("orders", b"0")
    await popped(broker, "orders")
    waiting = [held_pop(broker, "orders", poll_ms=FAR_MS) for _ in range(3)]

    await broker.sent("orders", b"1")
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await broker.sent("orders", b"2")
    done_later, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    assert (1, 1, 1) == (len(done), len(done_later), len(pending))


async def test_what_one_leaves_in_another_queue_wakes_the_next(broker: Caller) -> None:
    """F8, F9: two messages come at once, and the pop that is woken takes only one."""
    for queue_id in (0, 1):
        await broker.sent("orders", b"old", queue_id=queue_id)
    await popped(broker, "orders")
    waiting = [held_pop(broker, "orders", count_max=1, poll_ms=FAR_MS) for _ in range(2)]
    sending = [
        broker.peer.start_call(RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=queue_id), b"new")
        for queue_id in (0, 1)
    ]

    async with asyncio.timeout(FAR_MS / 2000):
        await asyncio.gather(*sending, *waiting)


async def test_a_pop_that_waits_in_vain_is_told_so_with_all_numbers(broker: Caller) -> None:
    """F8: Java reads the numeric fields whatever the code."""
    await broker.sent("orders", b"0")
    await popped(broker, "orders")

    response = await pop(broker, "orders", poll_ms=10)

    assert response.code == ResponseCode.POLLING_TIMEOUT
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= response.fields.keys()


async def test_a_changed_invisible_time_counts_from_now_on(broker: Caller) -> None:
    """F9: the new handle is good, the old one is not."""
    await broker.sent("orders", b"0")
    (message,) = await popped(broker, "orders", invisible_ms=FAR_MS)

    response, changed = await change(broker, message, invisible_ms=FAR_MS)
    assert response.code == 0
    response, _ = await change(broker, changed, invisible_ms=200)
    assert response.code == 0

    refused, _ = await change(broker, message, invisible_ms=FAR_MS)
    assert refused.code == ResponseCode.NO_MESSAGE
    (again,) = await popped(broker, "orders", poll_ms=FAR_MS)
    assert (again.body, again.record.reconsume_times) == (b"0", 1)


async def test_a_handle_that_passed_the_proxy_is_taken_by_acks_and_changes(broker: Caller) -> None:
    """F9, issue 13.15: the proxy appends the log offset as a ninth field."""
    for body in (b"0", b"1"):
        await broker.sent("orders", body)
    first, second = await popped(broker, "orders")
    handle = first.handle.text + " 4096"
    fields: dict[str, Any] = {"consumer_group": "poppers", "topic": "orders", "queue_id": 0, "extra_info": handle}

    header = ChangeInvisibleTime(queue_offset=first.handle.queue_offset, invisible_ms=FAR_MS, **fields)
    assert 0 == (await broker.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)).code
    done = AckMessage(queue_offset=second.handle.queue_offset, **fields)
    assert 0 == (await broker.call(RequestCode.ACK_MESSAGE, done)).code


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, {"topic": "missing"}),
        (ResponseCode.MESSAGE_ILLEGAL, {"queueId": "99"}),
        (ResponseCode.NO_MESSAGE, {"offset": "77"}),
        (ResponseCode.NO_MESSAGE, {}),
        (ResponseCode.INVALID_PARAMETER, {"extraInfo": "none"}),
        (ResponseCode.SYSTEM_ERROR, {"offset": "x"}),
    ],
)
async def test_a_change_that_is_refused_is_told_so_with_all_numbers(
    broker: Caller, code: int, changes: dict[str, str]
) -> None:
    """F9, issue 13.15: Java's client reads them before the code, and without them reports a broken answer instead.

    Of all codes that clients and tools of 4.9.4 and 5.2.0 decode this is the only one read that way.
    """
    await broker.sent("orders", b"0")
    (message,) = await popped(broker, "orders")
    await ack(broker, message)
    fields = {
        "consumerGroup": "poppers",
        "topic": "orders",
        "queueId": "0",
        "extraInfo": message.handle.text,
        "offset": "0",
        "invisibleTime": "1000",
    }

    response = await broker.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, more_fields=fields | changes)

    assert code == response.code, response.remark
    assert {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"} == response.fields


# --- What a pop gets ------------------------------------------------------------------------------------------


async def test_a_pop_of_all_queues_gathers_up_to_its_number(broker: Caller) -> None:
    """F9: and says how many are left; one of a queue keeps to it."""
    for number in range(40):
        await broker.sent("orders", b"%d" % number, queue_id=number % 4)

    (one,) = await popped(broker, "orders", queue_id=2, count_max=1)
    response = await pop(broker, "orders", count_max=32)

    assert b"2" == one.body
    assert 7 == response.read(PopReply).rest_count
    assert 32 == len(messages(response, "poppers", "orders"))
    assert 7 == len(await popped(broker, "orders"))


async def test_a_pop_takes_what_its_filter_lets_through_and_moves_on(broker: Caller) -> None:
    """F9, K1: handles name the right offsets although there are gaps."""
    for number in range(6):
        await broker.sent("orders", b"%d" % number, properties={"TAGS": "AB"[number % 2]})

    found = await popped(broker, "orders", subscription="B")
    assert [b"1", b"3", b"5"] == bodies(found)
    for message in found:
        await ack(broker, message)

    assert 6 == await committed(broker, "orders")


async def test_a_filter_is_not_held_up_by_much_that_it_leaves_out(tmp_path: Path) -> None:
    """F8, F9, K1: more than one pop looks through at once; the next look does not wait for a message to come."""
    async with serving(tmp_path, store={"max_filter_message_size": 20}) as broker:
        for number in range(200):
            await broker.sent("orders", b"%d" % number, properties={"TAGS": "A"})
        await broker.sent("orders", b"wanted", properties={"TAGS": "B"})

        async with asyncio.timeout(FAR_MS / 2000):
            found = await popped(broker, "orders", subscription="B", poll_ms=FAR_MS)

        assert [b"wanted"] == bodies(found)


async def test_old_messages_are_read_beside_the_loop_and_popped_once(tmp_path: Path) -> None:
    """F9, C9: with nothing taken to be in memory; with a filter as well."""
    async with serving(tmp_path, store={"access_message_in_memory_max_ratio": 0}) as broker:
        for number in range(6):
            await broker.sent("orders", b"%d" % number, queue_id=number % 2, properties={"TAGS": "AB"[number % 2]})

        found = await popped(broker, "orders") + await popped(broker, "orders")
        by_tag = await popped(broker, "orders", consumer_group="others", subscription="B")

        assert [b"%d" % number for number in range(6)] == sorted(bodies(found))
        assert [b"1", b"3", b"5"] == bodies(by_tag)


async def test_a_new_group_may_begin_behind_what_is_old(tmp_path: Path) -> None:
    """F6, F9: with initMode 1, unless the queue is young; from then on it misses nothing."""
    async with serving(tmp_path, store={"access_message_in_memory_max_ratio": 0}) as broker:
        await broker.sent("orders", b"old")

        assert [] == await popped(broker, "orders", init_mode=1)
        await broker.sent("orders", b"new")
        assert [b"new"] == bodies(await popped(broker, "orders", init_mode=1))
        assert [b"old", b"new"] == bodies(await popped(broker, "orders", init_mode=0, consumer_group="others"))


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"count_max": 33}, ResponseCode.INVALID_PARAMETER, "expected 1 to 32"),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "has 4 queues"),
        ({"topic": "missing"}, ResponseCode.TOPIC_NOT_EXIST, "apply first"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "invalid tag expression"),
        ({"consumer_group": "bad group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "not allowed"),
    ],
)
async def test_a_pop_that_cannot_be_is_refused_with_the_reason(
    broker: Caller, fields: dict[str, Any], code: int, words: str
) -> None:
    """F9"""
    await broker.sent("orders", b"0")

    response = await pop(broker, **({"topic": "orders"} | fields))

    assert code == response.code
    assert words in (response.remark or "")


async def test_a_full_house_is_told_to_wait(tmp_path: Path) -> None:
    """F8: POLLING_FULL, with the numbers that Java reads; polling info counts the pops that wait."""
    async with serving(tmp_path, pop_polling_size=1) as broker:
        await broker.sent("orders", b"0")
        await popped(broker, "orders")
        waiting = held_pop(broker, "orders", poll_ms=FAR_MS)

        response = await pop(broker, "orders", poll_ms=FAR_MS)
        header = PollingInfo(consumer_group="poppers", topic="orders", queue_id=ALL_QUEUES)
        info = await broker.call(RequestCode.POLLING_INFO, header)

        assert (ResponseCode.POLLING_FULL, 0) == (response.code, response.read(PopReply).rest_count)
        assert 1 == info.read(PollingInfoReply).polling_count
        await broker.sent("orders", b"1")
        assert 0 == (await waiting).code


async def test_a_pop_of_one_queue_is_not_woken_by_another(broker: Caller) -> None:
    """F8"""
    await broker.sent("orders", b"0")
    await popped(broker, "orders")
    waiting = held_pop(broker, "orders", queue_id=1, poll_ms=FAR_MS)

    await broker.sent("orders", b"1", queue_id=0)
    await broker.sent("orders", b"2", queue_id=1)

    assert [b"2"] == bodies(messages(await waiting, "poppers", "orders"))
    assert [b"1"] == bodies(await popped(broker, "orders"))


async def test_who_is_gone_takes_no_messages_with_him(tmp_path: Path) -> None:
    """F8: a message that comes goes to the next pop that waits."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as stays:
        await stays.sent("orders", b"0")
        await popped(stays, "orders")
        async with dialled(broker.address) as leaves:
            held_pop(leaves, "orders", poll_ms=FAR_MS).add_done_callback(asyncio.Future.exception)
            header = PollingInfo(consumer_group="poppers", topic="orders", queue_id=ALL_QUEUES)
            while not (await leaves.call(RequestCode.POLLING_INFO, header)).read(PollingInfoReply).polling_count:
                pass
        waiting = held_pop(stays, "orders", poll_ms=FAR_MS)

        await stays.sent("orders", b"1")

        assert [b"1"] == bodies(messages(await waiting, "poppers", "orders"))


async def test_a_reply_does_not_grow_beyond_a_frame(tmp_path: Path) -> None:
    """F9, B1: 8 messages of 1 MiB, each in a queue of its own, are not one reply."""
    async with serving(tmp_path, store={"mapped_file_size_commit_log": 64 << 20}) as broker:
        for number in range(12):
            await broker.sent("orders", bytes(1 << 20), queue_id=number % 8, default_topic_queue_nums=8)

        sizes = []
        while found := await popped(broker, "orders"):
            sizes.append(len(found))

        assert (12, True) == (sum(sizes), max(sizes) <= 4)


async def test_too_much_in_flight_stops_pops_and_changes(broker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: what is acked makes room."""
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")
    (message,) = await popped(broker, "orders", count_max=1)
    monkeypatch.setattr(buffer, "IN_FLIGHT_MAX", 1)

    response, _ = await change(broker, message, invisible_ms=1)
    assert ResponseCode.SYSTEM_BUSY == response.code
    assert ResponseCode.POLLING_FULL == (await pop(broker, "orders", poll_ms=FAR_MS)).code
    await ack(broker, message)

    assert [b"1"] == bodies(await popped(broker, "orders"))


# --- Acks and changes -----------------------------------------------------------------------------------------


async def test_acks_move_the_groups_offset(broker: Caller) -> None:
    """D4, F9: in the order of the pops."""
    for number in range(4):
        await broker.sent("orders", b"%d" % number)
    first, second, third = await popped(broker, "orders", count_max=3)

    await ack(broker, third)
    await ack(broker, first)
    assert -1 == await committed(broker, "orders")
    await ack(broker, second)

    assert 3 == await committed(broker, "orders")


async def test_many_messages_are_acked_at_once(broker: Caller) -> None:
    """F9: bits of queue offsets behind the first, in base64; of retry topics, too."""
    for number in range(12):
        await broker.sent("orders", b"%d" % number)
    found = await popped(broker, "orders")

    assert 0 == (await batch_ack(broker, (found[0], 0b1111_1111_1101))).code
    assert -1 == await committed(broker, "orders")
    await ack(broker, found[1])
    assert 12 == await committed(broker, "orders")
    assert ResponseCode.NO_MESSAGE == (await broker.call(RequestCode.BATCH_ACK_MESSAGE, None, b'{"acks":[]}')).code


async def batch_ack(broker: Caller, *acks: tuple[Popped, int]) -> Response:
    """Acks of several pops, each with the bits of messages from its first on."""
    body = BatchAcks(
        broker_name="broker-a",
        acks=[
            BatchAck(**(_ack_fields(first) | {"bits": base64.b64encode(bits.to_bytes(2, "little")).decode()}))
            for first, bits in acks
        ],
    )
    return await broker.call(RequestCode.BATCH_ACK_MESSAGE, None, encode(body))


def _ack_fields(first: Popped) -> dict[str, Any]:
    """An ack of a message, the first of its pop."""
    return {
        "consumer_group": "poppers",
        "topic": "orders",
        "start_offset": first.handle.start_offset,
        "queue_id": first.handle.queue_id,
        "revive_queue_id": first.handle.revive_queue_id,
        "pop_time_ms": first.handle.pop_time_ms,
        "invisible_ms": first.handle.invisible_ms,
        "retry": str(first.handle.retry),
        "bits": "AQ==",
    }


async def test_a_batch_of_acks_is_bounded(broker: Caller) -> None:
    """Issue 13, 4: in check points, and in messages of each, of which a pop has 32."""
    await broker.sent("orders", b"0")
    (first,) = await popped(broker, "orders")
    too_many = [BatchAck(**(_ack_fields(first) | {"bits": base64.b64encode(bytes([255] * 5)).decode()}))]
    too_often = [BatchAck(**_ack_fields(first))] * 5_000

    for acks, reason in (
        (too_many, "40 messages in one ack"),
        (too_often, "the batch has 5000 acks, more than the 1024"),
    ):
        body = encode(BatchAcks(broker_name="broker-a", acks=acks))
        response = await broker.call(RequestCode.BATCH_ACK_MESSAGE, None, body)
        assert ResponseCode.INVALID_PARAMETER == response.code
        assert reason in (response.remark or "")


async def test_an_ack_of_a_retry_topic_that_there_is_none_of_means_the_topic_itself(broker: Caller) -> None:
    """B5: «²» is a digit to Python, and no number."""
    await broker.sent("orders", b"0")
    (first,) = await popped(broker, "orders")
    odd = BatchAcks(broker_name="broker-a", acks=[BatchAck(**(_ack_fields(first) | {"retry": "²"}))])

    assert 0 == (await broker.call(RequestCode.BATCH_ACK_MESSAGE, None, encode(odd))).code
    assert 1 == await committed(broker, "orders")


async def test_messages_from_a_retry_topic_are_acked_at_once_too(broker: Caller) -> None:
    """F9: the batch names the topic, and says which of its retry topics is meant."""
    await broker.sent("orders", b"0")
    await popped(broker, "orders", invisible_ms=1)
    (message,) = await popped(broker, "orders", poll_ms=FAR_MS)

    assert 0 == (await batch_ack(broker, (message, 0b1))).code

    assert 1 == await committed(broker, message.real_topic)


async def test_an_ack_of_a_batch_that_cannot_be_does_not_hold_up_the_others(broker: Caller) -> None:
    """F9: the second message was not handed out in order; the answer says so, and all others are done."""
    for queue_id in (0, 1):
        for number in range(2):
            await broker.sent("orders", b"%d" % number, queue_id=queue_id)
    (first,) = await popped(broker, "orders", queue_id=0, order=True, count_max=1)
    other, _ = await popped(broker, "orders", queue_id=1)

    response = await batch_ack(broker, (first, 0b11), (other, 0b11))

    assert ResponseCode.MESSAGE_ILLEGAL == response.code
    assert [1, 2] == [await committed(broker, "orders", queue_id) for queue_id in (0, 1)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"queue_id": 9}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queue_offset": 7}, ResponseCode.NO_MESSAGE),
        ({"extra_info": "no handle"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "missing"}, ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_an_ack_that_cannot_be_is_refused(broker: Caller, changes: dict[str, Any], code: int) -> None:
    """F9"""
    await broker.sent("orders", b"0")
    (message,) = await popped(broker, "orders")
    given: dict[str, Any] = {
        "consumer_group": "poppers",
        "topic": "orders",
        "queue_id": 0,
        "extra_info": message.handle.text,
        "queue_offset": 0,
    }

    response = await broker.call(RequestCode.ACK_MESSAGE, AckMessage(**(given | changes)))

    assert code == response.code


async def test_retries_are_popped_before_others_now_and_then(tmp_path: Path) -> None:
    """F9: always, if popFromRetryProbability is 100."""
    async with serving(tmp_path, pop_from_retry_probability=100) as broker:
        await broker.sent("orders", b"first")
        await popped(broker, "orders", invisible_ms=1)
        (again,) = await popped(broker, "orders", poll_ms=FAR_MS)
        assert (b"first", 1) == (again.body, again.handle.retry)
        await broker.sent("orders", b"later")
        waiting = held_pop(broker, "orders", queue_id=1, poll_ms=FAR_MS)
        await change(broker, again, invisible_ms=1)

        # The pop that waits for another queue gets it from the retry topic; the pop that comes then, the next one.
        (third,) = messages(await waiting, "poppers", "orders")
        await change(broker, third, invisible_ms=1)
        told = Notification(consumer_group="poppers", topic="orders", queue_id=1, poll_ms=FAR_MS)
        assert (
            (await broker.call(RequestCode.NOTIFICATION, told, timeout_ms=FAR_MS)).read(NotificationReply).has_message
        )

        assert [(b"first", 3)] == [
            (message.body, message.record.reconsume_times) for message in await popped(broker, "orders", count_max=1)
        ]


async def test_retry_topics_of_the_old_kind_are_popped_when_the_new_kind_is_written(tmp_path: Path) -> None:
    """F9: enableRetryTopicV2, with retrieveMessageFromPopRetryTopicV1 as long as there is something."""
    async with serving(tmp_path) as broker:
        await broker.sent("orders", b"old")
        await popped(broker, "orders", invisible_ms=1)
        (message,) = await popped(broker, "orders", poll_ms=FAR_MS)
        assert (b"old", 1) == (message.body, message.handle.retry)
    async with serving(tmp_path, enable_retry_topic_v2=True) as broker:
        await change(broker, message, invisible_ms=1)
        (message,) = await popped(broker, "orders", poll_ms=FAR_MS)
        assert (b"old", 1, 2) == (message.body, message.handle.retry, message.record.reconsume_times)
        await broker.sent("orders", b"new")
        await popped(broker, "orders", invisible_ms=1)
        (message,) = await popped(broker, "orders", poll_ms=FAR_MS)
        assert (b"new", 2) == (message.body, message.handle.retry)


# --- Order ----------------------------------------------------------------------------------------------------


async def test_an_ordered_pop_waits_for_the_one_before(broker: Caller) -> None:
    """F9: its handles name no revive queue; an ack frees the queue and wakes the pop that waits."""
    for number in range(4):
        await broker.sent("orders", b"%d" % number)
    first, second = await popped(broker, "orders", queue_id=0, order=True, count_max=2)
    assert first.handle.is_ordered
    waiting = held_pop(broker, "orders", queue_id=0, order=True, count_max=2, poll_ms=FAR_MS)

    await ack(broker, second)
    assert 0 == await committed(broker, "orders")
    await ack(broker, first)
    response = await waiting

    assert 2 == await committed(broker, "orders")
    assert [b"2", b"3"] == bodies(messages(response, "poppers", "orders"))
    assert "0 0 0" == response.read(PopReply).order_count_info


async def test_an_ordered_change_counts_from_now_on(broker: Caller) -> None:
    """F9: not from the pop."""
    await broker.sent("orders", b"0")
    (message,) = await popped(broker, "orders", queue_id=0, order=True)
    later_ms = message.handle.pop_time_ms
    while later_ms == message.handle.pop_time_ms:
        later_ms = (await pop(broker, "orders", consumer_group="others")).read(PopReply).pop_time_ms

    _, changed = await change(broker, message, invisible_ms=1_000)

    assert changed.handle.pop_time_ms + changed.handle.invisible_ms >= later_ms + 1_000


async def test_an_ordered_message_that_failed_comes_again_in_its_place_and_counted(broker: Caller) -> None:
    """F9: its consumer has made it visible at once."""
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")
    (message,) = await popped(broker, "orders", queue_id=0, order=True, count_max=1)

    response, _ = await change(broker, message, invisible_ms=0)
    assert response.code == 0
    again = await pop(broker, "orders", queue_id=0, order=True, poll_ms=FAR_MS)

    assert [b"0", b"1"] == bodies(messages(again, "poppers", "orders"))
    assert ({0: 0}, {(0, 0): 1}) == parse_counts(again.read(PopReply).order_count_info)


async def test_a_held_ordered_pop_wakes_at_a_shortened_time(broker: Caller) -> None:
    """F8, F9, issue 13.15: the message hidden longest is acked after another's time was made short."""
    for body in (b"0", b"1", b"2"):
        await broker.sent("orders", body)
    first, second, third = await popped(broker, "orders", queue_id=0, order=True, invisible_ms=FAR_MS)
    held = held_pop(broker, "orders", queue_id=0, order=True, poll_ms=2 * FAR_MS)
    await ack(broker, first)
    await change(broker, second, invisible_ms=300)
    await ack(broker, third)

    async with asyncio.timeout(FAR_MS / 2_000):  # far less than the time of the third message
        assert [b"1", b"2"] == bodies(messages(await held, "poppers", "orders"))


@pytest.mark.parametrize("invisible_ms", [2**63 - 1, -1])
async def test_a_time_that_does_not_fit_is_refused(broker: Caller, invisible_ms: int) -> None:
    """F9, issue 13: its end is a number in replies and files, which Java reads as a long."""
    await broker.sent("orders", b"0")
    fields: dict[str, Any] = {"queue_id": 0, "order": True, "count_max": 1}

    refused = await pop(broker, "orders", invisible_ms=invisible_ms, **fields)
    assert (ResponseCode.SYSTEM_ERROR, True) == (refused.code, "invisibleTime" in (refused.remark or ""))
    (message,) = await popped(broker, "orders", **fields)
    refused, _ = await change(broker, message, invisible_ms=invisible_ms)
    assert (ResponseCode.SYSTEM_ERROR, True) == (refused.code, "invisibleTime" in (refused.remark or ""))
    await ack(broker, message)


async def test_an_attempt_id_has_a_bound(broker: Caller) -> None:
    """F9, issue 13: it is kept with the queue."""
    await broker.sent("orders", b"0")

    refused = await pop(broker, "orders", queue_id=0, order=True, attempt_id="a" * 256)

    assert ResponseCode.INVALID_PARAMETER == refused.code
    assert 1 == len(await popped(broker, "orders", queue_id=0, order=True, attempt_id="a" * 255))


# --- Beside it ------------------------------------------------------------------------------------------------


async def test_peeking_hides_nothing(broker: Caller) -> None:
    """F9"""
    header = PeekMessage(consumer_group="poppers", topic="orders", queue_id=ALL_QUEUES, count_max=1)
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")

    peeked = await broker.call(RequestCode.PEEK_MESSAGE, header)
    found = await popped(broker, "orders")
    nothing = await broker.call(RequestCode.PEEK_MESSAGE, header)

    assert [b"0"] == [bytes(record.body) for record in unpack_records(peeked.body)]
    assert (0, 2) == (peeked.code, peeked.read(PopReply).rest_count)
    assert [b"0", b"1"] == bodies(found)
    assert ResponseCode.PULL_NOT_FOUND == nothing.code


async def test_a_notification_comes_with_the_message_and_takes_nothing(broker: Caller) -> None:
    """F8"""
    header = Notification(consumer_group="poppers", topic="orders", queue_id=ALL_QUEUES, poll_ms=FAR_MS)
    await broker.sent("orders", b"0")
    await popped(broker, "orders")
    told = broker.peer.start_call(RequestCode.NOTIFICATION, header)

    await broker.sent("orders", b"1")

    assert (await told).read(NotificationReply).has_message
    assert [b"1"] == bodies(await popped(broker, "orders"))
    header = Notification(consumer_group="poppers", topic="orders", queue_id=ALL_QUEUES, poll_ms=1)
    response = await broker.call(RequestCode.NOTIFICATION, header)
    assert not response.read(NotificationReply).has_message


async def test_a_notification_comes_when_an_ordered_queue_is_free(broker: Caller) -> None:
    """F8, F9"""
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")
    (message,) = await popped(broker, "orders", queue_id=0, order=True, count_max=1)
    header = Notification(consumer_group="poppers", topic="orders", queue_id=0, poll_ms=FAR_MS, order=True)
    told = broker.peer.start_call(RequestCode.NOTIFICATION, header)

    await ack(broker, message)

    async with asyncio.timeout(FAR_MS / 2000):
        assert (await told).read(NotificationReply).has_message


# --- What tools do --------------------------------------------------------------------------------------------


async def test_a_reset_group_pops_from_there_also_while_it_waits(broker: Caller) -> None:
    """D4, F9"""
    for number in range(3):
        await broker.sent("orders", b"%d" % number)
    await popped(broker, "orders")
    waiting = held_pop(broker, "orders", poll_ms=FAR_MS)

    reset = ResetOffset(topic="orders", group="poppers", time_ms=0, force=True, queue_id=0, queue_offset=1)
    assert 0 == (await broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code

    assert [b"1", b"2"] == bodies(messages(await waiting, "poppers", "orders"))


async def test_a_topic_made_anew_is_popped_from_its_beginning(broker: Caller) -> None:
    """D1, F9: its retry topics are gone with the old one."""
    await broker.sent("orders", b"old")
    await popped(broker, "orders", invisible_ms=1)
    await popped(broker, "orders", poll_ms=FAR_MS)
    assert 0 == (await broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="orders"))).code
    table = decode((await broker.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body, TopicTable).topic_config_table
    assert [] == [topic for topic in table if "orders" in topic]

    await broker.sent("orders", b"new")

    assert [b"new"] == bodies(await popped(broker, "orders"))


async def test_a_group_is_told_to_pop_and_a_deleted_one_forgets_it(broker: Caller) -> None:
    """F9, G1: by SET_MESSAGE_REQUEST_MODE; a retry topic is always pulled."""
    await broker.sent("orders", b"0")
    await broker.heartbeat("poppers", {"orders": "*"})

    async def assigned() -> list[tuple[int, RequestMode]]:
        asked = AssignmentQuery(client_id="127.0.0.1@1", consumer_group="poppers", topic="orders")
        response = await broker.call(RequestCode.QUERY_ASSIGNMENT, None, encode(asked))
        found = decode(response.body, Assignments).message_queue_assignments or []
        return [(one.message_queue.queue_id, one.mode) for one in found]

    async def set_mode(topic: str) -> int:
        mode = GroupRequestMode(topic=topic, consumer_group="poppers", mode=RequestMode.POP)
        return (await broker.call(RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode(mode))).code

    assert [(queue_id, RequestMode.PULL) for queue_id in range(4)] == await assigned()
    assert [0, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST] == [
        await set_mode(topic) for topic in ("orders", "%RETRY%poppers", "missing")
    ]
    assert [(ALL_QUEUES, RequestMode.POP)] == await assigned()
    everything = await broker.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert ["poppers"] == list(decode(everything.body, RequestModes).message_request_mode_map["orders"])

    await broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group_name="poppers"))
    assert [(queue_id, RequestMode.PULL) for queue_id in range(4)] == await assigned()


async def test_a_stopped_broker_remembers_what_is_in_flight(tmp_path: Path) -> None:
    """F9: the message stays hidden, and its handle is good."""
    async with serving(tmp_path) as broker:
        await broker.sent("orders", b"0")
        await broker.sent("orders", b"1")
        (message,) = await popped(broker, "orders", count_max=1)
    async with serving(tmp_path) as broker:
        assert [b"1"] == bodies(await popped(broker, "orders"))
        response, _ = await change(broker, message, invisible_ms=1)
        assert response.code == 0
        assert [b"0"] == bodies(await popped(broker, "orders", poll_ms=FAR_MS))
