"""Recalls of messages in an hour that has many (I2)."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.delay import recalls
from ternmq.errors import SystemBusy
from ternmq.wire.recall import RecallHandle, parse_handle
from tests.delay.timers import TimerWorld
from tests.delay.world import in_virtual_time


@pytest.mark.parametrize("marks_a_turn", [1, 3, 1_000])
def test_an_hour_with_many_closed_messages_is_searched_in_slices(
    monkeypatch: pytest.MonkeyPatch, marks_a_turn: int
) -> None:
    """I2: each message is recalled once, with the handle of either kind, while others of its hour are recalled."""
    monkeypatch.setattr(recalls, "_CLOSED_MAX", 2)
    monkeypatch.setattr(recalls, "_MARKS", marks_a_turn)

    async def program() -> None:
        world = TimerWorld()
        world.start()
        sent = [message for _ in range(20) if (message := world.send(1_800_000)) is not None]
        for message in sent[10:]:
            handle = parse_handle(message.handle)
            message.handle = RecallHandle(handle.topic, handle.broker_name, handle.slot_ms, handle.unique_key).text()
        # Each twice, at the same time.
        recalled = await asyncio.gather(*map(world.recall, sent), *map(world.recall, sent))
        assert [True] * 20 == [first != second for first, second in zip(recalled[:20], recalled[20:], strict=True)]
        assert [False] * 20 == await asyncio.gather(*map(world.recall, sent))
        assert 0 == world.schedule.waiting
        await world.stop()

    in_virtual_time(program())


def test_recalls_that_must_search_wait_for_each_other_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, M1: an hour may have millions of messages, and each search looks at all of them."""
    monkeypatch.setattr(recalls, "_WAITING_MAX", 3)

    async def program() -> None:
        world = TimerWorld()
        world.start()
        message = world.send(1_800_000)
        assert message is not None
        handle = parse_handle(message.handle)
        unknown = RecallHandle(handle.topic, handle.broker_name, handle.slot_ms, "unknown")
        searches = [
            asyncio.ensure_future(world.recalls.draft("orders", unknown.text(), born_host=bytes(8))) for _ in range(5)
        ]
        refused = await asyncio.gather(*searches, return_exceptions=True)
        assert 2 == sum(isinstance(error, SystemBusy) for error in refused)
        assert await world.recall(message)
        await world.stop()

    in_virtual_time(program())
