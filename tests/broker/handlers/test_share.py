"""Shared consumption over a real connection (R1–R3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq import names
from ternmq.broker.broker import Broker
from ternmq.broker.services import sharing
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.bodies.share import ShareMembers
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import OffsetReply, QueryOffset, ResetOffset
from ternmq.wire.requests_admin import DeleteGroup, Topic, UpdateTopic
from ternmq.wire.requests_share import (
    GetShareMembers,
    ShareAck,
    ShareHold,
    ShareLeave,
    SharePull,
    SharePullReply,
)
from tests.broker.calls import FAR_MS, Caller, dialled, serving, settings, small_store

GROUP: Final = "billing"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[Caller]:
    """A broker that takes consumers for dead which it has not heard of for a second."""
    async with serving(tmp_path, share_offline_time=1_000) as caller:
        yield caller


async def pull(broker: Caller, consumer: str, **fields: Any) -> Response:
    given: dict[str, Any] = {"consumer_group": GROUP, "topic": "orders", "count_max": 32} | fields
    return await broker.call(RequestCode.SHARE_PULL, SharePull(consumer=consumer, **given), timeout_ms=FAR_MS)


async def given(broker: Caller, consumer: str, **fields: Any) -> tuple[SharePullReply, list[bytes]]:
    response = await pull(broker, consumer, **fields)
    assert response.code == 0, response.remark
    return response.read(SharePullReply), [bytes(record.body) for record in unpack_records(response.body)]


async def ack(broker: Caller, consumer: str, reply: SharePullReply, first: int, last: int, **fields: Any) -> Response:
    header = ShareAck(
        **({"consumer_group": GROUP, "topic": "orders", "consumer": consumer} | fields),
        life=reply.life,
        first=first,
        last=last,
    )
    return await broker.call(RequestCode.SHARE_ACK, header)


async def members(broker: Caller) -> dict[str, tuple[str, int]]:
    response = await broker.call(RequestCode.GET_SHARE_MEMBERS, GetShareMembers(consumer_group=GROUP))
    found = decode(response.body, ShareMembers).members
    return {member.consumer: (member.state, member.held) for member in found if member.topic == "orders"}


async def test_a_list_of_members_comes_in_answers_of_bounded_size(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: each consumer once, whatever has room in one answer; also one that alone has none."""
    await broker.sent("orders", b"1")
    await broker.sent("bills", b"2")
    consumers = [f"consumer-{number}" for number in range(5)]
    for topic in ("orders", "bills"):
        for consumer in consumers:
            await pull(broker, consumer, topic=topic)
    for room, count in ((1, 1), (600, 3), (1 << 20, 10)):
        monkeypatch.setattr(sharing, "MEMBERS_BYTES_MAX", room)
        found: list[tuple[str, str]] = []
        after = "", ""
        while True:
            header = GetShareMembers(consumer_group=GROUP, after_topic=after[0], after_consumer=after[1])
            told = decode((await broker.call(RequestCode.GET_SHARE_MEMBERS, header)).body, ShareMembers)
            assert len(told.members) <= count
            found += [(member.topic, member.consumer) for member in told.members]
            if not told.more:
                break
            after = found[-1]
        assert [(topic, consumer) for topic in ("bills", "orders") for consumer in consumers] == found


async def test_consumers_share_a_queue_and_confirm_by_number(broker: Caller) -> None:
    """R1: two consumers of one queue, no message twice; what is confirmed does not come again."""
    for number in range(6):
        await broker.sent("orders", b"%d" % number)
    first, bodies = await given(broker, "ann", count_max=2)
    second, others = await given(broker, "bob", count_max=2)
    assert ([b"0", b"1"], [b"2", b"3"]) == (bodies, others)
    assert (0, 0) == (first.first, second.first)
    assert (await ack(broker, "ann", first, 0, 1)).code == 0
    assert (await ack(broker, "ann", first, 0, 1)).code == 0, "an ack may come twice"
    third, bodies = await given(broker, "ann", count_max=9, held=1, life=first.life)
    assert (2, [b"4", b"5"]) == (third.first, bodies)
    assert {"ann": ("online", 2), "bob": ("online", 2)} == await members(broker)


