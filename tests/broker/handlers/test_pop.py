"""Pops, acks and changes over a real connection (F8, F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.wire.codes import ResponseCode
from ternmq.wire.requests import PopReply
from tests.broker.calls import FAR_MS, Caller, serving
from tests.broker.popping import Popped, ack, change, held_pop, pop, popped


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


def bodies(found: list[Popped]) -> list[bytes]:
    return [message.body for message in found]


async def test_a_popped_message_is_hidden_from_the_rest_of_its_group(broker: Caller) -> None:
    """F9: but not from other groups."""
    for number in range(3):
        await broker.sent("orders", b"%d" % number)

    assert [b"0", b"1"] == bodies(await popped(broker, "orders", count_max=2))
    assert [b"2"] == bodies(await popped(broker, "orders"))
    assert [] == await popped(broker, "orders")
    assert [b"0", b"1", b"2"] == bodies(await popped(broker, "orders", consumer_group="others"))


async def test_what_is_not_acked_comes_again_when_its_time_is_over(broker: Caller) -> None:
    """F9: once more counted, to whoever asks; what was acked does not."""
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


async def test_a_held_pop_is_answered_by_the_next_message(broker: Caller) -> None:
    """F8"""
    await broker.sent("orders", b"0")
    await popped(broker, "orders")
    waiting = held_pop(broker, "orders", poll_ms=FAR_MS)

    await broker.sent("orders", b"1")

    response = await waiting
    assert response.code == 0
    assert response.read(PopReply).rest_count == 0


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

    response, _ = await change(broker, message, invisible_ms=200)
    assert response.code == 0

    refused, _ = await change(broker, message, invisible_ms=FAR_MS)
    assert refused.code == ResponseCode.NO_MESSAGE
    (again,) = await popped(broker, "orders", poll_ms=FAR_MS)
    assert (again.body, again.record.reconsume_times) == (b"0", 1)
