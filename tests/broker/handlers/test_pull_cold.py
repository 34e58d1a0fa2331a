"""Pulls and queries of old messages, which other threads read (F3, L1, C1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.broker.services import reading as pull_module
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import (
    OffsetReply,
    PullReply,
    PullSysflag,
    QueryMessage,
    QueryOffset,
    ResetOffset,
    SearchOffset,
    ViewMessage,
)
from tests.broker.calls import FAR_MS, Caller, pull, serving
from tests.broker.handlers.cold import Gate


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    """One that takes every message for an old one."""
    async with serving(tmp_path, store={"access_message_in_memory_max_ratio": 0}) as caller:
        yield caller


async def test_old_messages_are_pulled_like_others(broker: Caller) -> None:
    """F3: eight at a time, and filtered."""
    for number in range(20):
        await broker.sent("orders", b"%d" % number, properties={"TAGS": "AB"[number % 2]})

    response = await broker.pull("orders", 3)
    assert (0, "FOUND") == (response.code, response.remark)
    assert [b"%d" % number for number in range(3, 11)] == [
        bytes(record.body) for record in unpack_records(response.body)
    ]
    reply = response.read(PullReply)
    assert (11, 0, 20) == (reply.next_offset, reply.min_offset, reply.max_offset)
    assert [b"1", b"3", b"5"] == (await broker.bodies("orders", subscription="B"))[:3]


async def test_a_waiting_pull_is_answered_at_once_when_a_message_comes(broker: Caller) -> None:
    """F8: what has just come is in memory, whatever the setting says."""
    await broker.sent("orders", b"0")
    held = broker.peer.start_call(
        RequestCode.PULL_MESSAGE,
        pull(
            "orders",
            queue_offset=1,
            sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND,
            suspend_timeout_ms=FAR_MS,
        ),
    )
    await broker.sent("orders", b"1")
    assert [b"1"] == [bytes(record.body) for record in unpack_records((await held).body)]


async def test_while_the_disk_works_others_are_served(broker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: the loop does not wait for the disk."""
    gate = Gate(monkeypatch)
    await broker.sent("orders", b"old")
    slow = broker.peer.start_call(RequestCode.PULL_MESSAGE, pull("orders"))
    await gate.reached()
    for _ in range(10):
        await broker.sent("orders", b"new")
    assert not slow.done()
    gate.opened.set()
    assert [b"old"] == [bytes(record.body) for record in unpack_records((await slow).body)]


async def test_what_is_deleted_meanwhile_is_looked_for_again(broker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: a file that the thread did not find may have gone, or be there: the second look tells."""
    gate = Gate(monkeypatch)
    gate.remove = True
    gate.opened.set()
    sent = await broker.sent("orders", b"0")
    assert [b"0"] == await broker.bodies("orders")
    response = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=int(sent.message_id[16:], 16)))
    assert [b"0"] == [bytes(record.body) for record in unpack_records(response.body)]


async def test_too_many_old_pulls_are_told_to_come_back(broker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """M1: each queue has a bound."""
    monkeypatch.setattr(pull_module, "COLD_MAX", 1)
    gate = Gate(monkeypatch)
    await broker.sent("orders", b"old")
    slow = broker.peer.start_call(RequestCode.PULL_MESSAGE, pull("orders"))
    await gate.reached()
    response = await broker.pull("orders")
    assert (ResponseCode.SYSTEM_BUSY, True) == (
        response.code,
        "1 pulls of old messages are already waiting" in (response.remark or ""),
    )
    gate.opened.set()
    assert (await slow).code == 0
    assert (await broker.pull("orders")).code == 0


async def test_an_old_message_is_found_by_its_place(broker: Caller) -> None:
    """L1: and one that is none is not."""
    await broker.sent("orders", b"0")
    sent = await broker.sent("orders", b"1")
    log_offset = int(sent.message_id[16:], 16)
    response = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset))
    assert [b"1"] == [bytes(record.body) for record in unpack_records(response.body)]
    response = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset - 1))
    assert ResponseCode.SYSTEM_ERROR == response.code
    assert "can not find message by the offset" in (response.remark or "")


async def test_old_messages_are_found_by_key_and_time(broker: Caller) -> None:
    """L1, L2: as young ones are; also to send a group there."""
    for number in range(3):
        await broker.sent("orders", b"%d" % number, properties={"KEYS": f"k{number}"})
    times = [record.store_time_ms for record in await broker.records("orders")]

    header = QueryMessage(topic="orders", key="k1", count_max=9, begin_ms=0, end_ms=1 << 62)
    response = await broker.call(RequestCode.QUERY_MESSAGE, header)
    assert [b"1"] == [bytes(record.body) for record in unpack_records(response.body)]
    response = await broker.call(
        RequestCode.QUERY_MESSAGE, QueryMessage(topic="orders", key="none", count_max=9, begin_ms=0, end_ms=1 << 62)
    )
    assert ResponseCode.QUERY_NOT_FOUND == response.code

    first = times.index(times[2])
    header_of_time = SearchOffset(topic="orders", queue_id=0, time_ms=times[2])
    response = await broker.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header_of_time)
    assert first == response.read(OffsetReply).queue_offset

    await broker.heartbeat("readers", {"orders": "*"})
    reset = ResetOffset(group="readers", topic="orders", time_ms=times[2], force=True)
    assert (await broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    response = await broker.call(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset(consumer_group="readers", topic="orders", queue_id=0)
    )
    assert first == response.read(OffsetReply).queue_offset


async def test_a_search_that_cannot_read_is_made_again(broker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9, L2: a file that was deleted meanwhile."""
    gate = Gate(monkeypatch)
    gate.remove = True
    gate.opened.set()
    await broker.sent("orders", b"0", properties={"KEYS": "k"})
    response = await broker.call(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset(topic="orders", queue_id=0, time_ms=1 << 60)
    )
    assert response.read(OffsetReply).queue_offset == 1
    header = QueryMessage(topic="orders", key="k", count_max=9, begin_ms=0, end_ms=1 << 62)
    assert (await broker.call(RequestCode.QUERY_MESSAGE, header)).code == 0
    await broker.heartbeat("readers", {"orders": "*"})
    reset = ResetOffset(group="readers", topic="orders", time_ms=1 << 60, force=True)
    assert (await broker.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
