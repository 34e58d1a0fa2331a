"""Which group may read which topic: one rule for every way of reading (D1, D2, F9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import Notification, PeekMessage
from ternmq.wire.requests_admin import GroupForbidden, UpdateTopic
from tests.broker.calls import Caller, pull, serving
from tests.broker.popping import wish


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        await caller.sent("orders", b"1")
        yield caller


async def read_in_all_ways(broker: Caller, group: str) -> list[Response]:
    place: dict[str, Any] = {"consumer_group": group, "topic": "orders", "queue_id": 0}
    return [
        await broker.call(RequestCode.PULL_MESSAGE, pull("orders", consumer_group=group)),
        await broker.call(RequestCode.POP_MESSAGE, wish("orders", consumer_group=group, invisible_ms=1)),
        await broker.call(RequestCode.PEEK_MESSAGE, PeekMessage(count_max=1, **place)),
        await broker.call(RequestCode.NOTIFICATION, Notification(**place)),
    ]


async def test_a_topic_that_is_forbidden_for_a_group_is_read_in_no_way(broker: Caller) -> None:
    """D2, F9: neither by pull nor by pop; other groups are not concerned."""
    await read_in_all_ways(broker, "group")

    forbid = GroupForbidden(group="group", topic="orders", readable=False)
    assert 0 == (await broker.call(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid)).code
    refused = await read_in_all_ways(broker, "group")

    assert [ResponseCode.NO_PERMISSION] * 4 == [response.code for response in refused]
    assert all("is forbidden for topic[orders]" in (response.remark or "") for response in refused)
    others = await read_in_all_ways(broker, "others")
    assert ResponseCode.NO_PERMISSION not in [response.code for response in others]


async def test_a_topic_without_permission_to_read_is_read_in_no_way(broker: Caller) -> None:
    """D1"""
    only_write = UpdateTopic(topic="orders", read_queue_nums=4, write_queue_nums=4, perm=2)
    await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, only_write)

    refused = await read_in_all_ways(broker, "group")

    assert [ResponseCode.NO_PERMISSION] * 4 == [response.code for response in refused]
