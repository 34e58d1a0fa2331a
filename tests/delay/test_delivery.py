"""What hostile or unusual messages do to the runner that delivers (I2, I3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ternmq.delay.delivery import BATCH_BYTES
from ternmq.delay.entry_records import EntryRecords
from ternmq.delay.hour_files import HourFiles, IndexLine
from ternmq.delay.settling import SpecialEntries
from ternmq.delay.wheel import HourWheel
from ternmq.errors import StoreError
from ternmq.testing.disk import SimulatedFile
from ternmq.wire.properties import find, parse
from ternmq.wire.record import FIXED_V4_BYTES, Record, pack_host, unpack_record
from tests.delay.timers import TimerWorld
from tests.delay.world import in_virtual_time
from tests.store.small import draft

#: Properties that say when the runner had its turns.
TIMES = {"TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS"}


def all_records(world: TimerWorld, topic: str) -> list[Record]:
    """What was delivered to the queues 0 and 1, in order."""
    return [
        unpack_record(page)
        for queue_id in (0, 1, 7)
        for offset in range(world.store.max_offset(topic, queue_id))
        for entry in world.store.entries(topic, queue_id, offset, 1)
        if (page := world.store.record_at(entry.log_offset, entry.size)) is not None
    ]


def put(world: TimerWorld, body: bytes, **properties: str) -> str:
    """Store a message as a send does; its recall handle."""
    message = draft("orders", 0, body, **properties)
    world.timer.redirect(message)
    placed = world.store.put(message)
    return world.timer.handle(message, placed.log_offset, find(message.properties, "UNIQ_KEY") or "") or ""


def came(world: TimerWorld) -> list[bytes]:
    world.look()
    return [each.body for each in world.delivered["orders"]]


#: Settings of a store whose records are never taken to be in memory: they are read from the files of the hour.
COLD = {"access_message_in_memory_max_ratio": 0}


def run(program: Callable[[TimerWorld], Coroutine[Any, Any, None]], **changes: Any) -> None:
    async def whole() -> None:
        world = TimerWorld(mapped_file_size_commit_log=1 << 20, **changes)
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


def test_thousands_that_take_back_hold_up_no_other_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, I3: any client may send them. All of a slot are settled with one look at its messages, before an hour is
    delivered as well as later; and what is due meanwhile comes."""
    looks = 0
    settle_one = SpecialEntries._settle_one

    def counted(*args: Any) -> int:
        nonlocal looks
        looks += 1
        return settle_one(*args)

    monkeypatch.setattr(SpecialEntries, "_settle_one", counted)

    async def program(world: TimerWorld) -> None:
        due_ms = world.clock.now_ms() + 60_000
        put(world, b"other", TIMER_DELIVER_MS=str(due_ms - 30_000), UNIQ_KEY="other")
        for number in range(1_500):
            put(world, b"%d" % number, TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY=f"K{number}")
        await world.stop()
        world.start()
        for number in range(1, 1_500):
            put(world, b"", TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY=f"D{number}", TIMER_DEL_UNIQKEY=f"K{number}")
        await asyncio.sleep(1)
        assert 2 == world.schedule.waiting == world.schedule.topics_waiting["orders"]
        assert looks < 10_000
        await asyncio.sleep(70)
        assert [b"other", b"0"] == came(world)

    run(program)


