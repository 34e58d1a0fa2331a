"""Quotas of topics and groups, over real connections (M1). The test moves the broker's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.env import Env
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.groups import GroupTable, SubscriptionGroupConfig
from ternmq.wire.bodies.topics import TopicConfig, TopicConfigs
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import PullReply, PullSysflag
from ternmq.wire.requests_admin import UpdateTopic
from ternmq.wire.requests_share import SharePull
from tests.broker.calls import FAR_MS, Caller, pull, serving
from tests.broker.handlers.test_pull import committed
from tests.broker.popping import held_pop, pop
from tests.manual_clock import ManualClock

WAITING = PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND
KEY = "UNIQ_KEY\x017F000001000018B4AAC2000000000001\x02"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Caller]:
    async with serving(tmp_path, env=Env(clock=clock)) as caller:
        yield caller


async def limit_topic(broker: Caller, attributes: str, topic: str = "orders") -> Response:
    header = UpdateTopic(topic=topic, read_queue_nums=1, write_queue_nums=1, perm=6, attributes=attributes)
    return await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def limit_group(broker: Caller, group: str, **attributes: str) -> Response:
    signed = {f"+quota.{name}": value for name, value in attributes.items()}
    return await put_group(broker, group, signed)


async def put_group(broker: Caller, group: str, attributes: dict[str, str] | None) -> Response:
    config = SubscriptionGroupConfig(group_name=group, attributes=attributes)
    return await broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(config))


async def attributes_of(broker: Caller, group: str) -> dict[str, str] | None:
    response = await broker.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return decode(response.body, GroupTable).subscription_group_table[group].attributes


async def codes(broker: Caller, count: int, body: bytes = b"x") -> list[int]:
    return [(await broker.send("orders", body, properties=KEY)).code for _ in range(count)]


async def test_sends_beyond_the_quota_of_their_topic_are_told_system_busy(broker: Caller, clock: ManualClock) -> None:
    """M1: with a remark that names topic, limit and cure; other topics go on."""
    assert 0 == (await limit_topic(broker, "+quota.messages=3")).code

    assert [0, 0, 0, ResponseCode.SYSTEM_BUSY] == await codes(broker, 4)
    refused = await broker.send("orders", b"x", properties=KEY)

    assert refused.remark == (
        "[QUOTA]system busy, start flow control for a while: topic orders has a quota of 3 messages/s; send again in "
        "0.333 s, or raise it with `tern quota set --topic orders`"
    )
    assert 0 == (await broker.send("bills", b"x")).code
    clock.advance(0.7)
    assert [0, 0, 0, ResponseCode.SYSTEM_BUSY] == [*await codes(broker, 3), (await broker.send("orders", b"x")).code]


async def test_sends_that_take_the_short_way_are_counted_too(broker: Caller) -> None:
    """M1: a topic that was plain before it had a quota, and many sends in one read."""
    await codes(broker, 3)
    await limit_topic(broker, "+quota.messages=5")
    header = {"queue_id": 0, "properties": KEY}

    calls = [asyncio.ensure_future(broker.send("orders", b"x", **header)) for _ in range(50)]  # type: ignore[arg-type]
    answers = [(await call).code for call in calls]

    assert [0] * 5 + [ResponseCode.SYSTEM_BUSY] * 45 == answers
    assert 8 == (await broker.pull("orders")).read(PullReply).max_offset


async def test_a_batch_counts_all_its_messages_and_their_bytes(broker: Caller, clock: ManualClock) -> None:
    """M1: it passes whole, and is paid for."""
    await limit_topic(broker, "+quota.messages=10")
    batch = [(b"x", {"UNIQ_KEY": f"{number}"}) for number in range(30)]

    assert 0 == (await broker.send_batch("orders", batch)).code
    assert ResponseCode.SYSTEM_BUSY == (await broker.send_batch("orders", batch)).code
    clock.advance(1.9)
    assert [ResponseCode.SYSTEM_BUSY] == await codes(broker, 1)
    clock.advance(0.2)
    assert [0] == await codes(broker, 1)


async def test_bytes_have_a_quota_of_their_own(broker: Caller, clock: ManualClock) -> None:
    """M1."""
    await limit_topic(broker, "+quota.bytes=1000")

    assert [0, 0, ResponseCode.SYSTEM_BUSY] == await codes(broker, 3, bytes(600))
    clock.advance(0.3)
    assert [0, ResponseCode.SYSTEM_BUSY] == await codes(broker, 2, bytes(600))


async def test_a_quota_is_changed_and_removed_while_the_broker_runs(broker: Caller) -> None:
    """M1: other changes of the topic leave what is used as it is."""
    await limit_topic(broker, "+quota.messages=1")
    assert [0, ResponseCode.SYSTEM_BUSY] == await codes(broker, 2)
    await limit_topic(broker, "")
    assert [ResponseCode.SYSTEM_BUSY] == await codes(broker, 1)

    await limit_topic(broker, "+quota.messages=2")
    assert [0, 0, ResponseCode.SYSTEM_BUSY] == await codes(broker, 3)
    await limit_topic(broker, "-quota.messages")
    assert [0] * 10 == await codes(broker, 10)


async def test_a_quota_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    """M1, D1, D2."""
    async with serving(tmp_path, env=Env(clock=clock)) as broker:
        await limit_topic(broker, "+quota.messages=1")
        await limit_group(broker, "readers", messages="7")
    async with serving(tmp_path, env=Env(clock=clock)) as broker:
        assert [0, ResponseCode.SYSTEM_BUSY] == await codes(broker, 2)
        assert {"quota.messages": "7"} == await attributes_of(broker, "readers")


@pytest.mark.parametrize("text", ["0", "lots", "9" * 99])
async def test_a_quota_that_is_none_is_refused_and_changes_nothing(broker: Caller, text: str) -> None:
    """M1: by each way in which topics and groups are changed."""
    listed = TopicConfig(topic_name="orders", attributes={"quota.messages": text})
    refused = [
        await limit_topic(broker, f"+quota.messages={text}"),
        await limit_group(broker, "readers", messages=text),
        await broker.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, encode(TopicConfigs(topic_config_list=[listed]))
        ),
    ]

    assert {ResponseCode.INVALID_PARAMETER} == {response.code for response in refused}
    assert all("invalid quota.messages" in (response.remark or "") for response in refused)
    assert [0] * 3 == await codes(broker, 3)


async def test_a_change_of_a_group_keeps_the_attributes_that_it_does_not_name(broker: Caller) -> None:
    """M1, D2: RocketMQ 5 sends changes with a sign; tools of 4.9 send none."""
    await put_group(broker, "readers", {"+quota.bytes": "5", "other": "x"})
    await put_group(broker, "readers", None)
    await put_group(broker, "readers", {"+quota.bytes": "6", "-other": ""})

    assert {"quota.bytes": "6"} == await attributes_of(broker, "readers")
    many = await put_group(broker, "readers", {f"+key{number}": "" for number in range(65)})
    long = await put_group(broker, "readers", {"+key": "x" * 2_000})
    assert [ResponseCode.INVALID_PARAMETER] * 2 == [many.code, long.code]


async def answered(broker: Caller, future: asyncio.Future[Response]) -> bool:
    """Whether a request that was sent before has its answer, after others have had theirs."""
    await broker.pull("orders", consumer_group="others")
    return future.done()


async def test_a_pull_beyond_the_quota_of_its_group_waits_and_then_gets_more(
    broker: Caller, clock: ManualClock
) -> None:
    """M1: no refusal, which would make clients pause, and no answer at once, which would make them ask without end."""
    for number in range(5):
        await broker.sent("orders", b"%d" % number)
    await limit_group(broker, "readers", messages="2")
    first = await broker.pull("orders", 0, count_max=3)
    waiting = broker.peer.start_call(
        RequestCode.PULL_MESSAGE, pull("orders", queue_offset=3, sysflag=WAITING, suspend_timeout_ms=FAR_MS)
    )

    assert not await answered(broker, waiting)
    await broker.sent("orders", b"5")
    assert not await answered(broker, waiting), "a new message changes nothing"
    clock.advance(2)

    assert 3 == len(unpack_records(first.body))
    assert [b"3", b"4", b"5"] == [bytes(record.body) for record in unpack_records((await waiting).body)]


async def test_a_pull_that_cannot_wait_is_answered_as_from_an_empty_queue(broker: Caller, clock: ManualClock) -> None:
    """M1: its position does not move."""
    await broker.sent("orders", b"0")
    await broker.sent("orders", b"1")
    await limit_group(broker, "readers", messages="1")
    await broker.pull("orders", 0, count_max=1)

    response = await broker.pull("orders", 1)

    reply = response.read(PullReply)
    assert (ResponseCode.PULL_NOT_FOUND, 1, 0, 2) == (
        response.code,
        reply.next_offset,
        reply.min_offset,
        reply.max_offset,
    )
    clock.advance(1)
    assert 0 == (await broker.pull("orders", 1)).code


async def test_a_pull_that_has_waited_long_enough_is_answered_as_from_an_empty_queue(broker: Caller) -> None:
    """M1: the client asks again, and waits again."""
    await broker.sent("orders", b"0")
    await limit_group(broker, "readers", messages="1")
    await broker.pull("orders", 0)
    await broker.pull("orders", 0)

    response = await broker.pull("orders", 0, sysflag=WAITING, suspend_timeout_ms=150)

    assert ResponseCode.PULL_NOT_FOUND == response.code


async def test_a_pull_that_waits_for_its_quota_has_committed_its_progress(broker: Caller, clock: ManualClock) -> None:
    """M1, D4: when it came, not when it is answered: a later commit must not be undone."""
    await broker.sent("orders", b"0")
    await limit_group(broker, "readers", messages="1")
    await broker.pull("orders", 0)
    committing = WAITING | PullSysflag.COMMIT_OFFSET
    waiting = broker.peer.start_call(
        RequestCode.PULL_MESSAGE,
        pull("orders", queue_offset=0, sysflag=committing, commit_offset=1, suspend_timeout_ms=FAR_MS),
    )
    assert not await answered(broker, waiting)
    await broker.pull("orders", 0, sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.COMMIT_OFFSET, commit_offset=7)

    clock.advance(5)
    await waiting

    assert 7 == await committed(broker, "orders")


async def test_pops_and_shared_pulls_wait_for_the_quota_of_their_group(broker: Caller, clock: ManualClock) -> None:
    """M1: F9, R1."""
    for number in range(4):
        await broker.sent("orders", b"%d" % number)
    for group in ("poppers", "sharers"):
        await limit_group(broker, group, messages="1")
    popped = await pop(broker, "orders", count_max=2)
    shared = await broker.call(RequestCode.SHARE_PULL, _share(count_max=2))

    at_once = [await pop(broker, "orders"), await broker.call(RequestCode.SHARE_PULL, _share(consumer="bob"))]
    waiting = [
        held_pop(broker, "orders", poll_ms=FAR_MS),
        broker.peer.start_call(RequestCode.SHARE_PULL, _share(consumer="bob", poll_ms=FAR_MS)),
    ]
    assert [False, False] == [await answered(broker, future) for future in waiting]
    clock.advance(3)

    assert [2, 2] == [len(unpack_records(each.body)) for each in (popped, shared)]
    assert {ResponseCode.POLLING_TIMEOUT} == {response.code for response in at_once}
    assert [2, 2] == [len(unpack_records((await future).body)) for future in waiting]


async def test_waiting_fetches_are_bounded(tmp_path: Path, clock: ManualClock) -> None:
    """M1: one more is told SYSTEM_BUSY."""
    async with serving(tmp_path, env=Env(clock=clock), max_suspended_pulls=1) as broker:
        await broker.sent("orders", b"0")
        await limit_group(broker, "readers", messages="1")
        await broker.pull("orders", 0)
        header = pull("orders", queue_offset=0, sysflag=WAITING, suspend_timeout_ms=FAR_MS)
        first = broker.peer.start_call(RequestCode.PULL_MESSAGE, header)

        refused = await broker.call(RequestCode.PULL_MESSAGE, header)

        assert (ResponseCode.SYSTEM_BUSY, True) == (refused.code, "maxSuspendedPulls" in (refused.remark or ""))
        clock.advance(5)
        assert 0 == (await first).code


def _share(consumer: str = "ann", *, count_max: int = 32, poll_ms: int = 0) -> SharePull:
    return SharePull(consumer_group="sharers", topic="orders", consumer=consumer, count_max=count_max, poll_ms=poll_ms)
