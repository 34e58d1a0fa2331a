"""The schedule log (I2, C5): hour files as a fold of the log, and what a crash or a bad disk leaves of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq.delay import schedule_log
from ternmq.delay.hour_files import ENTRY_BYTES, SUFFIXES, hour_name, parse_hour_name
from ternmq.delay.rocketmq_timer import PATH, WHEEL_FILES, write_handover
from ternmq.delay.schedule_log import DIRECTORY, STATE, ScheduleLog
from ternmq.errors import DiskFull
from ternmq.store.log.draft import Draft
from ternmq.wire.properties import join
from tests.delay.timers import ROOT, TimerWorld
from tests.delay.world import in_virtual_time
from tests.store.small import BORN

HOUR_S = 3600.0


def hour_files(world: TimerWorld) -> set[str]:
    return {entry.name for entry in world.disk.list(ROOT / DIRECTORY) if entry.name.partition(".")[2] in SUFFIXES}


def test_hours_have_names() -> None:
    """I2: in UTC."""
    assert "2023111422" == hour_name(472_222)
    assert 472_222 == parse_hour_name("2023111422")
    assert (None, None, None) == tuple(map(parse_hour_name, ("state", "20231114", "2023111499")))


def test_files_are_removed_when_all_is_delivered_and_known_on_the_disk() -> None:
    """I2: not while a power cut could take the deliveries, and with them the messages."""

    async def program() -> None:
        world = TimerWorld(flush_commit_log_thorough_interval=10**9, flush_commit_log_least_pages=10**6)
        world.start()
        message = world.send(1_000)
        assert message is not None
        world.clock.jump(3 * 3_600_000)
        await asyncio.sleep(130)
        world.look()
        assert [message.key] == [each.key for each in world.delivered["orders"]]
        assert 3 == len(hour_files(world))
        world.store.flush_now()
        await asyncio.sleep(130)
        assert set() == hour_files(world)
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize("damage", ["state", "index", "closed"])
def test_a_damaged_file_costs_no_message(damage: str) -> None:
    """C8, I2: the checksums decide, and the log brings back the rest; nothing comes twice."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        for delay_ms in (1_000, 60_000, 600_000, 700_000):
            world.send(delay_ms)
        await asyncio.sleep(90)
        await world.stop()
        path = ROOT / DIRECTORY / (STATE if damage == "state" else f"2023111422.{damage}")
        if damage == "state":
            world.disk.flip_bit(path, 100)
        else:
            content = world.disk.read(path) or b""
            world.disk.replace(path, content[: ENTRY_BYTES // 2])
        world.start()
        await asyncio.sleep(HOUR_S)
        world.check_complete()
        await world.stop()

    in_virtual_time(program())


def test_a_closed_store_folds_nothing_again() -> None:
    """I2: also when no delayed message came for a long time."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        world.send(3_000_000)
        await asyncio.sleep(70)
        for _ in range(30):
            world.store.put(Draft("plain", 0, b"x" * 100, join({"UNIQ_KEY": "A"}), 1, BORN))
        await world.stop()
        fresh = ScheduleLog(world.disk, ROOT, ring=lambda _: None)
        assert world.store.written == fresh.load()
        assert 1 == fresh.waiting

    in_virtual_time(program())


def test_what_rocketmq_has_delivered_does_not_come_again() -> None:
    """I2, C11: its checkpoint says so; its own files go when ours have the rest."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        there, here = world.send(1_000_000), world.send(2_000_000)
        assert there is not None
        assert here is not None
        await world.stop()
        read_time_ms = there.due_ms + 1_000
        # As a RocketMQ leaves it that had taken in both and delivered the first.
        world.disk.remove(ROOT / PATH)
        data = (ROOT / DIRECTORY / STATE, world.disk.read(ROOT / DIRECTORY / STATE))
        assert data[1] is not None
        for entry in world.disk.list(ROOT / DIRECTORY):
            world.disk.remove(ROOT / DIRECTORY / entry.name)
        write_handover(world.disk, ROOT, read_time_ms, 2)
        for name in WHEEL_FILES:
            world.disk.replace(ROOT / name, b"x")

        world.start()
        assert 1 == world.schedule.waiting
        await asyncio.sleep(HOUR_S)
        world.look()
        assert [here.key] == [each.key for each in world.delivered["orders"]]
        await world.stop()
        assert [] == [name for name in WHEEL_FILES if world.disk.read(ROOT / name) is not None]

    in_virtual_time(program())


def test_a_stop_says_that_rocketmq_does_not_deliver_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    """I2, C11: the operator who gives the directory to a RocketMQ reads it; without such messages there is no line."""
    caplog.set_level("INFO", "ternmq.delay")

    async def program() -> None:
        world = TimerWorld()
        world.start()
        await asyncio.sleep(1)
        await world.stop()
        assert "RocketMQ" not in caplog.text
        world.start()
        for _ in range(3):
            world.send(60_000)
        await asyncio.sleep(1)
        await world.stop()

    in_virtual_time(program())
    assert "3 messages wait for their delivery time" in caplog.text


def test_a_stop_during_a_pass_of_the_flush_leaves_no_sign_of_a_rocketmq(caplog: pytest.LogCaptureFixture) -> None:
    """I2, C11: the start took the note of our own stop for that of a RocketMQ that had the directory since."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        world.send(60_000)
        await asyncio.sleep(1)
        # A pass has written it, and did not end.
        world.schedule.write_out()
        await world.stop()
        world.start()
        assert not world.schedule.handover.is_foreign
        await asyncio.sleep(70)
        assert 1 == len(world.delivered["orders"])
        await world.stop()

    in_virtual_time(program())
    assert "RocketMQ has used this directory" not in caplog.text


def test_what_a_rocketmq_master_delivers_is_closed_on_its_slave() -> None:
    """O4, I2: a slave asks for the check point; after a promotion only the rest is delivered."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        there, here = world.send(1_000_000), world.send(2_000_000)
        assert there is not None
        assert here is not None
        assert 2 == world.schedule.waiting
        world.schedule.delivered_elsewhere(there.due_ms + 1_000, 1)
        assert 1 == world.schedule.waiting
        # The second is behind the queue offset that its master has taken in.
        world.schedule.delivered_elsewhere(here.due_ms + 1_000, 1)
        assert 1 == world.schedule.waiting
        await world.stop()
        world.start()
        await asyncio.sleep(HOUR_S)
        world.look()
        assert [here.key] == [each.key for each in world.delivered["orders"]]
        await world.stop()

    in_virtual_time(program())


def test_a_record_that_rocketmq_wrote_again_replaces_the_first() -> None:
    """I2, C11: RocketMQ rolls messages for far times, and takes back by unique key."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        slot_ms = (world.clock.now_ms() // 1000 + 100) * 1000

        def put(key: str, **more: str) -> None:
            place = {"UNIQ_KEY": key, "TIMER_OUT_MS": str(slot_ms), "REAL_TOPIC": "orders", "REAL_QID": "0", **more}
            world.store.put(Draft("rmq_sys_wheel_timer", 0, key.encode(), join(place), 1, BORN))

        put("rolled")
        put("rolled", TIMER_ROLL_TIMES="1")
        put("taken")
        put("kept")
        put("x", TIMER_DEL_UNIQKEY="taken")
        put("y", TIMER_DEL_UNIQKEY="orders+unknown")
        await asyncio.sleep(200)
        world.look()
        assert ["kept", "rolled"] == sorted(each.key for each in world.delivered["orders"])
        assert 0 == world.schedule.waiting
        await world.stop()

    in_virtual_time(program())


def test_a_message_that_names_no_queue_is_dropped_and_closed(caplog: pytest.LogCaptureFixture) -> None:
    """I2: a log of another origin may hold anything; it must not block its hour."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        for topic in ("SCHEDULE_TOPIC_XXXX", "orders"):
            place = {"TIMER_OUT_MS": str(world.clock.now_ms()), "REAL_TOPIC": topic, "REAL_QID": "x"}
            world.store.put(Draft("rmq_sys_wheel_timer", 0, b"x", join(place), 1, BORN))
        world.store.put(Draft("rmq_sys_wheel_timer", 0, b"x", "TAGS\x01A\x02", 1, BORN))
        await asyncio.sleep(10)
        world.check_complete()
        await world.stop()

    in_virtual_time(program())
    assert 2 == caplog.text.count("cannot be delivered and is dropped: its properties do not name a valid queue")
    assert 1 == caplog.text.count("has no delivery time or no topic")


def test_an_empty_replica_is_told_what_to_copy() -> None:
    """I2: the files and the state, which counts them."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        world.send(5_000)
        await asyncio.sleep(70)
        await world.stop()
        names = [path.name for path in world.schedule.files()]
        assert {"2023111422.index", "2023111422.records", "2023111422.closed", STATE} == set(names)
        assert STATE == names[-1]

    in_virtual_time(program())


def test_messages_are_punctual_when_nothing_is_in_their_way() -> None:
    """I3: to the millisecond, over the border of an hour, too."""

    async def program() -> None:
        world = TimerWorld()
        world.start()
        for number in range(40):
            world.send(number * 137_000 + 13, absolute=bool(number % 2))
            await asyncio.sleep(0.25)
        await asyncio.sleep(2 * HOUR_S)
        world.check_complete()
        due = {key: message.due_ms for key, message in world.sent.items()}
        late = [each.store_time_ms - due[each.key] for each in world.delivered["orders"]]
        assert (40, True) == (len(late), max(late) <= 2)
        await world.stop()

    in_virtual_time(program())


def test_messages_for_many_hours_are_written_in_portions() -> None:
    """I2: a pass over a thousand hours must not hold up the loop, and a full buffer costs one hour's files."""

    async def program() -> None:
        world = TimerWorld(flush_consume_queue_thorough_interval=10**9)
        world.start()
        for hours in range(100):
            assert world.send(hours * 3_600_000 + 5_000) is not None
        steps = 0
        while not world.schedule.write_some():
            steps += 1
        assert 5 <= steps < 50
        assert 200 == len(world.schedule.write_out())
        await world.stop()
        fresh = ScheduleLog(world.disk, ROOT, ring=lambda _: None)
        fresh.load()
        assert 100 == fresh.waiting == len(fresh.hours())

    in_virtual_time(program())


def test_a_full_buffer_is_written_hour_by_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2: the one that has waited longest first; a disk that is full in between loses nothing."""
    monkeypatch.setattr(schedule_log, "BUFFER_BYTES", 1_500)

    async def program() -> None:
        world = TimerWorld()
        world.start()
        for number in range(40):
            assert world.send(number % 8 * 3_600_000 + 5_000_000) is not None
        on_disk = {name.partition(".")[0] for name in hour_files(world)}
        assert 8 == len(on_disk)

        def full(step: str, path: Path) -> None:
            if step == "write" and path.name.endswith(".index"):
                raise DiskFull("the disk is full")

        world.disk.before = full
        for number in range(40):
            world.send(number % 8 * 3_600_000 + 5_000_000)
        world.disk.before = None
        await asyncio.sleep(5)
        world.clock.jump(24 * 3_600_000)
        await asyncio.sleep(60)
        world.check_complete()
        await world.stop()

    in_virtual_time(program())
