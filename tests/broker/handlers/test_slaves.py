"""What a slave copies from its master besides the log (D4, I1)."""

from __future__ import annotations

import logging

import msgspec
import pytest

from ternmq.replication.returning import COUNT_MAX
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.offsets import OffsetsTaken, OwnOffset, OwnOffsets
from ternmq.wire.bodies.stats import ConsumerOffsets, DelayOffsets
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import SendMessage, UpdateOffset
from tests.broker.handlers.conftest import Client


async def test_all_consumer_offsets_are_told_as_the_file_has_them(client: Client) -> None:
    """D4: 43."""
    await client.create_topic("orders")
    header = UpdateOffset(consumer_group="g", topic="orders", queue_id=1, commit_offset=7)
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    body = (await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)).body
    assert {"orders@g": {1: 7}} == decode(body, ConsumerOffsets).offset_table
    # Slaves of RocketMQ 5 read the version, and those of 4.9 do not mind it.
    assert {"dataVersion", "offsetTable"} == set(msgspec.json.decode(bytes(body)))


async def test_the_progress_of_the_delay_levels_is_told_as_the_file_has_it(client: Client) -> None:
    """I1: 45."""

    async def told() -> dict[int, int]:
        body = (await client.ok(RequestCode.GET_ALL_DELAY_OFFSET)).body
        assert {"dataVersion", "offsetTable"} == set(msgspec.json.decode(bytes(body)))
        return dict(decode(body, DelayOffsets).offset_table)

    await client.create_topic("orders")
    assert {} == await told()
    for _ in range(2):
        header = SendMessage(topic="orders", queue_id=0, properties="DELAY\x011\x02")
        await client.ok(RequestCode.SEND_MESSAGE, header, b"later")
    seen = await told()
    while seen != {1: 2}:
        seen = await told()


def own(topic: str, queue_offset: int, *, queue_id: int = 0, committed_ms: int = 1 << 61) -> OwnOffset:
    return OwnOffset(group="g", topic=topic, queue_id=queue_id, queue_offset=queue_offset, committed_ms=committed_ms)


async def test_offsets_that_no_slave_returns_change_nothing(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """O3: 15030 with unknown topics and queues, negative and huge numbers, and more than a slave sends at once."""
    await client.create_topic("orders")
    header = UpdateOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=0)
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    wrong = [own("nowhere", 1), own("orders", -1), own("orders", 1, queue_id=1 << 40), own("orders", 1, queue_id=-1)]
    with caplog.at_level(logging.INFO):
        answer = await client.ok(RequestCode.RETURN_OFFSETS, body=encode(OwnOffsets(offsets=wrong * 100)))
    assert 0 == decode(answer.body, OffsetsTaken).taken
    assert 1 == caplog.text.count("are dropped")
    answer = await client.ok(RequestCode.RETURN_OFFSETS, body=encode(OwnOffsets(offsets=[own("orders", 1 << 61)])))
    assert 1 == decode(answer.body, OffsetsTaken).taken

    many = OwnOffsets(offsets=[own("orders", 0)] * (COUNT_MAX + 1))
    refused = await client.call(RequestCode.RETURN_OFFSETS, body=encode(many))
    assert ResponseCode.INVALID_PARAMETER == refused.code
    assert "return them in parts" in (refused.remark or "")
    body = (await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)).body
    assert {"orders@g": {0: 0}} == decode(body, ConsumerOffsets).offset_table