async def test_what_is_not_confirmed_comes_first_again(broker: Caller) -> None:
    """R2: a consumer that starts again under its name, or lost an answer."""
    for number in range(4):
        await broker.sent("orders", b"%d" % number)
    first, _ = await given(broker, "ann", count_max=2)
    again, bodies = await given(broker, "ann")
    assert (True, first.first, [b"0", b"1"]) == (again.again, again.first, bodies)
    later, bodies = await given(broker, "ann", held=1, life=first.life)
    assert (False, 2, [b"2", b"3"]) == (later.again, later.first, bodies)
    partly, bodies = await given(broker, "ann", held=2, life=first.life)
    assert (True, 3, [b"3"]) == (partly.again, partly.first, bodies)


async def test_bad_calls_are_refused_and_confirm_nothing(broker: Caller) -> None:
    """R1: counts, names, numbers and lives that cannot be; a topic that is gone."""
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")
    reply, _ = await given(broker, "ann", count_max=1)
    other = SharePullReply(first=0, life=reply.life + 1)
    refusals = [
        (await pull(broker, "ann", count_max=0), "invalid number of messages 0"),
        (await pull(broker, "ann", count_max=-5), "invalid number of messages -5"),
        (await pull(broker, "ann", bytes_max=-1), "invalid number of bytes -1"),
        (await pull(broker, "ann", held=-7), "invalid last number -7"),
        (await pull(broker, "a/b"), "without slashes"),
        (await pull(broker, ""), "without slashes"),
        (await pull(broker, "ann", topic="nothing"), "nothing"),
        (await pull(broker, "ann", topic=names.SHARE_TOPIC), names.SHARE_TOPIC),
        (await pull(broker, "ann", consumer_group="a/b"), "a/b"),
        (await ack(broker, "ann", reply, -1, 0), "invalid numbers -1 to 0"),
        (await ack(broker, "ann", reply, 3, 2), "invalid numbers 3 to 2"),
        (await ack(broker, "ann", reply, 0, 7), "it was given messages up to 0 only"),
        (await ack(broker, "bob", reply, 0, 0), "holds no messages"),
        (await ack(broker, "ann", other, 0, 0), "belong to other messages"),
        (await ack(broker, "ann", reply, 0, 0, topic="nothing"), "nothing"),
    ]
    for response, said in refusals:
        assert response.code != 0
        assert said in (response.remark or ""), response.remark
    assert {"ann": ("online", 1)} == await members(broker)
    assert b"0" == (await given(broker, "ann", count_max=1))[1][0]


async def test_a_pull_waits_for_a_message_and_one_consumer_gets_it(broker: Caller) -> None:
    """R1, F8."""
    await broker.sent("orders", b"0")
    reply, _ = await given(broker, "ann")
    await ack(broker, "ann", reply, 0, 0)
    waiting = [
        asyncio.ensure_future(pull(broker, name, poll_ms=FAR_MS, held=0, life=reply.life)) for name in ("ann", "bob")
    ]
    await broker.sent("orders", b"1")
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [b"1"] == [bytes(record.body) for task in done for record in unpack_records(task.result().body)]
    await broker.sent("orders", b"2")
    for task in pending:
        assert [b"2"] == [bytes(record.body) for record in unpack_records((await task).body)]
    response = await pull(broker, "cid", poll_ms=1)
    assert ResponseCode.POLLING_TIMEOUT == response.code


