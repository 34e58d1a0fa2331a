"""Single messages, by place and by key (L1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import QueryMessage, QueryReply, ViewMessage
from tests.broker.calls import Caller, serving

EVER_MS = 2**63 - 1


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


async def query(broker: Caller, key: str, *, count_max: int = 64, unique: bool | None = None) -> Response:
    header = QueryMessage(topic="orders", key=key, count_max=count_max, begin_ms=0, end_ms=EVER_MS, by_unique_id=unique)
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


async def test_a_key_that_nobody_has_is_not_found(broker: Caller) -> None:
    """L1"""
    await broker.sent("orders", b"x", properties={"KEYS": "k"})

    assert (await query(broker, "other")).code == ResponseCode.QUERY_NOT_FOUND
