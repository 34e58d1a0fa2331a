"""Single messages, by place and by key (L1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.broker import Broker
from ternmq.env import Env
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import QueryMessage, QueryReply, ViewMessage
from tests.broker.calls import Caller, dialled, serving, settings, small_store
from tests.manual_clock import ManualClock

EVER_MS = 2**63 - 1


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


async def query(
    broker: Caller,
    key: str,
    *,
    topic: str = "orders",
    count_max: int = 64,
    begin_ms: int = 0,
    end_ms: int = EVER_MS,
    unique: bool | None = None,
) -> Response:
    header = QueryMessage(
        topic=topic, key=key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms, by_unique_id=unique
    )
    return await broker.call(RequestCode.QUERY_MESSAGE, header)


def bodies(response: Response) -> list[bytes]:
    return [bytes(record.body) for record in unpack_records(response.body)]


async def test_a_message_is_found_by_its_offset_id(broker: Caller) -> None:
    """L1, C10"""
    await broker.sent("orders", b"0")
    reply = await broker.sent("orders", b"1")
    _, _, log_offset = parse_offset_id(reply.message_id)

    response = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset))

    assert (response.code, bodies(response)) == (0, [b"1"])


@pytest.mark.parametrize("log_offset", [-1, 1, 1 << 40])
async def test_an_offset_without_a_record_is_an_error_that_names_it(broker: Caller, log_offset: int) -> None:
    """L1"""
    await broker.sent("orders", b"0")

    response = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset))

    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark is not None
    assert str(log_offset) in response.remark


async def test_messages_are_found_by_key_and_by_unique_key(broker: Caller) -> None:
    """L1, C4"""
    for number in range(3):
        await broker.sent("orders", b"%d" % number, properties={"KEYS": f"all k{number}", "UNIQ_KEY": f"U{number}"})

    assert sorted(bodies(await query(broker, "all"))) == [b"0", b"1", b"2"]
    assert bodies(await query(broker, "k1")) == [b"1"]
    assert bodies(await query(broker, "U2", unique=True, count_max=1)) == [b"2"]
    assert (await query(broker, "k1")).read(QueryReply).last_update_ms > 0


async def test_a_key_that_no_message_has_is_not_found(broker: Caller) -> None:
    """L1"""
    await broker.sent("orders", b"x", properties={"KEYS": "k"})

    assert (await query(broker, "other")).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    "question",
    [
        {"key": "a b"},  # each word is a key, the two together are none
        {"key": ""},
        {"key": "a", "topic": "others"},
        {"key": "a", "count_max": 0},
        {"key": "a", "count_max": -1},
        {"key": "a", "begin_ms": 2, "end_ms": 1},
        {"key": "a", "end_ms": 1},
        {"key": "a", "begin_ms": EVER_MS},
    ],
    ids=str,
)
async def test_a_question_without_an_answer_is_no_error_of_the_broker(broker: Caller, question: dict[str, Any]) -> None:
    """L1"""
    await broker.sent("orders", b"x", properties={"KEYS": "a b"})

    assert (await query(broker, **question)).code == ResponseCode.QUERY_NOT_FOUND
    assert bodies(await query(broker, "a")) == bodies(await query(broker, "b")) == [b"x"]


async def test_the_newest_are_returned_and_never_more_than_64(broker: Caller) -> None:
    """L1: ``maxMsgsNumBatch``; a search by unique key has a count of its own, 32, whatever the client says."""
    for number in range(70):
        await broker.sent("orders", b"%d" % number, properties={"KEYS": "k", "UNIQ_KEY": "U"})

    assert bodies(await query(broker, "k", count_max=2)) == [b"68", b"69"]
    assert bodies(await query(broker, "k", count_max=1_000)) == [b"%d" % number for number in range(6, 70)]
    assert bodies(await query(broker, "U", count_max=1, unique=True)) == [b"%d" % number for number in range(38, 70)]
    assert len(bodies(await query(broker, "U", count_max=1))) == 1


async def test_a_span_of_time_counts_to_the_millisecond(tmp_path: Path) -> None:
    """L1: RocketMQ's index knows seconds; the records know better."""
    clock = ManualClock()
    async with (
        Broker(settings(), small_store(tmp_path), Env(clock=clock)) as running,
        dialled(running.address) as broker,
    ):
        times = []
        for number in range(6):
            clock.advance(0.4)
            times.append(clock.now_ms())
            await broker.sent("orders", b"%d" % number, properties={"KEYS": "k"})

        assert bodies(await query(broker, "k", begin_ms=times[1], end_ms=times[3])) == [b"1", b"2", b"3"]
        assert bodies(await query(broker, "k", begin_ms=times[1] + 1, end_ms=times[3] - 1)) == [b"2"]
        assert bodies(await query(broker, "k", begin_ms=times[5])) == [b"5"]
        found = await query(broker, "k", begin_ms=times[4] + 1, end_ms=times[5] - 1)
        assert found.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_search_among_many_keys_of_one_slot_gives_the_loop_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1, bounds: such keys can be chosen; other requests are answered meanwhile, and the message is found."""
    monkeypatch.setattr("ternmq.store.derived.index.WALK_ENTRIES", 10)
    async with serving(tmp_path, store={"max_hash_slot_num": 1}) as broker:
        for number in range(200):
            await broker.sent("orders", b"%d" % number, properties={"KEYS": f"k{number}"})
        answered: list[str] = []

        async def search(key: str) -> None:
            assert [key.removeprefix("k").encode()] == bodies(await query(broker, key, count_max=1))
            answered.append(key)

        async with asyncio.TaskGroup() as tasks:
            for key in ("k0", "k1", "k199"):
                tasks.create_task(search(key))
        # The last one is the first of the chain.
        assert ["k199", "k0", "k1"] == answered