async def test_what_is_passed_over_comes_again_as_a_retry(broker: Caller) -> None:
    """R2, H1: a gap in front of an ack is written to the group's retry topic, with its count."""
    for number in range(3):
        await broker.sent("orders", b"%d" % number)
    reply, _ = await given(broker, "ann")
    assert (await ack(broker, "ann", reply, 2, 2)).code == 0
    again, bodies = await given(broker, "bob", topic=names.retry_topic(GROUP), poll_ms=FAR_MS, count_max=1)
    assert [b"0"] == bodies
    table = decode((await broker.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTable).table
    assert ("2", "2", "0") == (table["shareLostAcks"], table["shareRetried"], table["shareRetryWaiting"])
    assert int(table["shareLostAckTimestamp"]) > 0
    milliseconds, slices = table[f"pullTimeMs_{GROUP}"].split(",")
    assert float(milliseconds) >= 0
    assert int(slices) >= 3, "two pulls and an ack"
    assert again.first == 0


async def test_a_consumer_that_leaves_or_dies_gives_others_what_it_held(impatient: Caller) -> None:
    """R3: at once, or when it was not heard of for shareOfflineTime (here 1 s)."""
    broker = impatient
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")
    await given(broker, "ann", count_max=1)
    await given(broker, "bob", count_max=1)
    leave = ShareLeave(consumer_group=GROUP, topic="orders", consumer="ann")
    assert (await broker.call(RequestCode.SHARE_LEAVE, leave)).code == 0
    bodies: list[bytes] = []
    held = SharePullReply(first=-1, life=0)
    while len(bodies) < 2:
        held, more = await given(
            broker, "cid", topic=names.retry_topic(GROUP), poll_ms=FAR_MS, held=len(bodies) - 1, life=held.life
        )
        bodies += more
    assert [b"0", b"1"] == bodies
    assert {"ann": ("offline", 0), "bob": ("offline", 0)} == await members(broker)


async def test_a_consumer_that_leaves_is_given_nothing_more(broker: Caller) -> None:
    """R3: neither by a pull that is under way when it leaves, nor by one that waits."""
    await broker.sent("orders", b"0")
    leave = ShareLeave(consumer_group=GROUP, topic="orders", consumer="ann")
    last, left = await asyncio.gather(pull(broker, "ann"), broker.call(RequestCode.SHARE_LEAVE, leave))
    assert (0, 0) == (last.code, left.code)
    assert {"ann": ("offline", 0)} == await members(broker)

    assert ResponseCode.POLLING_TIMEOUT == (await pull(broker, "ann")).code, "on this connection it has ended"

    waiting = asyncio.ensure_future(pull(broker, "bob", poll_ms=FAR_MS))
    other = asyncio.ensure_future(pull(broker, "cid", poll_ms=FAR_MS))
    gone = ShareLeave(consumer_group=GROUP, topic="orders", consumer="bob")
    await asyncio.ensure_future(broker.call(RequestCode.SHARE_LEAVE, gone))
    await broker.sent("orders", b"1")
    assert ResponseCode.POLLING_TIMEOUT == (await waiting).code
    assert [b"1"] == [bytes(record.body) for record in unpack_records((await other).body)]


async def test_the_time_limit_of_a_message_can_be_moved(broker: Caller) -> None:
    """R2: what takes longer than it may is given to others, unless its consumer asks for more time."""
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")
    reply, _ = await given(broker, "ann", hold_ms=3_000)
    more = ShareHold(
        consumer_group=GROUP, topic="orders", consumer="ann", life=reply.life, first=1, last=1, hold_ms=FAR_MS
    )
    assert (await broker.call(RequestCode.SHARE_HOLD, more)).code == 0
    async with asyncio.timeout(60):
        # The retry topic comes with the first heartbeat of a group; there is none here.
        while (await pull(broker, "bob", topic=names.retry_topic(GROUP))).code == ResponseCode.TOPIC_NOT_EXIST:
            await asyncio.sleep(0.01)
    _, bodies = await given(broker, "bob", topic=names.retry_topic(GROUP), poll_ms=FAR_MS)
    assert [b"0"] == bodies
    late = await broker.call(
        RequestCode.SHARE_HOLD,
        ShareHold(consumer_group=GROUP, topic="orders", consumer="ann", life=reply.life, first=0, last=0, hold_ms=1),
    )
    assert "does not hold the messages" in (late.remark or "")


async def test_filters_choose_what_is_given(broker: Caller) -> None:
    """R1, K1: numbers have no gaps where a filter left messages out."""
    for number in range(8):
        await broker.sent("orders", b"%d" % number, properties={"TAGS": "ab"[number % 2]})
    reply, bodies = await given(broker, "ann", expression_type="TAG", subscription="b")
    assert (0, [b"1", b"3", b"5", b"7"]) == (reply.first, bodies)
    assert (await ack(broker, "ann", reply, 0, 3)).code == 0
    assert {"ann": ("online", 0)} == await members(broker)


@pytest.fixture
async def selective(tmp_path: Path) -> AsyncIterator[Caller]:
    """A broker that filters by SQL."""
    async with serving(tmp_path, enable_property_filter=True) as caller:
        yield caller


BIG: Final = {"expression_type": "SQL92", "subscription": "price > 10"}


async def offer(broker: Caller, *prices: int, key: str = "") -> None:
    for price in prices:
        properties = {"price": str(price)} | ({"KEYS": key} if key else {})
        await broker.sent("orders", b"%d" % price, properties=properties)


async def test_sql_filters_choose_what_is_given_and_given_again(selective: Caller) -> None:
    """R1, R2, K2: numbers have no gaps, what is left out is not looked at again, and what was not confirmed comes first
    again, whatever the filter says now."""
    await offer(selective, 1, 11, 2, 12, 3, 13)
    reply, bodies = await given(selective, "ann", count_max=2, **BIG)
    assert (0, [b"11", b"12"]) == (reply.first, bodies)
    other, bodies = await given(selective, "bob", **BIG)
    assert (0, [b"13"]) == (other.first, bodies)
    again, bodies = await given(selective, "ann", expression_type="SQL92", subscription="price > 11", held=-1)
    assert (0, True, [b"11", b"12"]) == (again.first, again.again, bodies)
    assert (await ack(selective, "ann", again, 0, 1)).code == 0
    assert {"ann": ("online", 0), "bob": ("online", 1)} == await members(selective)
    # Another expression begins where the group is.
    await offer(selective, 4)
    assert [b"4"] == (await given(selective, "ann", held=1, life=reply.life))[1]


async def test_a_filter_that_cannot_be_read_is_refused_and_nothing_is_passed_by(selective: Caller) -> None:
    """R1, K2: the answer says where the expression is wrong."""
    await offer(selective, 11)
    wrong = await pull(selective, "ann", expression_type="SQL92", subscription="price >")
    assert ResponseCode.SUBSCRIPTION_PARSE_FAILED == wrong.code
    assert "price >" in (wrong.remark or "")
    assert [b"11"] == (await given(selective, "ann", **BIG))[1]


async def test_without_sql_a_shared_pull_says_which_setting_allows_it(broker: Caller) -> None:
    """K2."""
    await broker.sent("orders", b"1")
    refused = await pull(broker, "ann", **BIG)
    assert "enablePropertyFilter" in (refused.remark or "")


@pytest.mark.parametrize("order", [False, True])
async def test_a_pull_with_a_filter_waits_for_a_message_that_passes_it(selective: Caller, order: bool) -> None:
    """R1, F8, K2."""
    await offer(selective, 1)
    waiting = asyncio.ensure_future(pull(selective, "ann", order=order, poll_ms=FAR_MS, **BIG))
    await offer(selective, 2, 3, 11)
    assert [b"11"] == [bytes(record.body) for record in unpack_records((await waiting).body)]


@pytest.mark.parametrize("order", [False, True])
async def test_a_filter_finds_what_lies_behind_thousands_that_it_refuses(selective: Caller, order: bool) -> None:
    """R1, K2: one pull looks through a part of them; it goes on at once, and does not wait for an arrival."""
    refused = [(b"small", {"price": "1"})] * 1_000
    for _ in range(5):
        assert (await selective.send_batch("orders", refused)).code == 0
    await offer(selective, 11)
    response = await pull(selective, "ann", order=order, poll_ms=FAR_MS - 10_000, **BIG)
    assert [b"11"] == [bytes(record.body) for record in unpack_records(response.body)]


async def test_a_filter_and_the_order_of_keys_hold_together(selective: Caller) -> None:
    """R1, K2: a message whose key another consumer holds goes to that one, if it passes the filter."""
    await offer(selective, 11, 1, 12, key="x")
    await offer(selective, 21, key="y")
    first, bodies = await given(selective, "ann", count_max=1, order=True, **BIG)
    assert [b"11"] == bodies
    assert [b"21"] == (await given(selective, "bob", order=True, **BIG))[1]
    later, bodies = await given(selective, "ann", order=True, held=0, life=first.life, **BIG)
    assert (1, [b"12"]) == (later.first, bodies)
    assert (await ack(selective, "ann", first, 0, 1)).code == 0


async def test_a_consumer_goes_on_where_all_of_a_pull_was_for_others(selective: Caller) -> None:
    """R1: its pull waits for what is left of the queue, not for the next arrival."""
    await offer(selective, *range(8), key="x")
    await offer(selective, 99, key="y")
    assert [b"0"] == (await given(selective, "ann", count_max=1, order=True))[1]
    response = await pull(selective, "bob", count_max=2, order=True, poll_ms=FAR_MS)
    assert [b"99"] == [bytes(record.body) for record in unpack_records(response.body)]


async def test_a_key_is_held_by_one_consumer_at_a_time(broker: Caller) -> None:
    """R1: in an ordered group a message whose key another consumer holds goes to that one, in order."""
    for number in range(6):
        await broker.sent("orders", b"%d" % number, properties={"KEYS": "xy"[number % 2]})
    first, bodies = await given(broker, "ann", count_max=1, order=True)
    assert [b"0"] == bodies
    other, bodies = await given(broker, "bob", order=True)
    assert [b"1", b"3", b"5"] == bodies
    later, bodies = await given(broker, "ann", order=True, held=0, life=first.life)
    assert (1, [b"2", b"4"]) == (later.first, bodies)
    skipping = await ack(broker, "bob", other, 2, 2)
    assert "confirmed in their order" in (skipping.remark or "")
    assert (await ack(broker, "bob", other, 0, 2)).code == 0
    await broker.sent("orders", b"6", properties={"KEYS": "y"})
    _, bodies = await given(broker, "ann", order=True, held=2, life=first.life)
    assert [b"6"] == bodies, "the key is free"


async def test_a_message_of_an_ordered_group_wakes_as_many_members_as_it_has_work_for(broker: Caller) -> None:
    """R1: each arrival woke all members, and all but one found nothing."""

    async def measure(name: str) -> int:
        info = decode((await broker.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTable)
        return int(info.table[name])

    await broker.sent("orders", b"0", properties={"KEYS": "x"})
    first, _ = await given(broker, "ann", order=True)
    waiting = {
        name: asyncio.ensure_future(pull(broker, name, order=True, poll_ms=FAR_MS, held=held, life=first.life))
        for name, held in (("bob", -1), *((f"worker-{number}", -1) for number in range(18)), ("ann", 0))
    }
    while await measure("shareWaiting") < 20:
        await asyncio.sleep(0)
    before = await measure("sharePulls")

    await broker.sent("orders", b"1", properties={"KEYS": "y"})
    await waiting["bob"]
    assert (1, 19) == (await measure("sharePulls") - before, sum(not one.done() for one in waiting.values()))

    # Its key is held by the one that waits last: the first one looks, then that one, and one more for what is new.
    await broker.sent("orders", b"2", properties={"KEYS": "x"})
    response = await waiting["ann"]
    assert [b"2"] == [bytes(record.body) for record in unpack_records(response.body)]
    assert (4, 18) == (await measure("sharePulls") - before, sum(not one.done() for one in waiting.values()))
    for one in waiting.values():
        one.cancel()


async def test_in_an_ordered_group_another_consumer_inherits_in_order(broker: Caller) -> None:
    """R1, R3: no copies, which would come behind later messages of their key."""
    for number in range(4):
        await broker.sent("orders", b"%d" % number, properties={"KEYS": "x"})
    await given(broker, "ann", count_max=2, order=True)
    waiting = asyncio.ensure_future(pull(broker, "bob", order=True, poll_ms=FAR_MS))
    leave = ShareLeave(consumer_group=GROUP, topic="orders", consumer="ann")
    while True:
        # Bob is a consumer when it was given something, or has asked; until then there is no heir.
        await broker.call(RequestCode.SHARE_LEAVE, leave)
        await broker.sent("orders", b"more", queue_id=1, properties={"KEYS": "y"})
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        if done:
            break
    bodies = [bytes(record.body) for record in unpack_records((await waiting).body)]
    reply = (await waiting).read(SharePullReply)
    while b"3" not in bodies:
        more, others = await given(
            broker, "bob", order=True, held=reply.first + len(bodies) - 1, life=reply.life, poll_ms=FAR_MS
        )
        bodies += others
        assert more.first >= 0
    assert [b"0", b"1", b"2", b"3"] == [body for body in bodies if body != b"more"]


async def test_a_group_that_is_reset_goes_back_and_one_that_is_deleted_is_forgotten(broker: Caller) -> None:
    """R1, D6."""
    for number in range(3):
        await broker.sent("orders", b"%d" % number)
    reply, _ = await given(broker, "ann")
    await ack(broker, "ann", reply, 0, 2)
    reset = ResetOffset(topic="orders", group=GROUP, time_ms=0, force=True)
    assert (await broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    _, bodies = await given(broker, "ann", held=2, life=reply.life)
    assert [b"0", b"1", b"2"] == bodies
    assert (await broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group_name=GROUP))).code == 0
    assert {} == await members(broker)


async def test_a_deletion_without_a_name_forgets_nothing(broker: Caller) -> None:
    """R1: it was taken for all groups and topics, and what all consumers held was forgotten."""
    await broker.sent("orders", b"1")
    await given(broker, "ann")
    refused = [
        await broker.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group_name="")),
        await broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="")),
    ]
    assert all("give its name" in (answer.remark or "") for answer in refused)
    assert {"ann": ("online", 1)} == await members(broker)


