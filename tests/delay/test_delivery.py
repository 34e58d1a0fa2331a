"""What hostile or unusual messages do to the runner that delivers (I2, I3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ternmq.wire.properties import find
from tests.delay.timers import TimerWorld
from tests.delay.world import in_virtual_time
from tests.store.small import draft


def put(world: TimerWorld, body: bytes, **properties: str) -> str:
    """Store a message as a send does; its recall handle."""
    message = draft("orders", 0, body, **properties)
    world.timer.redirect(message)
    placed = world.store.put(message)
    return world.timer.handle(message, placed.log_offset, find(message.properties, "UNIQ_KEY") or "") or ""


def came(world: TimerWorld) -> list[bytes]:
    world.look()
    return [each.body for each in world.delivered["orders"]]


def run(program: Callable[[TimerWorld], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = TimerWorld(mapped_file_size_commit_log=1 << 20)
        world.start()
        await program(world)
        await world.stop()

    in_virtual_time(whole())


@pytest.mark.parametrize("letter", ["x", "é", "漢"])
def test_a_message_whose_properties_leave_no_room_is_delivered(letter: str) -> None:
    """I2: what fits into the record that waits is delivered, even if the times of its wait do not fit any more."""

    async def program(world: TimerWorld) -> None:
        for length_bytes in range(32_767 - 160, 32_767 - 120, 3):
            note = letter * (length_bytes // len(letter.encode()))
            put(world, b"%d" % length_bytes, TIMER_DELAY_MS="500", UNIQ_KEY=str(length_bytes), NOTE=note)
        accepted = world.schedule.waiting
        await asyncio.sleep(3)
        assert accepted == 14
        assert accepted == len(came(world))

    run(program)


def test_a_message_with_a_long_key_is_taken_back_and_holds_up_no_other() -> None:
    """I2: by RocketMQ's TIMER_DEL_UNIQKEY; the record that closes it would have the key twice."""

    async def program(world: TimerWorld) -> None:
        key, due = "k" * 16_350, str(world.clock.now_ms() + 3_000)
        put(world, b"taken back", TIMER_DELIVER_MS=due, UNIQ_KEY=key)
        put(world, b"", TIMER_DELIVER_MS=due, UNIQ_KEY="D", TIMER_DEL_UNIQKEY=key)
        put(world, b"other", TIMER_DELIVER_MS=due, UNIQ_KEY="O")
        await asyncio.sleep(6)
        assert [b"other"] == came(world)
        assert 0 == world.schedule.waiting

    run(program)


def test_a_message_that_is_taken_back_twice_is_counted_once() -> None:
    """I2: in one turn of the runner, and with more messages in the slot than are compared in one."""

    async def program(world: TimerWorld) -> None:
        due = str(world.clock.now_ms() + 3_000)
        for number in range(1_200):
            put(world, b"%d" % number, TIMER_DELIVER_MS=due, UNIQ_KEY=f"K{number}")
        for number in range(2):
            put(world, b"", TIMER_DELIVER_MS=due, UNIQ_KEY=f"D{number}", TIMER_DEL_UNIQKEY="K1100")
        await asyncio.sleep(1)
        assert 1_199 == world.schedule.waiting == world.schedule.topics_waiting["orders"]
        await asyncio.sleep(5)
        assert [b"%d" % number for number in range(1_200) if number != 1_100] == came(world)

    run(program)


def test_a_client_cannot_say_that_a_record_was_written_again() -> None:
    """I2: TIMER_ROLL_TIMES is RocketMQ's own; it would close other messages of the same key, and cost a search each."""

    async def program(world: TimerWorld) -> None:
        due = str(world.clock.now_ms() + 30_000)
        put(world, b"first", TIMER_DELIVER_MS=due, UNIQ_KEY="K")
        put(world, b"second", TIMER_DELIVER_MS=due, UNIQ_KEY="K", TIMER_ROLL_TIMES="1")
        await asyncio.sleep(5)
        assert 2 == world.schedule.waiting

    run(program)
