"""Delay levels (I1): never early, in order, at least once, whatever happens to the broker."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.delay.levels import BATCH, BATCH_BYTES
from ternmq.errors import DiskFull
from ternmq.message import Property
from ternmq.names import SCHEDULE_TOPIC
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import parse
from ternmq.wire.record import Sysflag
from tests.delay.world import DELAYS_MS, ROOT, World, in_virtual_time
from tests.store.small import draft

#: Longer than any level.
LONG_S = 20.0

Step = tuple[str, int]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 300, 999, 1_000, 1_001, 2_500, 11_000])),
        st.tuples(st.sampled_from(["restart", "kill", "cut power"]), st.sampled_from([0, 700, 6_000])),
    ),
    max_size=25,
)


async def live(world: World, steps: Sequence[Step]) -> None:
    """Let a broker live through all this, and then long enough to deliver everything."""
    world.start()
    for what, number in steps:
        match what:
            case "send":
                world.send(number)
            case "wait":
                await asyncio.sleep(number / 1000)
            case "restart":
                await world.stop()
            case "kill":
                await world.kill()
            case "cut power":
                await world.cut_power()
        if what not in ("send", "wait"):
            await asyncio.sleep(number / 1000)
            world.start()
    await asyncio.sleep(LONG_S)


@given(steps=STEPS, seed=st.integers(0, 1_000))
def test_a_delayed_message_is_never_early_and_never_lost(steps: list[Step], seed: int) -> None:
    """I1: and comes in the order of its level, also across restarts, kills and power cuts."""

    async def program() -> None:
        world = World(seed)
        await live(world, steps)
        delivered = world.delivered()
        first_at = {bytes(record.body): number for number, record in reversed(list(enumerate(delivered)))}
        due = {message.body: message.due_ms for message in world.sent}
        for record in delivered:
            # What a power cut took from the sender's view may have been kept by the disk.
            assert record.store_time_ms >= due.get(bytes(record.body), 0)
        for level in range(1, len(DELAYS_MS) + 1):
            sent = [message.body for message in world.sent if min(message.level, len(DELAYS_MS)) == level]
            assert sent == sorted(sent, key=lambda body: first_at[body])
        if not any(what in ("kill", "cut power") for what, _ in steps):
            assert len(world.sent) == len(delivered)
        await world.stop()

    in_virtual_time(program())


def test_a_message_is_punctual_when_nothing_is_in_its_way() -> None:
    """I1: to the millisecond, in a world without work."""

    async def program() -> None:
        world = World()
        world.start()
        for level in (3, 1, 2, 1):
            world.send(level)
            await asyncio.sleep(0.4)
        await asyncio.sleep(LONG_S)
        late = {
            message.body: record.store_time_ms - message.due_ms
            for message in world.sent
            for record in world.delivered()
            if record.body == message.body
        }
        assert [True] * 4 == [0 <= ms <= 1 for ms in late.values()]
        await world.stop()

    in_virtual_time(program())


def test_a_delivered_message_is_what_was_sent() -> None:
    """I1, C2: back in its own queue, tags code and all; its properties tell the way it took, as RocketMQ's do."""

    async def program() -> None:
        world = World()
        world.start()
        message = draft("orders", 3, b"body", TAGS="A", KEYS="k", DELAY="99", WAIT="true")
        message.flag, message.reconsume_times = 7, 2
        world.levels.redirect(message)
        waiting = world.store.put(message)
        [entry] = world.store.entries(SCHEDULE_TOPIC, 2, 0, 10)
        assert waiting.store_time_ms + DELAYS_MS[2] == entry.tags_code
        assert [] == world.delivered("orders", 3)

        await asyncio.sleep(LONG_S)

        [record] = world.delivered("orders", 3)
        assert (b"body", 7, 2) == (bytes(record.body), record.flag, record.reconsume_times)
        assert (message.born_time_ms, message.born_host) == (record.born_time_ms, record.born_host)
        assert {
            "TAGS": "A",
            "KEYS": "k",
            "WAIT": "true",
            Property.DELAY: "3",
            Property.REAL_TOPIC: "orders",
            Property.REAL_QUEUE_ID: "3",
        } == parse(record.properties)
        [entry] = world.store.entries("orders", 3, 0, 10)
        assert java_hash("A") == entry.tags_code
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize("level", ["0", "-3", "two", "99999999999", "9" * 5_000, ""])
def test_what_is_no_level_does_not_delay(level: str) -> None:
    """I1"""

    async def program() -> None:
        world = World()
        world.start()
        message = draft("orders", DELAY=level)
        before = message.properties
        world.levels.redirect(message)
        assert ("orders", before) == (message.topic, message.properties)
        await world.stop()

    in_virtual_time(program())