def test_large_messages_of_a_slot_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, I3: what is read for the special entries of a slot in one turn of the loop is bounded by bytes, too."""
    limit_bytes, body_bytes = 100_000, 20_000
    monkeypatch.setattr("ternmq.delay.settling._COMPARED_BYTES", limit_bytes)
    turns: list[int] = []
    go_on, read = SpecialEntries.go_on, EntryRecords.read

    def counted_read(self: EntryRecords, files: HourFiles, entry: IndexLine) -> Record | None:
        if turns:
            turns[-1] += entry.size
        return read(self, files, entry)

    def counted_turn(self: SpecialEntries, files: HourFiles, wheel: HourWheel) -> None:
        turns.append(0)
        go_on(self, files, wheel)

    monkeypatch.setattr(EntryRecords, "read", counted_read)
    monkeypatch.setattr(SpecialEntries, "go_on", counted_turn)

    async def program(world: TimerWorld) -> None:
        due = str(world.clock.now_ms() + 60_000)
        for number in range(40):
            put(world, b"%d" % number * body_bytes, TIMER_DELIVER_MS=due, UNIQ_KEY=f"K{number}")
        for number in range(30):
            body = b"x" * body_bytes
            put(world, body, TIMER_DELIVER_MS=due, UNIQ_KEY=f"D{number}", TIMER_DEL_UNIQKEY=f"K{number}")
        await asyncio.sleep(5)
        assert 10 == world.schedule.waiting

    run(program)
    # Each message is read once, and each that takes back twice.
    assert sum(turns) > 100 * body_bytes
    assert max(turns) < limit_bytes + 3 * body_bytes


def test_what_takes_back_too_late_is_not_counted_as_waiting() -> None:
    """I2: its second has begun, so it is closed like a message of its topic."""

    async def program(world: TimerWorld) -> None:
        await asyncio.sleep(1 - world.clock.now_ms() % 1000 / 1000)
        put(world, b"first", TIMER_DELAY_MS="900", UNIQ_KEY="K")
        await asyncio.sleep(0.5)
        await world.stop()
        await asyncio.sleep(5)
        world.start()
        put(world, b"", TIMER_DELAY_MS="1", UNIQ_KEY="D", TIMER_DEL_UNIQKEY="K")
        await asyncio.sleep(5)
        assert [b"first"] == came(world)
        assert {} == world.schedule.topics_waiting

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


def test_many_at_once_are_delivered_as_one_by_one() -> None:
    """I2: the quick way for usual records and the long way give the same records, unusual ones among them, too."""
    kinds: list[dict[str, str]] = [
        {},
        {"TAGS": "A", "KEYS": "a b"},
        {"NOTE": "é漢"},
        {"NOTE": "v" * 5_000},
        {"NOTE": "v" * 32_500},
        {"REAL_QID": "7", "REAL_TOPIC": "other"},
        {"TIMER_DEL_UNIQKEY": "nothing"},
    ]
    found: list[list[Record]] = []

    async def program(world: TimerWorld) -> None:
        # As after a damaged ``state``: then each is compared with the log, and there is no quick way.
        world.schedule.is_doubtful = len(found) == 1
        for number in range(600):
            message = draft(
                ("orders", "other")[number % 5 == 0],
                number % 2,
                b"%d" % number * (number % 40),
                UNIQ_KEY=f"K{number}",
                **kinds[number * number % len(kinds)],
                TIMER_DELIVER_MS=str(1_700_000_030_000 + number % 3),
            )
            if number % 7 == 0:
                message.born_host = pack_host("::1", 5)
            message.flag, message.reconsume_times = number, number % 3
            world.timer.redirect(message)
            world.store.put(message)
        world.clock.jump(1_700_000_030_000 - world.clock.now_ms() - 1_000)
        await asyncio.sleep(5)
        assert 0 == world.schedule.waiting
        found.append([record for topic in ("orders", "other") for record in all_records(world, topic)])
        world.clock.jump(7_200_000)
        await asyncio.sleep(130)
        assert [] == world.schedule.hours()

    run(program)
    run(program)
    assert len(found[0]) == 600 - sum(
        "TIMER_DEL_UNIQKEY" in kinds[number * number % len(kinds)] for number in range(600)
    )
    for quick, long in zip(*found, strict=True):
        assert 0 <= abs(quick.store_time_ms - long.store_time_ms) < 2_000
        shown = [
            (
                record.topic,
                record.queue_id,
                record.flag,
                record.sysflag,
                record.born_time_ms,
                record.born_host,
                record.reconsume_times,
                bytes(record.body),
                {name: value for name, value in parse(record.properties).items() if name not in TIMES},
                sorted(TIMES & parse(record.properties).keys()),
                record.prepared_transaction_offset,
            )
            for record in (quick, long)
        ]
        assert shown[0] == shown[1]


@pytest.mark.parametrize("is_doubtful", [False, True])
def test_a_record_that_is_damaged_among_many_is_taken_from_the_log(is_doubtful: bool) -> None:
    """I2, C8: and all others come; also if ``state`` was damaged, too, so that files may know more than the log."""

    async def program(world: TimerWorld) -> None:
        world.schedule.is_doubtful = is_doubtful
        for number in range(20):
            put(world, b"%d" % number, TIMER_DELAY_MS="5000", UNIQ_KEY=f"K{number}")
        world.store.flush_now()
        world.schedule.write_out()
        [files] = world.schedule.hours()
        entry = files.entry(5)
        assert entry is not None
        # The first bit of its body.
        world.disk.flip_bit(files.paths[1], (entry.at + FIXED_V4_BYTES) * 8)
        await asyncio.sleep(10)
        assert [b"%d" % number for number in range(20)] == came(world)

    run(program, **COLD)


@pytest.mark.parametrize("file", [".records", ".index"])
def test_a_read_that_fails_among_many_leaves_no_message_out(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """I2, C9: what was read before it is not taken for delivered. Records are taken from the log meanwhile."""
    is_failing, read = False, SimulatedFile.read
    suffixes = {".records", file}

    def failing(opened: SimulatedFile, at: int, length_bytes: int) -> bytes:
        # The second piece of the records that are due.
        if is_failing and at and opened._path.suffix in suffixes:
            raise StoreError("cannot read: Input/output error")
        return read(opened, at, length_bytes)

    monkeypatch.setattr(SimulatedFile, "read", failing)

    async def program(world: TimerWorld) -> None:
        nonlocal is_failing
        put(world, b"first", TIMER_DELAY_MS="5000", UNIQ_KEY="1")
        put(world, b"x" * 10_000, TIMER_DELAY_MS="20000", UNIQ_KEY="2")
        put(world, b"second", TIMER_DELAY_MS="5000", UNIQ_KEY="3")
        world.store.flush_now()
        world.schedule.write_out()
        await asyncio.sleep(4)
        is_failing = True
        await asyncio.sleep(4)
        assert ([b"first", b"second"] if file == ".records" else [b"first"]) == came(world)
        is_failing = False
        await asyncio.sleep(4)
        assert [b"first", b"second"] == came(world)
        await asyncio.sleep(20)
        assert 0 == world.schedule.waiting

    run(program, **COLD)


def test_large_messages_that_are_due_at_once_let_others_work_in_between() -> None:
    """I2: a turn is bounded by bytes, too."""
    size, count = 100_000, 60

    async def program(world: TimerWorld) -> None:
        for number in range(count):
            put(world, b"%03d" % number * (size // 3), TIMER_DELAY_MS="5000", UNIQ_KEY=str(number))
        await world.stop()
        await asyncio.sleep(10)
        world.start()
        most = before = 0
        while world.delivery.delivered < count:
            await asyncio.sleep(0)
            most = max(most, world.delivery.delivered - before)
            before = world.delivery.delivered
        assert most * size <= BATCH_BYTES + size
        assert [b"%03d" % number for number in range(count)] == [body[:3] for body in came(world)]

    run(program)
