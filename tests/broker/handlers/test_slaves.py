"""What a slave copies from its master besides the log (D4, I1)."""

from __future__ import annotations

import msgspec

from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.stats import ConsumerOffsets, DelayOffsets
from ternmq.wire.codes import RequestCode
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