def test_a_half_message_waits_for_its_commit_first() -> None:
    """I1, J1: only then does its delay begin."""

    async def program() -> None:
        world = World()
        world.start()
        half, committed = draft("orders", DELAY="1"), draft("orders", DELAY="1")
        half.sysflag, committed.sysflag = Sysflag.PREPARED, Sysflag.COMMIT
        world.levels.redirect(half)
        world.levels.redirect(committed)
        assert ["orders", SCHEDULE_TOPIC] == [half.topic, committed.topic]
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize("set_back_ms", [1_500, 3_600_000])
def test_a_clock_that_is_set_back_delays_no_message_by_more_than_its_delay(set_back_ms: int) -> None:
    """I1: and delivers none before its delay has passed."""

    async def program() -> None:
        world = World()
        world.start()
        sent_at = []
        for number in range(6):
            if number == 3:
                world.clock.jump(-set_back_ms)
            sent_at.append(world.clock.monotonic())
            world.send(2)
            await asyncio.sleep(0.1)
        delivered_at: list[float] = []
        while len(delivered_at) < 6:
            await asyncio.sleep(0.05)
            delivered_at += [world.clock.monotonic()] * (len(world.delivered()) - len(delivered_at))
        waited = [end - begin for begin, end in zip(sent_at, delivered_at, strict=True)]
        assert [True] * 6 == [2.0 <= seconds <= 4.2 for seconds in waited]
        await world.stop()

    in_virtual_time(program())


def test_a_clock_that_is_set_forward_is_noticed_within_a_second() -> None:
    """I1"""

    async def program() -> None:
        world = World()
        world.start()
        world.send(3)
        await asyncio.sleep(0.5)
        world.clock.jump(3_600_000)
        await asyncio.sleep(1.1)
        assert 1 == len(world.delivered())
        await world.stop()

    in_virtual_time(program())


def test_a_full_disk_leaves_no_message_out(caplog: pytest.LogCaptureFixture) -> None:
    """I1, C9: the level tries again until there is space, and says so once."""

    async def program() -> None:
        world = World()
        world.start()
        sent = [world.send(1).body for _ in range(5)]
        put, is_full = world.store.put, True

        def refusing(message: object) -> object:
            if is_full:
                raise DiskFull("no space")
            return put(message)  # type: ignore[arg-type]

        world.store.put = refusing  # type: ignore[assignment]
        await asyncio.sleep(10)
        assert [] == world.delivered()
        is_full = False
        await asyncio.sleep(2)
        assert sent == [bytes(record.body) for record in world.delivered()]
        await world.stop()

    with caplog.at_level(logging.WARNING):
        in_virtual_time(program())
    (record,) = caplog.records
    assert record.message.startswith("cannot deliver the messages of delay level ")


def test_a_record_that_cannot_be_delivered_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """I1: what others wrote to the schedule topic without saying where it belongs."""

    async def program() -> None:
        world = World()
        world.start()
        world.store.put(draft(SCHEDULE_TOPIC, 0, b"nowhere", DELAY="1"))
        world.store.put(draft(SCHEDULE_TOPIC, 0, b"circle", DELAY="1", REAL_TOPIC=SCHEDULE_TOPIC, REAL_QID="0"))
        world.store.put(draft(SCHEDULE_TOPIC, 0, b"queue", DELAY="1", REAL_TOPIC="orders", REAL_QID="x"))
        good = world.send(1)
        await asyncio.sleep(LONG_S)
        assert [good.body] == [bytes(record.body) for record in world.delivered()]
        await world.stop()

    in_virtual_time(program())
    assert 3 == sum("is dropped" in record.message for record in caplog.records)


