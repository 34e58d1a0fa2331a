"""What waits, for tools (I2): with many closed messages, in slices."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.delay import overview
from ternmq.delay.due import HOUR_MS
from ternmq.delay.overview import Overview
from ternmq.wire.properties import find
from ternmq.wire.record import unpack_record
from tests.delay.timers import TimerWorld
from tests.delay.world import in_virtual_time


@pytest.mark.parametrize("slice_entries", [1, 7, 5_000])
def test_what_is_closed_is_neither_counted_nor_shown(monkeypatch: pytest.MonkeyPatch, slice_entries: int) -> None:
    """I2: recalled messages, and those that came while a tool looks."""
    monkeypatch.setattr(overview, "_SLICE", slice_entries)

    async def program() -> None:
        world = TimerWorld()
        world.start()
        sent = [world.send(10_000_000 + number, "orders" if number % 3 else "bills") for number in range(60)]
        for message in sent[::4]:
            assert message is not None
            assert await world.recall(message)
        left = [message for number, message in enumerate(sent) if message is not None and number % 4]
        hours: dict[int, int] = {}
        for message in left:
            if message.topic == "orders":
                hour_ms = (message.due_ms - 1) // 1000 * 1000 // HOUR_MS * HOUR_MS
                hours[hour_ms] = hours.get(hour_ms, 0) + 1
        look = Overview(world.schedule)
        counted, again, peeked = await asyncio.gather(
            look.hours_of("orders"), look.hours_of("orders"), look.peek("orders", begin_ms=0, count_max=1_000)
        )
        assert hours == counted == again
        keys = [find(unpack_record(record).properties, "UNIQ_KEY") for record in peeked]
        assert [message.key for message in left if message.topic == "orders"] == keys
        assert 5 == len(await look.peek("orders", begin_ms=0, count_max=5))
        assert {} == await look.hours_of("nothing")
        await world.stop()

    in_virtual_time(program())