async def test_a_pull_that_waits_for_a_topic_that_is_deleted_is_told_so(broker: Caller) -> None:
    """R1: it would wait for messages that cannot come."""
    await broker.sent("orders", b"0")
    await given(broker, "ann")
    waiting = asyncio.ensure_future(pull(broker, "bob", poll_ms=FAR_MS))
    while "bob" not in await members(broker):
        await asyncio.sleep(0)
    assert (await broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="orders"))).code == 0
    response = await waiting
    assert (ResponseCode.TOPIC_NOT_EXIST, True) == (response.code, "orders" in (response.remark or ""))


async def test_a_topic_made_anew_is_read_from_its_beginning(broker: Caller) -> None:
    """R1: what was held of the deleted one is forgotten."""
    for number in range(3):
        await broker.sent("orders", b"old-%d" % number)
    await given(broker, "ann", count_max=2)
    assert (await broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="orders"))).code == 0
    assert ResponseCode.TOPIC_NOT_EXIST == (await pull(broker, "ann")).code
    await broker.sent("orders", b"new")
    assert [b"new"] == (await given(broker, "ann"))[1]


async def test_a_broker_that_restarts_knows_what_consumers_hold(tmp_path: Path) -> None:
    """R1: by the fold of its actions; and tools see how far the group is."""
    config = settings()
    async with Broker(config, small_store(tmp_path)) as running, dialled(running.address) as broker:
        for number in range(4):
            await broker.sent("orders", b"%d" % number)
        first, _ = await given(broker, "ann", count_max=2)
        await given(broker, "bob", count_max=1)
    async with Broker(config, small_store(tmp_path)) as running, dialled(running.address) as broker:
        assert {"ann": ("online", 2), "bob": ("online", 1)} == await members(broker)
        assert (await ack(broker, "ann", first, 0, 1)).code == 0, "numbers of an earlier life count, if they were kept"
        reply, bodies = await given(broker, "ann", held=1, life=first.life)
        assert [b"3"] == bodies
        assert reply.life != first.life
        query = QueryOffset(consumer_group=GROUP, topic="orders", queue_id=0, set_zero_if_not_found=False)
        while True:
            response = await broker.call(RequestCode.QUERY_CONSUMER_OFFSET, query)
            if response.code == 0 and response.read(OffsetReply).queue_offset == 2:
                break


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_pull_that_waits_for_keys_is_answered_when_they_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    """R2, R4: no message comes, and no time passes: the end of the reading wakes it."""
    monkeypatch.setattr("ternmq.share.keys.KEYS_MAX", 3)
    config = settings()
    async with Broker(config, small_store(tmp_path)) as running, dialled(running.address) as broker:
        for number in range(20):
            await broker.sent("orders", b"%d" % number, properties={"KEYS": f"{number}"})
        held: list[bytes] = []
        while len(held) < 19:
            held += (await given(broker, f"ann-{len(held)}", count_max=19 - len(held), order=True))[1]
    store = small_store(tmp_path, **({"access_message_in_memory_max_ratio": 0} if is_cold else {}))
    async with Broker(config, store) as running, dialled(running.address) as broker:
        async with asyncio.timeout(60):
            response = await pull(broker, "bob", poll_ms=FAR_MS, order=True)
            if is_cold:
                # It has waited, and has time for the disk with its next pull.
                assert ResponseCode.POLLING_TIMEOUT == response.code
                response = await pull(broker, "bob", order=True)
        assert [b"19"] == [bytes(record.body) for record in unpack_records(response.body)]


async def test_a_topic_without_a_queue_to_read_has_nothing(broker: Caller) -> None:
    """R1: an administrator may take all of them away for a time."""
    await broker.sent("orders", b"1")
    for queues, code in ((0, ResponseCode.POLLING_TIMEOUT), (1, ResponseCode.SUCCESS)):
        header = UpdateTopic(topic="orders", read_queue_nums=queues, write_queue_nums=1, perm=6)
        assert 0 == (await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code
        response = await pull(broker, "a")
        assert code == response.code, response.remark