def test_many_messages_that_are_due_at_once_let_others_work_in_between() -> None:
    """I1: after a downtime, thousands are."""

    async def program() -> None:
        world = World(mapped_file_size_commit_log=1 << 20)
        world.start()
        for number in range(6 * BATCH):
            world.send(1 + number % 2)
        await world.stop()
        await asyncio.sleep(LONG_S)
        world.start()
        turns = 0
        while len(world.delivered()) < 6 * BATCH:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 6
        now_ms = world.clock.now_ms()
        assert [True] * (6 * BATCH) == [now_ms - record.store_time_ms < 100 for record in world.delivered()]
        await world.stop()

    in_virtual_time(program())


def test_large_messages_of_a_level_let_others_work_in_between() -> None:
    """I1: a turn is bounded by bytes, too."""
    size, count = 300_000, 12

    async def program() -> None:
        world = World(mapped_file_size_commit_log=1 << 20)
        world.start()
        for number in range(count):
            message = draft("orders", 0, b"%03d" % number * (size // 3), DELAY="1")
            world.levels.redirect(message)
            world.store.put(message)
        await world.stop()
        await asyncio.sleep(LONG_S)
        world.start()
        most = before = 0
        while before < count:
            await asyncio.sleep(0)
            now = len(world.delivered())
            most, before = max(most, now - before), now
        assert most * size <= BATCH_BYTES
        assert [b"%03d" % number for number in range(count)] == [bytes(one.body)[:3] for one in world.delivered()]
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize(
    "setting",
    [
        # Everything is further back than that, so it is read on other threads.
        {"access_message_in_memory_max_ratio": 0},
        # Due times stand in units beside the entries.
        {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4096},
    ],
    ids=["cold", "units"],
)
def test_wherever_records_and_due_times_lie(setting: dict[str, Any]) -> None:
    """I1, C3: they are read from there; 300 do not fit into one batch, segment or file."""

    async def program() -> None:
        world = World(**setting)
        world.start()
        sent = [world.send(1) for _ in range(300)]
        await asyncio.sleep(0.99)
        assert [] == world.delivered()
        await asyncio.sleep(1)
        delivered = world.delivered()
        assert [message.body for message in sent] == [bytes(record.body) for record in delivered]
        assert [True] * 300 == [
            record.store_time_ms >= message.due_ms for message, record in zip(sent, delivered, strict=True)
        ]
        await world.stop()

    in_virtual_time(program())


def test_a_due_time_whose_unit_is_lost_is_that_of_the_record() -> None:
    """I1, C3: as RocketMQ does."""

    async def program() -> None:
        world = World(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=4096)
        world.start()
        message = world.send(2)
        await world.stop()
        world.disk.remove(ROOT / "consumequeue_ext")
        world.config = dataclasses.replace(world.config, enable_consume_queue_ext=False)
        world.start()
        [entry] = world.store.entries(SCHEDULE_TOPIC, 1, 0, 10)
        assert entry.tags_code is None
        await asyncio.sleep(1.9)
        assert [] == world.delivered()
        await asyncio.sleep(0.2)
        assert [message.body] == [bytes(record.body) for record in world.delivered()]
        await world.stop()

    in_virtual_time(program())


def test_what_fills_a_gap_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """I1, C2: it names the log's first record, but not its size; also where records are read on other threads."""

    async def program() -> None:
        world = World(access_message_in_memory_max_ratio=0)
        world.start()
        before = world.send(1)
        queue = world.store._queues.make(SCHEDULE_TOPIC, 0)
        queue.fill_to(queue.next_offset + 2)
        after = world.send(1)
        await asyncio.sleep(2)
        assert [before.body, after.body] == [bytes(record.body) for record in world.delivered()]
        await world.stop()

    in_virtual_time(program())
    assert 2 == sum("is dropped" in record.message for record in caplog.records)


def test_a_level_longer_than_the_log_is_kept_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """I1, C9"""

    async def program() -> None:
        world = World(message_delay_level="1h 4d", file_reserved_time=72)
        world.start()
        await asyncio.sleep(0.1)
        await world.stop()

    in_virtual_time(program())
    [record] = caplog.records
    assert "before messages of delay level 2 are due; raise fileReservedTime (72 h)" in record.message
